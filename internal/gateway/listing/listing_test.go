package listing

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func tools(names ...string) (all []*mcp.Tool) {
	for _, name := range names {
		all = append(all, &mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}})
	}
	return all
}

func TestCachePut(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "offers.json"))
	clock := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	s.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	put := func(hash string, o Entry) {
		t.Helper()
		if err := s.Put(t.Context(), hash, o); err != nil {
			t.Fatal(err)
		}
	}
	all := func() map[string]Entry {
		t.Helper()
		all, err := s.All()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if got := all(); len(got) != 0 {
		t.Errorf("empty cache: %v", got)
	}
	prompts := []*mcp.Prompt{{Name: "p"}}
	put("a", Entry{Tools: tools("one"), Prompts: prompts, Complete: true})
	put("a", Entry{Tools: tools("two")})
	want := Entry{Tools: tools("two"), Prompts: prompts, Complete: true, At: clock}
	if diff := cmp.Diff(want, all()["a"]); diff != "" {
		t.Errorf("tools alone (-want +got)\n%s", diff)
	}
	// An unchanged entry is not written before rewriteAfter.
	put("a", Entry{Tools: tools("two")})
	if diff := cmp.Diff(want, all()["a"]); diff != "" {
		t.Errorf("the same tools (-want +got)\n%s", diff)
	}
	clock = clock.Add(rewriteAfter)
	put("a", Entry{Tools: tools("two")})
	if got := all()["a"].At; !got.Equal(clock) {
		t.Errorf("after rewriteAfter: At is %v, want %v", got, clock)
	}
	put("b", Entry{Tools: tools("one")})
	if all()["b"].Complete {
		t.Error("an entry with tools only is complete")
	}
	put("b", Entry{Tools: tools(strings.Repeat("x", maxEntry))})
	if _, there := all()["b"]; there {
		t.Error("an entry that is too large is cached, or the one before it")
	}
	for i := range maxServers {
		put(fmt.Sprint("s", i), Entry{Tools: tools("t")})
	}
	got := all()
	if _, there := got["a"]; there || len(got) != maxServers {
		t.Errorf("%d entries, want %d without the oldest", len(got), maxServers)
	}
}
