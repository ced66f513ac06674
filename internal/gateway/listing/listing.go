// Package listing remembers what MCP servers offer, by the hash of their definitions,
// so that a list or a completion starts nothing: a key pressed is no wish to run a
// program.
package listing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/statefile"
)

const (
	version = 1
	// maxServers bounds what is remembered; the one that was not looked at for
	// longest goes first.
	maxServers = 100
	// maxOffer is the bytes of one that is worth remembering, so that all fit into
	// a file.
	maxOffer = 32 << 10
	// renewal is how old may be what is remembered of a server that still offers
	// the same. Its time tells which servers are in use, and a write waits for the
	// disk, while somebody waits for the command.
	renewal = time.Hour
)

// An Offer is what a server offers.
type Offer struct {
	Tools     []*mcp.Tool             `json:"tools,omitempty"`
	Prompts   []*mcp.Prompt           `json:"prompts,omitempty"`
	Resources []*mcp.Resource         `json:"resources,omitempty"`
	Templates []*mcp.ResourceTemplate `json:"templates,omitempty"`
	// Whole says that the server was asked for all of it, and not for tools alone.
	Whole bool      `json:"whole,omitempty"`
	At    time.Time `json:"at"`
}

// A Store is what is remembered, in a file. Its methods may be called concurrently,
// also by other processes.
type Store struct {
	file statefile.File[map[string]Offer]
	now  func() time.Time
}

// Open returns the store at path, which need not exist.
func Open(path string) *Store {
	return &Store{file: statefile.File[map[string]Offer]{Path: path, Version: version}, now: time.Now}
}

// All is all that is remembered, by hash.
func (s *Store) All() (map[string]Offer, error) {
	all, err := s.file.Read()
	if err != nil {
		return nil, fmt.Errorf("look for what servers offer: %w", err)
	}
	return all, nil
}

// Keep remembers an offer in place of an earlier one of the same definition. Tools
// alone change only the tools. What is too large is not remembered, nor what was.
// What has been the same for less than an hour is not written again.
func (s *Store) Keep(ctx context.Context, hash string, o Offer) error {
	o.At = s.now().UTC().Truncate(time.Second)
	if all, err := s.file.Read(); err == nil && o.remembered(all, hash) {
		return nil
	}
	err := s.file.Update(ctx, func(all *map[string]Offer) error {
		if *all == nil {
			*all = make(map[string]Offer)
		}
		now := o.after((*all)[hash])
		(*all)[hash] = now
		if now.encoded() == nil {
			delete(*all, hash)
		}
		for len(*all) > maxServers {
			oldest := ""
			for hash, one := range *all {
				if oldest == "" || one.At.Before((*all)[oldest].At) {
					oldest = hash
				}
			}
			delete(*all, oldest)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remember what a server offers: %w", err)
	}
	return nil
}

// after is the offer of a server that was known to offer something before.
func (o Offer) after(before Offer) Offer {
	if o.Whole {
		return o
	}
	before.Tools, before.At = o.Tools, o.At
	return before
}

// encoded is what is written, or nil of what is too large to be remembered.
func (o Offer) encoded() []byte {
	b, err := json.Marshal(o)
	if err != nil || len(b) > maxOffer {
		return nil
	}
	return b
}

// remembered reports whether to remember the offer would change nothing.
func (o Offer) remembered(all map[string]Offer, hash string) bool {
	before, there := all[hash]
	now := o.after(before)
	if now.encoded() == nil {
		return !there
	}
	recent := o.At.Sub(before.At) < renewal
	now.At = before.At
	return there && recent && bytes.Equal(now.encoded(), before.encoded())
}
