// Package consent remembers which MCP servers the user has approved. A configuration in
// a project was written by somebody else, and asks to run programs and to get secrets.
// It applies to a server only after the user has seen and approved that server's
// definition. Any change of the definition asks again.
//
// An approval consists of the hash of a definition and its source: the same definition
// in another project is a new question.
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

const version = 1

// A Grant is an approval by the user.
type Grant struct {
	Server string    `json:"server"` // name of the server
	Source string    `json:"source"` // file, or other origin of the definition
	Hash   string    `json:"hash"`   // of the definition
	At     time.Time `json:"at"`
}

// A State is the state of a definition. The set is closed.
type State string

// The states.
const (
	Unknown State = "unknown" // no approval for a server with this name and source
	Granted State = "granted" // the user has approved this definition
	Changed State = "changed" // the user has approved another definition
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

// State returns the state of a definition. Treat an error as a refusal.
func (s *Store) State(server, source, hash string) (State, error) {
	grants, err := s.file.Read()
	if err != nil {
		return Unknown, fmt.Errorf("read the consent to mcp server %q: %w", server, err)
	}
	i := find(grants, server, source)
	switch {
	case i < 0:
		return Unknown, nil
	case grants[i].Hash != hash || hash == "":
		return Changed, nil
	}
	return Granted, nil
}

// Grant stores an approval. It replaces an earlier one for the same server and source.
func (s *Store) Grant(ctx context.Context, server, source, hash string) error {
	if server == "" || source == "" || hash == "" {
		return errors.New("store a consent: server, source and hash are required")
	}
	err := s.file.Update(ctx, func(grants *[]Grant) error {
		if i := find(*grants, server, source); i >= 0 {
			*grants = slices.Delete(*grants, i, i+1)
		}
		*grants = append(*grants, Grant{server, source, hash, s.now().UTC().Truncate(time.Second)})
		if over := len(*grants) - maxGrants; over > 0 {
			*grants = slices.Delete(*grants, 0, over)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store the consent to mcp server %q: %w", server, err)
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

func find(grants []Grant, server, source string) int {
	return slices.IndexFunc(grants, func(g Grant) bool { return g.Server == server && g.Source == source })
}
