package oci

import (
	"fmt"
	"io"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/erofs"
)

// finish adds what a box needs: the mount points of the guest's kernel and of the agent,
// the home directory and account of user code, and files of /etc that name the host and
// the name server. data reads what was stored.
func (m *merger) finish(data io.ReaderAt) error {
	for _, name := range []string{"proc", "sys", "dev", ".glovebox"} {
		// Mounts cover the entries of the image there.
		m.root.Entries[name] = newDir(0o755)
	}
	add := func(path string, mode uint16, owner uint32) error {
		_, err := m.addDir(path, mode, owner)
		return err
	}
	if err := add("tmp", 0o1777, 0); err != nil {
		return err
	}
	// gVisor covers an empty /tmp with a file system in memory.
	if err := add("tmp/.glovebox", 0o700, 0); err != nil {
		return err
	}
	if err := add(strings.TrimPrefix(machine.Home, "/"), 0o755, engine.UserID); err != nil {
		return err
	}
	etc, err := m.addDir("etc", 0o755, 0)
	if err != nil {
		return err
	}
	for name, content := range image.NetworkFiles() {
		if err := m.addFile(etc, name, content); err != nil {
			return err
		}
	}
	for name, lines := range map[string]struct{ standard, user string }{
		"passwd": {"root:x:0:0:root:/root:/bin/sh\n", fmt.Sprintf("%%s:x:%d:%d:user:%s:/bin/sh\n", engine.UserID, engine.UserID, machine.Home)},
		"group":  {"root:x:0:\n", fmt.Sprintf("%%s:x:%d:\n", engine.UserID)},
	} {
		text := lines.standard
		if i := m.lookup("/etc/" + name); i != nil && i.Type() == erofs.TypeRegular && i.Size <= image.MaxAccounts {
			b := make([]byte, i.Size)
			if _, err := data.ReadAt(b, i.Offset); err != nil && err != io.EOF {
				return err
			}
			text = string(b)
		}
		if err := m.addFile(etc, name, withAccount(text, lines.user)); err != nil {
			return err
		}
	}
	return nil
}

// withAccount adds the account of user code to the text of /etc/passwd or /etc/group,
// unless its id is taken: then the image has an account for it.
func withAccount(text, format string) string {
	if image.HasAccount(text) {
		return text
	}
	taken := make(map[string]bool)
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		taken[name] = true
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for _, name := range []string{"user", "glovebox"} {
		if !taken[name] {
			return text + fmt.Sprintf(format, name)
		}
	}
	return text
}

// addDir returns the directory at a path; if there is none, it makes one, in place of a
// file that is in the way.
func (m *merger) addDir(path string, mode uint16, owner uint32) (*erofs.Inode, error) {
	if i := m.lookup(path); i != nil && i.IsDir() {
		return i, nil
	}
	parts := strings.Split(path, "/")
	at := m.root
	for n, part := range parts {
		next := at.Entries[part]
		if next != nil && !next.IsDir() {
			if next = m.lookup(strings.Join(parts[:n+1], "/")); next != nil && !next.IsDir() {
				next = nil
			}
		}
		if next == nil {
			next = newDir(0o755)
			if n == len(parts)-1 {
				next.Mode, next.UID, next.GID = erofs.TypeDir|mode, owner, owner
			}
			at.Entries[part] = next
		}
		at = next
	}
	return at, nil
}

// addFile adds a file that everybody may read, in place of what is there.
func (m *merger) addFile(dir *erofs.Inode, name, content string) error {
	offset, size, err := m.store(strings.NewReader(content))
	if err != nil {
		return err
	}
	dir.Entries[name] = &erofs.Inode{Mode: erofs.TypeRegular | 0o644, Offset: offset, Size: size}
	return nil
}
