// Package listing caches the tools, prompts and resources of MCP servers by the hash of
// the servers' definitions. Listing and shell completion then start no server.
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
	// maxServers bounds the cache; the least recently used entry is evicted first.
	maxServers = 100
	// maxEntry bounds an entry, in bytes of JSON, so that all fit into one file.
	maxEntry = 32 << 10
	// rewriteAfter is the age after which an unchanged entry is written again, to
	// record its use. Earlier writes would only delay the command.
	rewriteAfter = time.Hour
)

// An Entry is the listing of one server.
type Entry struct {
	Tools     []*mcp.Tool             `json:"tools,omitempty"`
	Prompts   []*mcp.Prompt           `json:"prompts,omitempty"`
	Resources []*mcp.Resource         `json:"resources,omitempty"`
	Templates []*mcp.ResourceTemplate `json:"templates,omitempty"`
	// Complete says that the entry has all lists of the server, not only its tools.
	Complete bool      `json:"whole,omitempty"`
	At       time.Time `json:"at"`
}

// A Cache is a file of entries. Its methods may be called concurrently, also by several
// processes.
type Cache struct {
	file statefile.File[map[string]Entry]
	now  func() time.Time
}

// Open returns the cache in the file path, which need not exist.
func Open(path string) *Cache {
	return &Cache{file: statefile.File[map[string]Entry]{Path: path, Version: version}, now: time.Now}
}

// All returns all entries, by hash.
func (c *Cache) All() (map[string]Entry, error) {
	all, err := c.file.Read()
	if err != nil {
		return nil, fmt.Errorf("read server listings: %w", err)
	}
	return all, nil
}

// Put stores an entry in place of an earlier one of the same hash. An entry that is not
// complete replaces only the tools of a complete one. An entry that is too large is
// removed. An unchanged entry is written again only after rewriteAfter.
func (c *Cache) Put(ctx context.Context, hash string, e Entry) error {
	e.At = c.now().UTC().Truncate(time.Second)
	if all, err := c.file.Read(); err == nil && e.unchanged(all, hash) {
		return nil
	}
	err := c.file.Update(ctx, func(all *map[string]Entry) error {
		if *all == nil {
			*all = make(map[string]Entry)
		}
		now := e.after((*all)[hash])
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
		return fmt.Errorf("cache server listing: %w", err)
	}
	return nil
}

// after returns e, with the lists of before that e lacks.
func (e Entry) after(before Entry) Entry {
	if e.Complete {
		return e
	}
	before.Tools, before.At = e.Tools, e.At
	return before
}

// encoded returns the entry as JSON, or nil if it is too large.
func (e Entry) encoded() []byte {
	b, err := json.Marshal(e)
	if err != nil || len(b) > maxEntry {
		return nil
	}
	return b
}

// unchanged reports whether storing the entry would change nothing.
func (e Entry) unchanged(all map[string]Entry, hash string) bool {
	before, there := all[hash]
	now := e.after(before)
	if now.encoded() == nil {
		return !there
	}
	recent := e.At.Sub(before.At) < rewriteAfter
	now.At = before.At
	return there && recent && bytes.Equal(now.encoded(), before.encoded())
}
