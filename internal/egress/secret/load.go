package secret

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress/authority"
	"github.com/glovebox-dev/glovebox/internal/egress/redact"
)

// Secrets are checked definitions with their values. They are immutable and may be used
// concurrently. No method discloses a value.
type Secrets struct {
	named map[string]*ownerSecrets // owners that definitions name
	rest  *ownerSecrets            // all other owners
	all   []*secret
}

// ownerSecrets are the secrets of one owner.
type ownerSecrets struct {
	hosts map[string]*hostSecrets
	names []string          // sorted names of hosts
	as    map[string]string // variable → secret
	all   []*secret
}

// hostSecrets are the secrets that an owner has for one host.
type hostSecrets struct {
	host    string
	secrets []*secret
	mask    *redact.Set
}

// Load checks the definitions and reads their values. The error names the definition,
// and no value.
func Load(definitions []Definition) (*Secrets, error) { return load(definitions, os.LookupEnv) }

// lookup finds a variable of the environment, as [os.LookupEnv].
type lookup func(string) (string, bool)

func load(definitions []Definition, env lookup) (*Secrets, error) {
	return loadWith(definitions, nil, func(d Definition) (string, error) { return d.read(env) })
}

// Reload is Load for a server that uses prev. A secret whose value cannot be read keeps that
// of prev, if it comes from the same place; kept says why, for each. changed are the names of
// those whose value differs from that of prev. Values that a secret had in prev are masked in
// responses as its own is.
func Reload(definitions []Definition, prev *Secrets) (s *Secrets, changed []string, kept []error, err error) {
	return reload(definitions, prev, os.LookupEnv)
}

func reload(definitions []Definition, prev *Secrets, env lookup) (s *Secrets, changed []string, kept []error, err error) {
	s, err = loadWith(definitions, prev, func(d Definition) (string, error) {
		was := prev.secret(d.Name)
		value, err := d.read(env)
		switch {
		case err != nil && was != nil && was.File == d.File && was.Env == d.Env:
			kept = append(kept, err)
			return was.value, nil
		case err == nil && was != nil && value != was.value:
			changed = append(changed, d.Name)
		}
		return value, err
	})
	return s, changed, kept, err
}

// Withdrawn returns the names of the secrets of s that next does not have, in the order of their
// definitions.
func (s *Secrets) Withdrawn(next *Secrets) (names []string) {
	for _, was := range s.all {
		if next.secret(was.Name) == nil {
			names = append(names, was.Name)
		}
	}
	return names
}

// Check returns the error that Load has in a server. The environment of the server can be
// another than that of the caller, so values in variables are not judged: missing says which
// of them a server with the caller's environment would refuse.
func Check(definitions []Definition) (missing []error, err error) {
	_, err = loadWith(definitions, nil, func(d Definition) (string, error) {
		value, err := d.read(os.LookupEnv)
		if err != nil && d.Env != "" {
			missing = append(missing, err)
			return strings.Repeat("x", redact.MinValue), nil // stands for a value, of which Load has more to check
		}
		return value, err
	})
	return missing, err
}

// loadWith is Load with the function that reads the value of a definition. prev, which may be
// nil, has the former values.
func loadWith(definitions []Definition, prev *Secrets, read func(Definition) (string, error)) (*Secrets, error) {
	if len(definitions) > MaxSecrets {
		return nil, fmt.Errorf("%d secrets are defined, more than %d", len(definitions), MaxSecrets)
	}
	var all []*secret
	owners := make(map[string]bool)
	seen := make(map[string]bool)
	for _, d := range definitions {
		d, err := d.normalize()
		if err != nil {
			return nil, err
		}
		if seen[d.Name] {
			return nil, fmt.Errorf("secret %q is defined twice", d.Name)
		}
		seen[d.Name] = true
		value, err := read(d)
		if err != nil {
			return nil, err
		}
		all = append(all, &secret{d, value, formerValues(prev.secret(d.Name), value)})
		for _, o := range d.Owners {
			if o != Everyone {
				owners[o] = true
			}
		}
	}
	s := &Secrets{named: make(map[string]*ownerSecrets), all: all}
	masks := make(map[string]*redact.Set) // by their values: owners and hosts share them
	var err error
	if s.rest, err = newOwnerSecrets(all, Everyone, masks); err != nil {
		return nil, err
	}
	for o := range owners {
		if s.named[o], err = newOwnerSecrets(all, o, masks); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// newOwnerSecrets returns the secrets of an owner. It takes masks from a map, or adds them.
func newOwnerSecrets(all []*secret, owner string, masks map[string]*redact.Set) (*ownerSecrets, error) {
	o := &ownerSecrets{hosts: make(map[string]*hostSecrets), as: make(map[string]string)}
	for _, s := range all {
		if !slices.Contains(s.Owners, owner) && !slices.Contains(s.Owners, Everyone) {
			continue
		}
		o.all = append(o.all, s)
		if s.As != "" {
			if other, taken := o.as[s.As]; taken {
				return nil, fmt.Errorf("secrets %q and %q both set the variable %s of the same boxes: rename one", other, s.Name, s.As)
			}
			o.as[s.As] = s.Name
		}
		for _, h := range s.Hosts {
			if o.hosts[h] == nil {
				o.hosts[h] = &hostSecrets{host: h}
				o.names = append(o.names, h)
			}
			o.hosts[h].secrets = append(o.hosts[h].secrets, s)
		}
	}
	if len(o.names) > authority.MaxNames {
		return nil, fmt.Errorf("the secrets of one owner are for %d hosts, more than %d", len(o.names), authority.MaxNames)
	}
	slices.Sort(o.names)
	for _, h := range o.hosts {
		values := h.masked()
		shared := strings.Join(values, "\n") // no value has a line feed
		if masks[shared] == nil {
			mask, err := redact.New(values...)
			if err != nil {
				return nil, fmt.Errorf("prepare the secrets of host %s: %w", h.host, err)
			}
			masks[shared] = mask
		}
		h.mask = masks[shared]
	}
	return o, nil
}

// of returns the secrets of an owner.
func (s *Secrets) of(owner string) *ownerSecrets {
	if o, ok := s.named[owner]; ok {
		return o
	}
	return s.rest
}

// secret returns the secret of a name; nil: none. s may be nil.
func (s *Secrets) secret(name string) *secret {
	if s == nil {
		return nil
	}
	if i := slices.IndexFunc(s.all, func(o *secret) bool { return o.Name == name }); i >= 0 {
		return s.all[i]
	}
	return nil
}

// A Use says where programs of an owner can use a secret.
type Use struct {
	Variable string // of the environment, with the placeholder
	Headers  []string
	Hosts    []string
}

// Uses returns the uses of the secrets that an owner's programs find in a variable, in the
// order of the definitions' names. The caller must not modify them.
func (s *Secrets) Uses(owner string) []Use {
	var uses []Use
	for _, one := range s.of(owner).all {
		if one.As != "" {
			uses = append(uses, Use{one.As, one.Headers, one.Hosts})
		}
	}
	return uses
}
