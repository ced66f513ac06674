package secret

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

func loadOne(t *testing.T, d Definition) *Secrets {
	t.Helper()
	s, err := load([]Definition{d}, func(name string) (string, bool) { return apiValue, name == "TOKEN" })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSwap_OnlyListedHeader(t *testing.T) {
	s := loadOne(t, Definition{Name: "api", Hosts: []string{apiHost}, Headers: []string{"authorization", "X-Api-Key"}, Env: "TOKEN"})
	h := s.of("").hosts[apiHost]
	p := h.secrets[0].placeholder(masterKey, "", "box1")
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for _, c := range []struct{ name, value, want string }{
		{"Authorization", p, apiValue},
		{"Authorization", "Bearer " + p, "Bearer " + apiValue},
		{"Authorization", "token " + p, "token " + apiValue},
		{"Authorization", `Token token="` + p + `"`, `Token token="` + apiValue + `"`},
		{"X-Api-Key", p, apiValue},
		{"Authorization", basic("user:" + p), basic("user:" + apiValue)},
		{"Authorization", basic(p + ":"), basic(apiValue + ":")},
		{"Authorization", basic(p + ":" + p), basic(apiValue + ":" + apiValue)},
		{"Authorization", "basic  " + basic(p)[6:], "basic " + basic(apiValue)[6:]},
		{"X-Other", p, p},
		{"Cookie", "a=" + p, "a=" + p},
		{"Authorization", "Bearer " + p + "x", "Bearer " + p + "x"},
		{"Authorization", "Bearer x" + p, "Bearer x" + p},
		{"Authorization", "Bearer " + p[:len(p)-1], "Bearer " + p[:len(p)-1]},
		{"Authorization", "Bearer " + p[:len(p)-1] + "!", "Bearer " + p[:len(p)-1] + "!"},
		{"Authorization", "Bearer " + strings.ToUpper(p), "Bearer " + strings.ToUpper(p)},
		{"Authorization", p + " " + p + " " + p, p + " " + p + " " + p},
		{"Authorization", "Basic !" + p, "Basic !" + apiValue}, // no Basic, but whole
		{"Authorization", "Digest " + base64.StdEncoding.EncodeToString([]byte(p)), "Digest " + base64.StdEncoding.EncodeToString([]byte(p))},
	} {
		header := http.Header{}
		header.Set(c.name, c.value)
		used := h.swap(header, masterKey, "")
		if got := header.Get(c.name); got != c.want || (len(used) > 0) != (c.want != c.value) {
			t.Errorf("swap of %s: %q = %q and secrets %v, want %q", c.name, c.value, got, used, c.want)
		}
	}
}

func TestPlaceholder_IsOfOwnerAndSecret(t *testing.T) {
	both, err := load([]Definition{
		{Name: "a", Owners: []string{Everyone}, Hosts: []string{apiHost}, Env: "TOKEN"},
		{Name: "b", Owners: []string{Everyone}, Hosts: []string{gitHost}, Env: "TOKEN"},
	}, func(string) (string, bool) { return apiValue, true })
	if err != nil {
		t.Fatal(err)
	}
	a, b := both.of("alice").all[0], both.of("alice").all[1]
	p := a.placeholder(masterKey, "alice", "box1")
	for name, c := range map[string]struct {
		s     *secret
		owner string
		key   []byte
		ok    bool
	}{
		"the same owner":     {a, "alice", masterKey, true},
		"another owner":      {a, "bob", masterKey, false},
		"another secret":     {b, "alice", masterKey, false},
		"another master key": {a, "alice", bytes.Repeat([]byte{8}, keySize), false},
	} {
		if _, ok := c.s.swap(p, c.key, c.owner, newProofs()); ok != c.ok {
			t.Errorf("swap for %s: %v, want %v", name, ok, c.ok)
		}
	}
	if q := a.placeholder(masterKey, "alice", "box2"); q == p {
		t.Error("two boxes have the same placeholder")
	} else if _, ok := a.swap(q, masterKey, "alice", newProofs()); !ok {
		t.Error("the placeholder of a fork's original is not replaced")
	}
	if !strings.HasPrefix(p, "gbx-secret-a-") || len(p) != len("gbx-secret-a-")+26 {
		t.Errorf("the placeholder is %q", p)
	}
	like := loadOne(t, Definition{Name: "like", Hosts: []string{apiHost}, Like: "ghp_", Env: "TOKEN"}).of("").all[0]
	if p := like.placeholder(masterKey, "", "box1"); !strings.HasPrefix(p, "ghp_") {
		t.Errorf("a placeholder like ghp_ is %q", p)
	} else if v, ok := like.swap("Bearer "+p, masterKey, "", newProofs()); !ok || v != "Bearer "+apiValue {
		t.Errorf("swap of it = %q", v)
	}
}

// Nothing but placeholders may change.
func FuzzSwap(f *testing.F) {
	s, err := load([]Definition{{Name: "api", Hosts: []string{apiHost}, Env: "TOKEN"}}, func(string) (string, bool) { return apiValue, true })
	if err != nil {
		f.Fatal(err)
	}
	secret := s.of("").all[0]
	p := secret.placeholder(masterKey, "", "box1")
	f.Add("Bearer ", "")
	f.Add("gbx-secret-api-", " gbx-secret-api-aaaaaaaabbbbbbbbbbbbbbbbbb")
	f.Add("Basic Og==", "")
	f.Fuzz(func(t *testing.T, before, after string) {
		if got, ok := secret.swap(before+after, masterKey, "", newProofs()); ok || got != before+after {
			t.Fatalf("swap(%q) without a placeholder = %q", before+after, got)
		}
		got, ok := secret.swap(before+" "+p+" "+after, masterKey, "", newProofs())
		if !ok || got != before+" "+apiValue+" "+after {
			t.Fatalf("swap(%q) = %q", before+" "+p+" "+after, got)
		}
		encoded := "Basic " + base64.StdEncoding.EncodeToString([]byte(before+":"+p))
		want := "Basic " + base64.StdEncoding.EncodeToString([]byte(before+":"+apiValue))
		if got, ok := secret.swap(encoded, masterKey, "", newProofs()); !ok || got != want {
			t.Fatalf("swap(%q) = %q, want %q", encoded, got, want)
		}
	})
}

func TestLoad_ByOwner(t *testing.T) {
	env := func(string) (string, bool) { return apiValue, true }
	s, err := load([]Definition{
		{Name: "all", Owners: []string{Everyone}, Hosts: []string{"all.example.com"}, As: "ALL", Env: "T"},
		{Name: "alice", Owners: []string{"token alice"}, Hosts: []string{"ALICE.example.com."}, As: "HERS", Env: "T"},
		{Name: "local", Hosts: []string{"local.example.com"}, As: "MINE", Env: "T"},
	}, env)
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string][]string{
		"token alice": {"alice.example.com", "all.example.com"},
		"token bob":   {"all.example.com"},
		"":            {"all.example.com", "local.example.com"},
		Everyone:      {"all.example.com"},
	} {
		if got := s.of(owner).names; !slices.Equal(got, want) {
			t.Errorf("the hosts of owner %q are %v, want %v", owner, got, want)
		}
	}
}

