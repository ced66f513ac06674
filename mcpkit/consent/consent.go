// Package consent remembers which MCP servers a user has allowed to be used. A
// configuration that comes with a project is somebody else's wish to run programs
// and to be given secrets; it is followed for a server when the user has seen that
// server's definition and said yes, and asked again when anything of it changes.
//
// What is remembered is the hash of a definition, together with where it stands:
// the same lines in another project's file are another question.
package consent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/statefile"
)

// maxGrants bounds what is remembered. The oldest goes first: it is asked about
// again.
const maxGrants = 1000

const version = 1

// A Grant is a yes of the user.
type Grant struct {
	Server string    `json:"server"` // its name
	Source string    `json:"source"` // the file, or whatever it is from
	Hash   string    `json:"hash"`   // of the definition
	At     time.Time `json:"at"`
}

// A State is what is known of a server's definition. The set is closed.
type State string

// The states.
const (
	Unknown State = "unknown" // the user was never asked about a server of this name and source
	Granted State = "granted" // the definition is the one that the user has allowed
	Changed State = "changed" // the user has allowed another definition
)

// A Store is the user's consents in a file. Its methods may be called concurrently,
// also by other processes.
type Store struct {
	file statefile.File[[]Grant]
	now  func() time.Time
}

// Open returns the store at path, which need not exist.
func Open(path string) *Store {
	return &Store{file: statefile.File[[]Grant]{Path: path, Version: version}, now: time.Now}
}

// State tells about a definition. A store that cannot be read is an error, and
// must be taken for a no.
func (s *Store) State(server, source, hash string) (State, error) {
	grants, err := s.file.Read()
	if err != nil {
		return Unknown, fmt.Errorf("look for the consent to mcp server %q: %w", server, err)
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

// Grant remembers a yes in place of an earlier one for the same server and source.
func (s *Store) Grant(ctx context.Context, server, source, hash string) error {
	if server == "" || source == "" || hash == "" {
		return errors.New("remember a consent: server, source and hash are needed")
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
		return fmt.Errorf("remember the consent to mcp server %q: %w", server, err)
	}
	return nil
}

// Revoke forgets the consents to servers of a name, of one source or, if source is
// "", of all, and returns what it forgot.
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

// Grants returns all consents, oldest first.
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
