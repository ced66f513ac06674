package approval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/statefile"
)

// A Store remembers the calls that an owner always approves, in a file for each owner.
// The files name servers, tools and digests of arguments, no arguments. Methods may be
// called concurrently, also by other processes.
type Store struct {
	Dir string // created with the first approval
}

// maxStored bounds the approvals of one owner. The oldest make room.
const maxStored = 1000

// A Remembered is a call that an owner always approves.
type Remembered struct {
	SHA256 string    `json:"sha256"` // of the server, the tool, their definitions and the arguments
	Server string    `json:"server"`
	Tool   string    `json:"tool"`
	At     time.Time `json:"at"`
}

// file returns the file of an owner, whose name comes from outside and so is hashed.
func (s *Store) file(owner string) *statefile.File[[]Remembered] {
	sum := sha256.Sum256([]byte(owner))
	return &statefile.File[[]Remembered]{Path: filepath.Join(s.Dir, hex.EncodeToString(sum[:16])+".json"), Version: 1}
}

// List returns the calls that an owner always approves, oldest first.
func (s *Store) List(owner string) ([]Remembered, error) {
	all, err := s.file(owner).Read()
	if err != nil {
		return nil, fmt.Errorf("list approved calls: %w", err)
	}
	return all, nil
}

// Revoke forgets the calls of an owner that match, and returns them.
func (s *Store) Revoke(ctx context.Context, owner string, match func(Remembered) bool) (revoked []Remembered, err error) {
	err = s.file(owner).Update(ctx, func(all *[]Remembered) error {
		*all = slices.DeleteFunc(*all, func(one Remembered) bool {
			matches := match(one)
			if matches {
				revoked = append(revoked, one)
			}
			return matches
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("revoke approved calls: %w", err)
	}
	return revoked, nil
}

// has reports whether the owner always approves a call.
func (s *Store) has(owner string, hash digest) (bool, error) {
	if s == nil {
		return false, nil
	}
	all, err := s.file(owner).Read()
	want := hash.String()
	return slices.ContainsFunc(all, func(one Remembered) bool { return one.SHA256 == want }), err
}

// add remembers that the owner always approves a call.
func (s *Store) add(ctx context.Context, owner, server, tool string, hash digest) error {
	if s == nil {
		return nil
	}
	return s.file(owner).Update(ctx, func(all *[]Remembered) error {
		one := Remembered{SHA256: hash.String(), Server: server, Tool: tool, At: time.Now().UTC().Truncate(time.Second)}
		kept := slices.DeleteFunc(*all, func(o Remembered) bool { return o.SHA256 == one.SHA256 })
		kept = append(kept, one)
		*all = kept[max(0, len(kept)-maxStored):]
		return nil
	})
}
