package consent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T) *Store {
	t.Helper()
	s := Open(filepath.Join(t.TempDir(), "consents.json"))
	clock := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	s.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	return s
}

func (s *Store) want(t *testing.T, server, source, hash string, want State) {
	t.Helper()
	if got, _, err := s.State(Definition{Server: server, Source: source, Hash: hash}); err != nil || got != want {
		t.Errorf("State(%s, %s, %s) = %s, %v, want %s", server, source, hash, got, err, want)
	}
}

func TestState_DependsOnDefinition(t *testing.T) {
	s := open(t)
	s.want(t, "fs", "/a/.mcp.json", "h1", Unknown)
	if err := s.Grant(t.Context(), Definition{Server: "fs", Source: "/a/.mcp.json", Hash: "h1"}); err != nil {
		t.Fatal(err)
	}
	s.want(t, "fs", "/a/.mcp.json", "h1", Granted)
	s.want(t, "fs", "/a/.mcp.json", "h2", Changed)
	s.want(t, "fs", "/a/.mcp.json", "", Changed)
	s.want(t, "fs", "/b/.mcp.json", "h1", Unknown)
	s.want(t, "other", "/a/.mcp.json", "h1", Unknown)

	if err := s.Grant(t.Context(), Definition{Server: "fs", Source: "/a/.mcp.json", Hash: "h2"}); err != nil {
		t.Fatal(err)
	}
	s.want(t, "fs", "/a/.mcp.json", "h2", Granted)
	s.want(t, "fs", "/a/.mcp.json", "h1", Changed)
	// Another process sees it.
	Open(s.file.Path).want(t, "fs", "/a/.mcp.json", "h2", Granted)
}

func TestRevoke(t *testing.T) {
	s := open(t)
	for _, source := range []string{"/a", "/b", "/c"} {
		if err := s.Grant(t.Context(), Definition{Server: "fs", Source: source, Hash: "h"}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Revoke(t.Context(), "fs", "/b"); err != nil || len(got) != 1 || got[0].Source != "/b" {
		t.Errorf("Revoke of one source: %v, %v", got, err)
	}
	s.want(t, "fs", "/b", "h", Unknown)
	s.want(t, "fs", "/a", "h", Granted)
	if got, err := s.Revoke(t.Context(), "fs", ""); err != nil || len(got) != 2 {
		t.Errorf("Revoke of all sources: %v, %v", got, err)
	}
	if got, err := s.Revoke(t.Context(), "fs", ""); err != nil || len(got) != 0 {
		t.Errorf("Revoke of nothing: %v, %v", got, err)
	}
	if got, err := s.Grants(); err != nil || len(got) != 0 {
		t.Errorf("Grants: %v, %v", got, err)
	}
}

func TestGrants_BoundedAndOrdered(t *testing.T) {
	s := open(t)
	err := s.file.Update(t.Context(), func(grants *[]Grant) error {
		for i := range maxGrants {
			*grants = append(*grants, Grant{Server: fmt.Sprint("s", i), Source: "/a", Hash: "h", At: s.now()})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Grant(t.Context(), Definition{Server: "newest", Source: "/a", Hash: "h"}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Grants()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != maxGrants || got[0].Server != "s1" || got[len(got)-1].Server != "newest" {
		t.Errorf("%d grants from %s to %s, want %d from s1 to newest", len(got), got[0].Server, got[len(got)-1].Server, maxGrants)
	}
}

// An unreadable file is an error, not an approval.
func TestState_UnreadableFile(t *testing.T) {
	s := open(t)
	if err := s.Grant(t.Context(), Definition{Server: "fs", Source: "/a", Hash: "h"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file.Path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.State(Definition{Server: "fs", Source: "/a", Hash: "h"}); err == nil || got == Granted {
		t.Errorf("State = %s, %v, want an error", got, err)
	}
	if err := s.Grant(t.Context(), Definition{Server: "fs", Source: "/a", Hash: "h"}); err == nil {
		t.Error("Grant: no error")
	}
}

func TestGrant_RequiresAllArguments(t *testing.T) {
	s := open(t)
	for _, args := range [][3]string{{"", "/a", "h"}, {"fs", "", "h"}, {"fs", "/a", ""}} {
		if err := s.Grant(t.Context(), Definition{Server: args[0], Source: args[1], Hash: args[2]}); err == nil {
			t.Errorf("Grant(%q): no error", args)
		}
	}
	got, err := s.Grants()
	if diff := cmp.Diff([]Grant(nil), got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", err, diff)
	}
}
