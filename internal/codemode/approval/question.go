package approval

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxGroups bounds the calls of one question: a person has to judge each.
const maxGroups = 8

type status int

const (
	statusOpen status = iota
	statusAnswered
	statusExpired // or all its calls have ended
)

// A question asks about calls of one run. Calls with the same arguments are one group.
type question struct {
	run    *run
	token  string // replaced when it is asked again, guarded by Approver.mu
	asked  time.Time
	until  time.Time // when it expires, guarded by Approver.mu
	groups [][]*pendingCall
	// choices are the decisions that the person may take on each group.
	choices [][]Decision
	params  *mcp.ElicitParams
	ctx     context.Context // until the question is closed
	cancel  context.CancelCauseFunc

	repeats int         // guarded by Approver.mu: how often it was asked again
	status  status      // guarded by Approver.mu
	timer   *time.Timer // guarded by Approver.mu: of the expiry, then of the time that it is kept
}

var errClosed = errors.New("the question is no longer open")

// closeLocked ends the question without deciding its calls.
func (q *question) closeLocked(s status) {
	q.status = s
	q.run.open = nil
	q.cancel(errClosed)
}

// decideLocked decides all calls of the question and returns those that were not decided.
func (q *question) decideLocked(decision string, err error) (decided []*pendingCall) {
	for _, g := range q.groups {
		for _, p := range g {
			if !p.decided {
				p.decideLocked(decision, err)
				decided = append(decided, p)
			}
		}
	}
	return decided
}

// decidedLocked reports whether no call of the question waits any more.
func (q *question) decidedLocked() bool {
	for _, g := range q.groups {
		if slices.ContainsFunc(g, func(p *pendingCall) bool { return !p.decided }) {
			return false
		}
	}
	return true
}

// membersOf returns the arguments of a call, which is a JSON object.
func membersOf(arguments json.RawMessage) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(arguments, &members) != nil {
		return map[string]json.RawMessage{"arguments": arguments}
	}
	for n, v := range members {
		members[n] = bytes.TrimSpace(v)
	}
	return members
}

// maxCompared and maxNames bound the arguments of a call that are compared with a later
// one, and the bytes of their names.
const maxCompared, maxNames = 100, 8 << 10

// digests returns the digest of each argument; nil if there are too many to remember.
func digests(arguments json.RawMessage) map[string]digest {
	members := membersOf(arguments)
	if len(members) > maxCompared {
		return nil
	}
	all := make(map[string]digest, len(members))
	bytes := 0
	for n, v := range members {
		if bytes += len(n); bytes > maxNames {
			return nil
		}
		all[n] = sha256.Sum256(v)
	}
	return all
}
