package snapshot

import (
	"encoding/json"
	"fmt"
	"slices"
)

// The sources of a NetLimit.
const (
	OfTemplate = "template"
	OfBox      = "box"
)

// A NetLimit narrows the network of a box, for its whole life. The zero NetLimit leaves none.
type NetLimit struct {
	Of    string   `json:"of"`              // OfTemplate or OfBox
	Allow []string `json:"allow,omitempty"` // presets and hosts; empty: nothing
}

// NetLimits narrow the network of a box together: each must allow a connection. Without any,
// the box has the network that its owner has.
type NetLimits []NetLimit

// maxLimits bounds NetLimits as JSON, in bytes: tombstones, of which there are a thousand, have
// them too.
const maxLimits = 2048

// And returns the limits of both, without repetitions. Neither is modified.
func (l NetLimits) And(others NetLimits) NetLimits {
	both := slices.Clip(l)
	for _, o := range others {
		if !slices.ContainsFunc(both, o.equal) {
			both = append(both, o)
		}
	}
	return both
}

func (l NetLimit) equal(other NetLimit) bool {
	return l.Of == other.Of && slices.Equal(l.Allow, other.Allow)
}

// ForTemplate returns the limits that a template has which is made of a box with limits l.
func (l NetLimits) ForTemplate() NetLimits {
	var made NetLimits
	for _, limit := range l {
		made = made.And(NetLimits{{Of: OfTemplate, Allow: limit.Allow}})
	}
	return made
}

// Check returns an error if the limits are too long for a record, or not text.
func (l NetLimits) Check() error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if len(b) > maxLimits {
		return fmt.Errorf("the limits of the network have %d bytes, more than %d", len(b), maxLimits)
	}
	return nil
}
