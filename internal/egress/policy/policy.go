// Package policy decides where programs in boxes may connect.
//
// A [Policy] lists rules. A [Set] combines the policies of several layers, and each layer
// can only narrow the others. Decisions are made by the name that the program asked for;
// the addresses behind it are checked by others.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
)

// A Policy is a list of rules. Use [New] or [Parse]. A Policy must not be modified and may
// be used concurrently.
type Policy struct {
	// Version identifies the content: equal policies have equal versions. It has 12
	// hexadecimal digits.
	Version string
	// Allow lists the rules one of which must match.
	Allow []Rule
	// Deny lists the rules none of which may match. They have no methods and paths. A
	// preset, and an entry without scheme and port, covers all ports.
	Deny []Rule
}

// maxRules bounds a policy, since each decision tries all of its rules.
const maxRules = 256

// New returns a policy of rules made by [ParseRule] or [NewRule].
func New(allow, deny []Rule) (*Policy, error) {
	if len(allow)+len(deny) > maxRules {
		return nil, fmt.Errorf("the policy has %d rules, more than %d", len(allow)+len(deny), maxRules)
	}
	h := sha256.New()
	for _, r := range allow {
		if err := r.check(); err != nil {
			return nil, err
		}
		fmt.Fprintf(h, "allow %s %q %q %q %d\n", r.Name, r, r.Methods, r.Paths, r.Kind)
	}
	for _, r := range deny {
		if err := r.check(); err != nil {
			return nil, err
		}
		if r.RequestsOnly() {
			return nil, fmt.Errorf("deny %q: methods and paths may only be allowed, not denied", r)
		}
		fmt.Fprintf(h, "deny %s %q %d\n", r.Name, r, r.Kind)
	}
	return &Policy{Version: sum(h), Allow: slices.Clone(allow), Deny: slices.Clone(deny)}, nil
}

func (r Rule) check() error {
	if len(r.Hosts) == 0 || len(r.Ports) == 0 || r.Name == "" {
		return fmt.Errorf("rule %q lacks a name, a host or a port", r)
	}
	return nil
}

// sum returns the digits of a version.
func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:6]) }

// Parse returns a policy of entries as for [ParseRule].
func Parse(allow, deny []string) (*Policy, error) {
	a, err := parseRules(allow)
	if err != nil {
		return nil, err
	}
	d, err := parseRules(deny)
	if err != nil {
		return nil, err
	}
	return New(a, d)
}

func parseRules(entries []string) ([]Rule, error) {
	if len(entries) > maxRules {
		return nil, fmt.Errorf("%d network entries, more than %d", len(entries), maxRules)
	}
	rules := make([]Rule, 0, len(entries))
	for _, entry := range entries {
		r, err := ParseRule(entry)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}
