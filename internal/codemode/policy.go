package codemode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/gateway/pin"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// A Decision is what the policy says of a tool.
type Decision string

// The closed set of decisions.
const (
	Allow Decision = "allow"
	Ask   Decision = "ask" // a person approves each call
	Deny  Decision = "deny"
)

func (d Decision) valid() bool { return d == Allow || d == Ask || d == Deny }

// A Rule decides about the tools whose names match. Server and Tool are patterns of
// path.Match, except that wildcards also match slashes; "" matches all.
type Rule struct {
	Server, Tool string
	Decision     Decision
}

// A Policy decides which tools programs may call: the first rule that matches. Without
// one, tools that their server declares read-only are allowed, and others Ask.
type Policy []Rule

// Check returns an error for a rule that is not valid.
func (p Policy) Check() error {
	for _, r := range p {
		for _, pattern := range []string{r.Server, r.Tool} {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("parse pattern %q: %w", pattern, err)
			}
		}
		if !r.Decision.valid() {
			return fmt.Errorf("unknown decision %q for %s.%s: want allow, ask or deny", string(r.Decision), r.Server, r.Tool)
		}
	}
	return nil
}

// Decide returns the decision about a tool.
func (p Policy) Decide(t Tool) Decision {
	for _, r := range p {
		if matches(r.Server, t.Server) && matches(r.Tool, t.Name) {
			return r.Decision
		}
	}
	if t.Annotations != nil && t.Annotations.ReadOnlyHint {
		return Allow
	}
	return Ask
}

// MatchesServer reports whether the rule is for tools of a server of that name.
func (r Rule) MatchesServer(name string) bool { return matches(r.Server, name) }

// errDenied returns the error of a call that the policy denies.
func errDenied(t Tool) error {
	return &Error{Code: Denied, Message: "a rule of Glovebox denies " + t.Name + " to code. Do not retry; the user can change --tool-rules"}
}

// permit returns the arguments to call the tool with, if the call may be made.
func (b *Broker) permit(ctx context.Context, who Identity, t Tool, arguments json.RawMessage) (json.RawMessage, error) {
	switch b.policy.Load().Decide(t) {
	case Allow:
		return arguments, nil
	case Deny:
		return nil, errDenied(t)
	}
	if b.o.Approve == nil {
		return nil, &Error{Code: ApprovalRequired, Message: fmt.Sprintf("%s may change something, and nobody can approve the call here. Do not retry; the user can allow it with --tool-rules 'allow %s %[1]s'", t.Name, t.Server)}
	}
	// The person sees what the server gets.
	arguments, err := Canonical(arguments)
	if err != nil {
		return nil, &Error{Code: InvalidArguments, Message: errNotJSON.Error()}
	}
	ok, err := b.o.Approve(ctx, Request{Identity: who, Server: t.Server, Tool: t.Name, Version: versionOf(t), Arguments: arguments, Declared: b.declarations.of(t.Tool).names, Description: t.Description, Annotations: t.Annotations})
	if err != nil {
		if own, isOwn := errors.AsType[*Error](err); isOwn {
			return nil, own
		}
		return nil, fmt.Errorf("ask for approval: %w", err)
	}
	if !ok {
		return nil, &Error{Code: Denied, Message: "the user denied this call. Do not repeat it or work around it; ask the user what to do"}
	}
	// The wait may have been long. Servers.Call checks that the tool is still the same.
	if b.policy.Load().Decide(t) == Deny {
		return nil, errDenied(t)
	}
	return arguments, nil
}

// versionOf identifies what a person approves besides the arguments: the definitions of the
// server and of the tool.
func versionOf(t Tool) string { return t.Definition + "/" + pin.Digest(t.Tool) }

// Canonical returns a JSON value with sorted names, without insignificant spaces and
// needless escapes. Of duplicate names it keeps the last. Numbers keep their digits.
func Canonical(value json.RawMessage) (json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return plainjson.Marshal(v)
}

// ParseRule parses a rule for people: the decision, a pattern of servers and, if the rule
// is not for all their tools, a pattern of tools, such as "deny github delete_*".
func ParseRule(text string) (Rule, error) {
	words := strings.Fields(text)
	if len(words) < 2 || len(words) > 3 {
		return Rule{}, fmt.Errorf("parse rule %q: want a decision, a server and optionally a tool, such as \"deny github delete_*\"", text)
	}
	r := Rule{Server: words[1], Decision: Decision(words[0])}
	if !r.Decision.valid() {
		return Rule{}, fmt.Errorf("parse rule %q: unknown decision %q: want allow, ask or deny", text, words[0])
	}
	if len(words) == 3 {
		r.Tool = words[2]
	}
	if err := (Policy{r}).Check(); err != nil {
		return Rule{}, fmt.Errorf("parse rule %q: %w", text, err)
	}
	return r, nil
}

// ParsePolicy parses rules as ParseRule does.
func ParsePolicy(rules []string) (p Policy, err error) {
	for _, text := range rules {
		r, err := ParseRule(text)
		if err != nil {
			return nil, err
		}
		p = append(p, r)
	}
	return p, nil
}
