package engine

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// maxHostname is Linux's limit.
const maxHostname = 64

// idChars are the characters of an id.
const idChars = "abcdefghijklmnopqrstuvwxyz0123456789-"

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrInvalid)...)
}

// CheckID returns ErrInvalid, wrapped, unless the contract allows id as an id or
// a Root.Key. Engines call it before they make a path of either.
func CheckID(id string) error {
	if id == "" || len(id) > 64 || strings.Trim(id, idChars) != "" {
		return invalid("id %q is not 1 to 64 of a-z, 0-9, -", id)
	}
	return nil
}

// Validate returns ErrInvalid, wrapped, unless the spec is well formed. It does
// not access files: the engine checks that paths exist and are not reserved.
func (s *Spec) Validate() error {
	if s == nil {
		return invalid("no spec")
	}
	err := cmp.Or(s.Root.validate(), s.Agent.validate())
	for _, m := range s.Mounts {
		err = cmp.Or(err, m.validate())
	}
	switch l := s.Limits; {
	case err != nil:
	case len(s.Hostname) > maxHostname:
		return invalid("hostname of %d bytes is longer than %d", len(s.Hostname), maxHostname)
	// The comparison is false for NaN.
	case !(l.CPUs >= 0 && l.CPUs <= 1e6) || l.MemoryMB < 0 || l.DiskMB < 0 || l.PIDs < 0:
		return invalid("limits %+v: negative or not a number", l)
	}
	return err
}

func (r *Root) validate() error {
	if err := CheckID(r.Key); err != nil {
		return fmt.Errorf("root key: %w", err)
	}
	if (r.Tree == nil) == (r.Image == nil) {
		return invalid("root %q: want a tree or an image", r.Key)
	}
	return cmp.Or(r.Tree.validate(), r.Image.validate())
}

func (t *Tree) validate() error {
	if t == nil {
		return nil
	}
	if !filepath.IsAbs(cmp.Or(t.File, t.Dir)) || t.File != "" && (t.Dir != "" || len(t.Binds) > 0) {
		return invalid("root directory %q with %d binds, root file %q: want one of them, absolute", t.Dir, len(t.Binds), t.File)
	}
	for _, b := range t.Binds {
		if err := b.validate(); err != nil || b.Volume != "" {
			return cmp.Or(err, invalid("bind of volume %q: a tree has host paths only", b.Volume))
		}
	}
	return nil
}

func (i *Image) validate() error {
	if i != nil && (len(i.Digest) != 71 || i.Digest[:7] != "sha256:" || strings.Trim(i.Digest[7:], "0123456789abcdef") != "") {
		return invalid("image digest %q is not sha256: and 64 hexadecimal digits", i.Digest)
	}
	return nil
}

func (m *Mount) validate() error {
	switch {
	case !path.IsAbs(m.Guest) || path.Clean(m.Guest) != m.Guest || m.Guest == "/":
		return invalid("mount at %q: the path is not absolute and clean", m.Guest)
	case m.Volume == "" && !filepath.IsAbs(m.Host):
		return invalid("mount of %q at %q: the host path is not absolute", m.Host, m.Guest)
	case m.Volume != "" && (m.Host != "" || CheckID(m.Volume) != nil):
		return invalid("mount at %q: volume %q with host path %q: want one of them", m.Guest, m.Volume, m.Host)
	}
	return nil
}

func (p *Program) validate() error {
	if !filepath.IsAbs(p.Path) || len(p.Args) == 0 {
		return invalid("agent %q with arguments %q: want an absolute path and a name", p.Path, p.Args)
	}
	return p.Image.validate()
}
