//go:build linux

package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
)

// Attack is one attempt to break a promise.
type Attack struct {
	Class string `json:"class"` // a word of [a-z-]
	Name  string `json:"name"`  // unique in the class; words of [a-z0-9-]
	Claim string `json:"claim"` // the promise, one sentence without a period
	// Alone makes the attack run without others beside it, because it is about
	// memory or time.
	Alone bool `json:"alone,omitempty"`
	// run carries out the attack and reports what succeeded with Trial.broke. An
	// error means that the attack could not be carried out.
	run func(ctx context.Context, t *trial) error
}

// MarshalJSON encodes the attack with its id.
func (a *Attack) MarshalJSON() ([]byte, error) {
	type members Attack
	return json.Marshal(struct {
		ID string `json:"id"`
		*members
	}{a.ID(), (*members)(a)})
}

// ID returns the class and the name, such as "escape/core-pattern".
func (a *Attack) ID() string { return a.Class + "/" + a.Name }

// class is a group of attacks on related promises.
type class struct {
	name    string
	about   string // one sentence, for the documentation
	attacks []Attack
}

// classes lists all classes in the order in which they run.
func classes() []class {
	return []class{
		hostDataClass(),
		escapeClass(),
		usernsClass(),
		kernelMemoryClass(),
		stormClass(),
		mcpClientClass(),
		gatewayClass(),
		codemodeClass(),
		egressClass(),
		secretsClass(),
		narrowingClass(),
		sentryClass(),
		agentClass(),
		snapshotClass(),
		stateClass(),
		httpClass(),
		filesClass(),
		volumeClass(),
		imagesClass(),
		localUserClass(),
	}
}

// All returns the corpus.
func All() []Attack {
	var all []Attack
	for _, c := range classes() {
		for _, a := range c.attacks {
			a.Class = c.name
			all = append(all, a)
		}
	}
	return all
}

// Select returns the attacks whose class or ID matches one of the patterns, in
// the syntax of path.Match. Without patterns it returns all. It is an error if a
// pattern is malformed or matches nothing.
func Select(all []Attack, patterns []string) ([]Attack, error) {
	if len(patterns) == 0 {
		return all, nil
	}
	selected := make([]bool, len(all))
	for _, p := range patterns {
		found := false
		for i := range all {
			ok, err := all[i].matches(p)
			if err != nil {
				return nil, fmt.Errorf("pattern %q is malformed: %w", p, err)
			}
			selected[i] = selected[i] || ok
			found = found || ok
		}
		if !found {
			return nil, fmt.Errorf("no attack or class matches %q; the classes are: %v", p, classNames(all))
		}
	}
	var list []Attack
	for i, a := range all {
		if selected[i] {
			list = append(list, a)
		}
	}
	return list, nil
}

func (a *Attack) matches(pattern string) (bool, error) {
	for _, name := range []string{a.Class, a.ID()} {
		if ok, err := path.Match(pattern, name); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func classNames(all []Attack) []string {
	var names []string
	for _, a := range all {
		if !slices.Contains(names, a.Class) {
			names = append(names, a.Class)
		}
	}
	return names
}
