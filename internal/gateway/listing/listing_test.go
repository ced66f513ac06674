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

func TestKeep(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "offers.json"))
	clock := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	s.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	keep := func(hash string, o Offer) {
		t.Helper()
		if err := s.Keep(t.Context(), hash, o); err != nil {
			t.Fatal(err)
		}
	}
	all := func() map[string]Offer {
		t.Helper()
		all, err := s.All()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if got := all(); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
	prompts := []*mcp.Prompt{{Name: "p"}}
	keep("a", Offer{Tools: tools("one"), Prompts: prompts, Whole: true})
	keep("a", Offer{Tools: tools("two")})
	want := Offer{Tools: tools("two"), Prompts: prompts, Whole: true, At: clock}
	if diff := cmp.Diff(want, all()["a"]); diff != "" {
		t.Errorf("tools alone (-want +got)\n%s", diff)
	}
	// The same again is not written, until it has been a while.
	keep("a", Offer{Tools: tools("two")})
	if diff := cmp.Diff(want, all()["a"]); diff != "" {
		t.Errorf("the same tools (-want +got)\n%s", diff)
	}
	clock = clock.Add(renewal)
	keep("a", Offer{Tools: tools("two")})
	if got := all()["a"].At; !got.Equal(clock) {
		t.Errorf("after a while: it is of %v, want %v", got, clock)
	}
	keep("b", Offer{Tools: tools("one")})
	if all()["b"].Whole {
		t.Error("tools alone are taken for all")
	}
	keep("b", Offer{Tools: tools(strings.Repeat("x", maxOffer))})
	if _, there := all()["b"]; there {
		t.Error("what is too large is there, or what was before")
	}
	for i := range maxServers {
		keep(fmt.Sprint("s", i), Offer{Tools: tools("t")})
	}
	got := all()
	if _, there := got["a"]; there || len(got) != maxServers {
		t.Errorf("%d are remembered, want %d without the oldest", len(got), maxServers)
	}
}