func TestLoad_Refuses(t *testing.T) {
	good := Definition{Name: "api", Hosts: []string{apiHost}, As: "TOKEN", Env: "T"}
	for want, change := range map[string]func(*Definition){
		"lower-case letters":   func(d *Definition) { d.Name = "Api" },
		"single dashes":        func(d *Definition) { d.Name = "a--b" },
		"hosts is empty":       func(d *Definition) { d.Hosts = nil },
		"is a pattern":         func(d *Definition) { d.Hosts = []string{"*.example.com"} },
		"more than a name":     func(d *Definition) { d.Hosts = []string{"https://example.com"} },
		"not a DNS name":       func(d *Definition) { d.Hosts = []string{"127.0.0.1"} },
		"with a dot":           func(d *Definition) { d.Hosts = []string{"localhost"} },
		"name of a header":     func(d *Definition) { d.Headers = []string{"X Key"} },
		"cannot have a secret": func(d *Definition) { d.Headers = []string{"Host"} },
		"neither file nor env": func(d *Definition) { d.Env = "" },
		"both file and env":    func(d *Definition) { d.File = "/x" },
		"has another meaning":  func(d *Definition) { d.As = "LD_PRELOAD" },
		"environment variable": func(d *Definition) { d.As = "A-B" },
		"like":                 func(d *Definition) { d.Like = "a b" },
		"has no variable":      func(d *Definition) { d.Env = "MISSING" },
		"between 8 and 4096":   func(d *Definition) { d.Env = "SHORT" },
		"cannot be in a heade": func(d *Definition) { d.Env = "LINES" },
	} {
		d := good
		change(&d)
		_, err := load([]Definition{d}, func(name string) (string, bool) {
			switch name {
			case "SHORT":
				return "zq9zq9z", true
			case "LINES":
				return "zq9zq9z\nzq9zq9z", true
			}
			return apiValue, name == "T"
		})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "zq9") {
			t.Errorf("Load: %v, want an error with %q and without the value", err, want)
		}
	}
	if _, err := load([]Definition{good, good}, func(string) (string, bool) { return apiValue, true }); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("Load of two definitions with one name: %v", err)
	}
	other := good
	other.Name = "other"
	if _, err := load([]Definition{good, other}, func(string) (string, bool) { return apiValue, true }); err == nil || !strings.Contains(err.Error(), "variable TOKEN") {
		t.Errorf("Load of two definitions with one variable: %v", err)
	}
}

