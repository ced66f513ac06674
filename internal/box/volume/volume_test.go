package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// dir returns an empty directory without symbolic links in its path.
func dir(t *testing.T) string {
	t.Helper()
	d, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.Chmod(d, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDirName_Unique(t *testing.T) {
	long := strings.Repeat("x", 300)
	owners := []string{
		"", "local", "_local", "alice", "Alice", "ALICE", "token alice", "token-alice", "token Alice", "a/b", "a-b", "../..", ".", "..", "/etc",
		"issuer https://id.example.org alice", "é", "e\u0301", "\x00", "\n", "-alice", "alice.", "con", long, long + "y", "{owner}",
	}
	for _, o := range owners { // an owner cannot choose the encoded name of another
		owners = append(owners, DirName(o))
	}
	seen := map[string]string{}
	for _, o := range owners {
		name := DirName(o)
		if other, ok := seen[strings.ToLower(name)]; ok && other != o {
			t.Errorf("owners %q and %q share %q", o, other, name)
		}
		seen[strings.ToLower(name)] = o
		if name == "" || len(name) > 100 || name[0] == '.' || strings.ContainsFunc(name, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-._", r)
		}) {
			t.Errorf("the directory of %q is %q", o, name)
		}
	}
	if got := DirName("alice"); got != "alice" {
		t.Errorf("the directory of alice is %q", got)
	}
	if got := DirName("token alice"); !strings.HasPrefix(got, "token-alice.") {
		t.Errorf("the directory of token alice is %q", got)
	}
}

func TestSet_Of(t *testing.T) {
	shared, parent, empty := dir(t), dir(t), filepath.Join(dir(t), "empty")
	s, err := Open([]Volume{{Host: shared, Guest: "/in", ReadOnly: true}, {Host: parent, Guest: "/own", PerOwner: true}}, empty)
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]bool{}
	for _, owner := range []string{"alice", "Alice", "", "../" + filepath.Base(shared)} {
		for range 2 {
			got, err := s.Of(owner)
			if err != nil || len(got) != 2 || got[0] != (engine.Mount{Host: shared, Guest: "/in", ReadOnly: true}) {
				t.Fatalf("%q: %+v, %v", owner, got, err)
			}
			if m := got[1]; filepath.Dir(m.Host) != parent || m.Guest != "/own" || m.ReadOnly || m.Frozen {
				t.Errorf("%q: %+v", owner, m)
			}
			info, err := os.Lstat(got[1].Host)
			if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
				t.Errorf("%q: %v, %v", owner, info, err)
			}
			hosts[got[1].Host] = true
		}
	}
	if len(hosts) != 4 {
		t.Errorf("four owners have the directories %v", hosts)
	}
	nobody := s.Ownerless()
	if len(nobody) != 2 || nobody[1] != (engine.Mount{Host: empty, Guest: "/own", Frozen: true}) {
		t.Errorf("machines without an owner have %+v", nobody)
	}
}

// Nothing that somebody leaves in the parent decides what an owner's boxes see.
func TestSet_PlantedInParent(t *testing.T) {
	parent, elsewhere := dir(t), dir(t)
	s, err := Open([]Volume{{Host: parent, Guest: "/own", PerOwner: true}}, filepath.Join(dir(t), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Of("bob"); err != nil {
		t.Fatal(err)
	}
	for owner, to := range map[string]string{"alice": elsewhere, "carol": "bob", "dave": "missing", "erin": "/"} {
		if err := os.Symlink(to, filepath.Join(parent, owner)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Of(owner); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s is a link to %s: got %+v, %v", owner, to, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Of("file"); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a file in place of the directory: got %v", err)
	}
	if err := os.Chmod(parent, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Of("frank"); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a parent that others can write to: got %v", err)
	}
	if _, err := Open(s.list, s.empty); !errors.Is(err, ErrUnsafe) {
		t.Errorf("open with a parent that others can write to: got %v", err)
	}
}

func TestSet_ManyOwners(t *testing.T) {
	parent := dir(t)
	s, err := Open([]Volume{{Host: parent, Guest: "/own", PerOwner: true}}, filepath.Join(dir(t), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Of("first"); err != nil {
		t.Fatal(err)
	}
	s.owners = 10
	for i := range s.owners - 1 {
		if err := os.Mkdir(filepath.Join(parent, fmt.Sprintf("owner-%d", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Of("another"); err == nil || !strings.Contains(err.Error(), "remove those") {
		t.Errorf("one owner too many: got %v", err)
	}
	if _, err := s.Of("first"); err != nil {
		t.Errorf("an owner with a directory: got %v", err)
	}
}
