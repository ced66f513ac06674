package engine

import (
	"fmt"
	"path"
	"path/filepath"
)

// maxHostname is the longest host name that Linux has.
const maxHostname = 64

// CheckID returns ErrInvalid, wrapped, unless id is what the contract allows as
// an id or as a Root.Key. Engines call it before they make a path of either.
func CheckID(id string) error {
	ok := len(id) >= 1 && len(id) <= 64
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if !ok {
		return fmt.Errorf("id %q is not 1 to 64 of a-z, 0-9, -: %w", id, ErrInvalid)
	}
	return nil
}

// Validate returns ErrInvalid, wrapped, with what is wrong unless the spec is
// well formed. It looks at no file: whether paths exist, and which of them the
// engine keeps for itself, is the engine's to say.
func (s *Spec) Validate() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, ErrInvalid)...)
	}
	if s == nil {
		return invalid("no spec")
	}
	if err := CheckID(s.Root.Key); err != nil {
		return fmt.Errorf("root key: %w", err)
	}
	if !filepath.IsAbs(s.Root.Dir) {
		return invalid("root directory %q is not absolute", s.Root.Dir)
	}
	for _, mounts := range [][]Mount{s.Root.Binds, s.Mounts} {
		for _, m := range mounts {
			if !filepath.IsAbs(m.Host) || !path.IsAbs(m.Guest) || path.Clean(m.Guest) != m.Guest || m.Guest == "/" {
				return invalid("mount of %q at %q: paths are not absolute and clean", m.Host, m.Guest)
			}
		}
	}
	if !filepath.IsAbs(s.Agent.Path) {
		return invalid("agent path %q is not absolute", s.Agent.Path)
	}
	if len(s.Agent.Args) == 0 {
		return invalid("agent has no arguments, not even its name")
	}
	if len(s.Hostname) > maxHostname {
		return invalid("hostname of %d bytes is longer than %d", len(s.Hostname), maxHostname)
	}
	l := s.Limits
	// The comparison is written so that it is false for what is not a number.
	if !(l.CPUs >= 0 && l.CPUs <= 1e6) || l.MemoryMB < 0 || l.DiskMB < 0 || l.PIDs < 0 {
		return invalid("limits %+v: negative or not a number", l)
	}
	return nil
}