func TestLoad_FileMustBePrivate(t *testing.T) {
	path := writeSecret(t, apiValue)
	d := Definition{Name: "api", Hosts: []string{apiHost}, File: path}
	if _, err := Load([]Definition{d}); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o644, 0o620} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Load([]Definition{d}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Load of a file of mode %04o: %v, want an error with its name", mode, err)
		}
	}
	d.File = filepath.Dir(path)
	if _, err := Load([]Definition{d}); err == nil {
		t.Error("Load of a directory: no error")
	}
}

func TestLoadKey_IsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "egress")
	keys := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			key, err := LoadKey(dir)
			if err != nil {
				t.Error(err)
			}
			keys[i] = key
		})
	}
	wg.Wait()
	for _, k := range keys {
		if len(k) != keySize || !bytes.Equal(k, keys[0]) || bytes.Equal(k, make([]byte, keySize)) {
			t.Fatalf("concurrent loads return %x and %x, want one random key", keys[0], k)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the directory has %v (error %v), want the key alone", entries, err)
	}
	path := filepath.Join(dir, "key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v (error %v), want 0600", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("LoadKey of a damaged key: %v, want an error with its name", err)
	}
}

func TestSettings(t *testing.T) {
	s, err := Load(definitions(t))
	if err != nil {
		t.Fatal(err)
	}
	i := New(Options{Key: masterKey}, s)
	env, ca := i.Settings(box)
	if len(env) != 2 || !strings.HasPrefix(env["API_TOKEN"], "gbx-secret-api-") || !strings.HasPrefix(env["GIT_TOKEN"], "gbx-secret-git-") {
		t.Errorf("the variables are %v", env)
	}
	for _, v := range env {
		checkClean(t, "a placeholder", v)
	}
	if again, sameCA := i.Settings(box); again["API_TOKEN"] != env["API_TOKEN"] || sameCA != ca || !strings.Contains(ca, "CERTIFICATE") {
		t.Error("a second call returns other settings")
	}
	if other, otherCA := i.Settings(egress.Box{Owner: box.Owner, ID: "box2"}); other["API_TOKEN"] == env["API_TOKEN"] || otherCA == ca {
		t.Error("another box has the same settings")
	}
	if none, noCA := i.Settings(egress.Box{Owner: "token bob", ID: "box3"}); len(none) != 0 || noCA != "" {
		t.Errorf("an owner without secrets gets %v and %q", none, noCA)
	}
	if !i.Wants(box, apiHost) || i.Wants(box, "sub."+apiHost) || i.Wants(box, "other.example.com") || i.Wants(egress.Box{Owner: "token bob"}, apiHost) {
		t.Error("Wants is not exactly the owner's hosts")
	}
	empty, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	i.Replace(empty)
	if i.Wants(box, apiHost) {
		t.Error("Wants a host whose secret was removed")
	}
	if err := i.Serve(t.Context(), box, apiHost, 443, closedConn(t), nil, nil); !errors.Is(err, ErrNotWanted) {
		t.Errorf("Serve for a host without a secret: %v, want %v", err, ErrNotWanted)
	}
}
