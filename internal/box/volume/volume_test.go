package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/owned"
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
			if m := got[1]; filepath.Dir(filepath.Dir(m.Host)) != parent || m.Guest != "/own" || m.ReadOnly || m.Frozen {
				t.Errorf("%q: %+v", owner, m)
			}
			for _, d := range []string{got[1].Host, filepath.Dir(got[1].Host)} {
				info, err := os.Lstat(d)
				if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
					t.Errorf("%q: %s: %v, %v", owner, d, info, err)
				}
			}
			if peeked := s.Peek(owner); !slices.Equal(peeked, got) {
				t.Errorf("%q: peek returns %+v, want %+v", owner, peeked, got)
			}
			hosts[got[1].Host] = true
		}
	}
	if len(hosts) != 4 {
		t.Errorf("four owners have the directories %v", hosts)
	}
	ownerless := s.Ownerless()
	if len(ownerless) != 2 || ownerless[1] != (engine.Mount{Host: empty, Guest: "/own", Frozen: true}) {
		t.Errorf("machines without an owner have %+v", ownerless)
	}
}

// Peek creates nothing and has nothing scanned.
func TestSet_Peek(t *testing.T) {
	parent := dir(t)
	s, err := Open([]Volume{{Host: parent, Guest: "/own", PerOwner: true, Quota: 1 << 20}}, filepath.Join(dir(t), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	if m := s.Peek("alice"); len(m) != 1 || m[0] != (engine.Mount{Host: filepath.Join(parent, "alice", "data"), Guest: "/own"}) {
		t.Errorf("got %+v", m)
	}
	if list, err := os.ReadDir(parent); err != nil || len(list) > 0 || len(s.dirs) > 0 {
		t.Errorf("a peek left %v in the parent and %d directories to scan, %v", list, len(s.dirs), err)
	}
}

// A box owns what it sees of the owner's directory, but cannot open it to other users.
func TestSet_BoxChangesModes(t *testing.T) {
	parent := dir(t)
	s, err := Open([]Volume{{Host: parent, Guest: "/own", PerOwner: true}}, filepath.Join(dir(t), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Of("alice")
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o755, 0o777, 0o000} {
		if err := os.Chmod(got[0].Host, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Of("alice"); err != nil {
			t.Errorf("mode %o: the next box does not start: %v", mode, err)
		}
		if info, err := os.Stat(filepath.Join(parent, "alice")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("mode %o: the directory of the owner is open: %v, %v", mode, info, err)
		}
	}
	for _, mode := range []os.FileMode{0o711, 0o750} { // of somebody on the host
		if err := os.Chmod(filepath.Join(parent, "alice"), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Of("alice"); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "chmod 700") {
			t.Errorf("the directory of the owner with mode %o: got %v", mode, err)
		}
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
	if err := errors.Join(os.Remove(filepath.Join(parent, "bob/data")), os.Symlink(elsewhere, filepath.Join(parent, "bob/data"))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Of("bob"); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link in place of the directory that boxes see: got %v", err)
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
	// Also where no other user has a process now: one may begin later.
	owned.SetOnlyUser(func() bool { return true })
	t.Cleanup(func() { owned.SetOnlyUser(nil) })
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
