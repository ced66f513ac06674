// Package pin remembers the definitions of MCP servers' tools as they were first used. A
// client, or its user, approves a tool by what its definition says; a server that
// changes the definition later would use that approval for something else.
package pin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/statefile"
)

const (
	version = 1
	// maxTools bounds the tools of a server; others count as changed. Real servers have
	// less than a tenth of it.
	maxTools = 5000
	// maxAll bounds the tools of all servers, so that they fit into one file. Beyond it,
	// the servers with the most tools are deleted: no server can make others forgotten.
	maxAll = 50_000
)

// A Store remembers the tools of servers in a file. Its methods may be called
// concurrently, also by several processes.
type Store struct {
	file statefile.File[map[string]record]
	now  func() time.Time
}

// record has the tools of a server.
type record struct {
	At    time.Time         `json:"at"`
	Tools map[string]string `json:"tools"` // digests of the definitions, by digest of the name
	// Any says that the user accepts all changes.
	Any bool `json:"any,omitempty"`
}

// Open returns the store in the file path, which need not exist.
func Open(path string) *Store {
	return &Store{file: statefile.File[map[string]record]{Path: path, Version: version}, now: time.Now}
}

// Changed returns the names of the tools whose definitions have changed since they were
// first passed to Changed or last passed to Accept, for the server whose definition has
// the hash. It remembers tools that are new. After AcceptAny it returns none.
func (s *Store) Changed(ctx context.Context, hash string, tools []*mcp.Tool) ([]string, error) {
	return s.changed(ctx, hash, tools, true)
}

// Review is Changed, also after AcceptAny: it then compares the tools with those that
// were known before.
func (s *Store) Review(ctx context.Context, hash string, tools []*mcp.Tool) ([]string, error) {
	return s.changed(ctx, hash, tools, false)
}

func (s *Store) changed(ctx context.Context, hash string, tools []*mcp.Tool, obeyAny bool) (names []string, err error) {
	all, err := s.file.Read()
	if err != nil {
		return nil, fmt.Errorf("read the known tools: %w", err)
	}
	if obeyAny && all[hash].Any {
		return nil, nil
	}
	names, added := compare(all[hash].Tools, tools)
	if !added {
		return names, nil
	}
	err = s.update(ctx, hash, func(r *record) {
		known := r.Tools
		names, _ = compare(known, tools)
		for _, t := range tools {
			if _, there := known[digest(t.Name)]; !there && len(known) < maxTools {
				known[digest(t.Name)] = Digest(t)
			}
		}
	})
	return names, err
}

// AcceptAny accepts all changes of a server's tools until Accept is called for it. Use it
// for servers that describe their tools in another way each time.
func (s *Store) AcceptAny(ctx context.Context, hash string) error {
	return s.update(ctx, hash, func(r *record) { r.Any = true })
}

// AcceptsAny reports whether AcceptAny was called for a server, and Accept not since.
func (s *Store) AcceptsAny(hash string) (bool, error) {
	all, err := s.file.Read()
	if err != nil {
		return false, fmt.Errorf("read the known tools: %w", err)
	}
	return all[hash].Any, nil
}

// Accept remembers the tools as they are now. It keeps those of the server that are not
// listed now, as far as there is room.
func (s *Store) Accept(ctx context.Context, hash string, tools []*mcp.Tool) error {
	return s.update(ctx, hash, func(r *record) {
		known := r.Tools
		r.Any = false
		listed := make(map[string]string)
		for _, t := range tools[:min(len(tools), maxTools)] {
			listed[digest(t.Name)] = Digest(t)
		}
		maps.Copy(known, listed)
		for name := range known {
			if _, there := listed[name]; !there && len(known) > maxTools {
				delete(known, name)
			}
		}
	})
}

// compare returns the names of the tools that differ from the known ones, and whether
// there are new ones to remember.
func compare(known map[string]string, tools []*mcp.Tool) (changed []string, added bool) {
	room := maxTools - len(known)
	for _, t := range tools {
		before, there := known[digest(t.Name)]
		switch {
		case !there && room > 0:
			added = true
			room--
		case before != Digest(t):
			changed = append(changed, t.Name)
		}
	}
	return changed, added
}

func (s *Store) update(ctx context.Context, hash string, change func(*record)) error {
	err := s.file.Update(ctx, func(all *map[string]record) error {
		if *all == nil {
			*all = make(map[string]record)
		}
		r, there := (*all)[hash]
		if !there {
			r = record{At: s.now().UTC().Truncate(time.Second)}
		}
		if r.Tools == nil {
			r.Tools = make(map[string]string)
		}
		change(&r)
		(*all)[hash] = r
		count := 0
		for _, one := range *all {
			count += len(one.Tools)
		}
		for count > maxAll && len(*all) > 1 {
			largest := ""
			for key, one := range *all {
				if key != hash && (largest == "" || compareSize(one, (*all)[largest]) > 0) {
					largest = key
				}
			}
			count -= len((*all)[largest].Tools)
			delete(*all, largest)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remember the tools: %w", err)
	}
	return nil
}

// compareSize compares records by the number of their tools, then by age.
func compareSize(a, b record) int {
	return cmp.Or(cmp.Compare(len(a.Tools), len(b.Tools)), b.At.Compare(a.At))
}

// digest returns a short hash of a text. Its 64 bits suffice: a server gains nothing from
// two names or definitions of its own with one hash that were both shown to the user.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Digest returns the hash of what a tool's definition says: all of it except metadata
// and icons. It does not depend on the order of required members and choices.
func Digest(t *mcp.Tool) string {
	c := *t
	c.Meta, c.Icons = nil, nil
	b, err := json.Marshal(c)
	if err != nil {
		return "" // not reached: it was decoded from JSON
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return ""
	}
	sortSets("", v)
	if b, err = json.Marshal(v); err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// sortSets sorts the lists of strings that are sets to JSON Schema. Some servers write
// them in another order each time.
func sortSets(name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, one := range v {
			sortSets(key, one)
		}
	case []any:
		for _, one := range v {
			sortSets("", one)
		}
		if name == "required" || name == "enum" || name == "type" {
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
}
