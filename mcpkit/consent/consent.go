// Package consent remembers which MCP servers the user has approved. A configuration in
// a project was written by somebody else, and asks to run programs and to get secrets.
// It applies to a server only after the user has seen and approved that server's
// definition. Any change of the definition, or of a local file that it runs, asks again.
//
// An approval consists of the hash of a definition, its source and the hashes of its
// files: the same definition in another project is a new question.
package consent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/statefile"
)

// maxGrants bounds the stored approvals. Beyond it, the oldest is deleted and asked for
// again.
const maxGrants = 1000

// maxBytes bounds the names and paths in them, so that all fit into one file.
const maxBytes = 2 << 20

const version = 1

// A Grant is an approval by the user.
type Grant struct {
	Server string    `json:"server"` // name of the server
	Source string    `json:"source"` // file, or other origin of the definition
	Hash   string    `json:"hash"`   // of the definition
	At     time.Time `json:"at"`
	Files  []File    `json:"files,omitempty"`
}

// A Definition identifies what the user approves.
type Definition struct {
	Server string // name of the server
	Source string // file, or other origin of the definition
	Hash   string // see [mcpjson.Server.Hash]
	Files  []File // see [Files]
}

// A State is the state of a definition. The set is closed.
type State string

// The states.
const (
	Unknown State = "unknown" // no approval for a server with this name and source
	Granted State = "granted" // the user has approved this definition
	Changed State = "changed" // the user has approved another definition, or other files
)

// A Store holds the user's approvals in a file. Its methods may be called concurrently,
// also by other processes.
type Store struct {
	file statefile.File[[]Grant]
	now  func() time.Time
}

// Open returns the store at path, which is created with the first approval.
func Open(path string) *Store {
	return &Store{file: statefile.File[[]Grant]{Path: path, Version: version}, now: time.Now}
}

// Match is [Store.State] without the files: it compares the definition's hash only. Use
// it to decide whether the files need to be read. Treat an error as a refusal.
func (s *Store) Match(d Definition) (State, error) {
	state, _, err := s.match(d)
	return state, err
}

// State returns the state of a definition, and the paths of the files that have changed
// since the user approved it: those with another content, those that the user did not
// see, and those that no longer look like programs. Treat an error as a refusal.
func (s *Store) State(d Definition) (state State, files []string, err error) {
	state, approved, err := s.match(d)
	if err != nil || state != Granted {
		return state, nil, err
	}
	if files = different(approved, d.Files); len(files) > 0 {
		return Changed, files, nil
	}
	return Granted, nil, nil
}

// match compares hashes. It returns the files of the approval if they match.
func (s *Store) match(d Definition) (state State, files []File, err error) {
	grants, err := s.file.Read()
	if err != nil {
		return Unknown, nil, fmt.Errorf("read the consent to mcp server %q: %w", d.Server, err)
	}
	i := find(grants, d.Server, d.Source)
	switch {
	case i < 0:
		return Unknown, nil, nil
	case grants[i].Hash != d.Hash || d.Hash == "":
		return Changed, nil, nil
	}
	return Granted, grants[i].Files, nil
}

// Grant stores an approval. It replaces an earlier one for the same server and source.
func (s *Store) Grant(ctx context.Context, d Definition) error {
	if d.Server == "" || d.Source == "" || d.Hash == "" {
		return errors.New("store a consent: server, source and hash are required")
	}
	err := s.file.Update(ctx, func(grants *[]Grant) error {
		if i := find(*grants, d.Server, d.Source); i >= 0 {
			*grants = slices.Delete(*grants, i, i+1)
		}
		*grants = append(*grants, Grant{d.Server, d.Source, d.Hash, s.now().UTC().Truncate(time.Second), d.Files})
		for len(*grants) > 1 && (len(*grants) > maxGrants || size(*grants) > maxBytes) {
			*grants = slices.Delete(*grants, 0, 1)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store the consent to mcp server %q: %w", d.Server, err)
	}
	return nil
}

// Revoke deletes the approvals of servers with a name, from one source or, if source is
// empty, from all. It returns the deleted ones.
func (s *Store) Revoke(ctx context.Context, server, source string) (forgotten []Grant, err error) {
	err = s.file.Update(ctx, func(grants *[]Grant) error {
		*grants = slices.DeleteFunc(*grants, func(g Grant) bool {
			match := g.Server == server && (source == "" || g.Source == source)
			if match {
				forgotten = append(forgotten, g)
			}
			return match
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("revoke the consent to mcp server %q: %w", server, err)
	}
	return forgotten, nil
}

// Grants returns all approvals, oldest first.
func (s *Store) Grants() ([]Grant, error) {
	grants, err := s.file.Read()
	if err != nil {
		return nil, fmt.Errorf("list consents: %w", err)
	}
	return grants, nil
}

// different returns the paths of the files that are not in both lists with the same
// content.
func different(approved, now []File) (paths []string) {
	for _, lists := range [][2][]File{{now, approved}, {approved, now}} {
		for _, f := range lists[0] {
			if !slices.Contains(lists[1], f) && !slices.Contains(paths, f.Path) {
				paths = append(paths, f.Path)
			}
		}
	}
	return paths
}

// size returns the approximate size of approvals in bytes.
func size(grants []Grant) (n int) {
	for _, g := range grants {
		n += len(g.Server) + len(g.Source) + len(g.Hash) + 200
		for _, f := range g.Files {
			n += len(f.Path) + len(f.SHA256) + 60
		}
	}
	return n
}

func find(grants []Grant, server, source string) int {
	return slices.IndexFunc(grants, func(g Grant) bool { return g.Server == server && g.Source == source })
}
