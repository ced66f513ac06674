package config

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// owners writes a file of owners in a directory of its own.
func owners(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "owners.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadOwners_Duplicates(t *testing.T) {
	const alice = `{"tools": "a.json", "rules": ["deny a"]}`
	for text, key := range map[string]string{
		`{"owners": {"token a": ` + alice + `, "token a": {"tools": "a.json"}}}`:             "token a",
		`{"owners": {"token a": ` + alice + `, "token \u0061": {"tools": "a.json"}}}`:        "token a",
		`{"owners": {"token a": ` + alice + `}, "owners": {"token b": {"tools": "b"}}}`:      "owners",
		`{"owners": {"token a": ` + alice + `}, "OwnerS": {"token b": {"tools": "b"}}}`:      "OwnerS",
		`{"owners": {"token a": ` + alice + `}, "owner\u017f": {"token b": {"tools": "b"}}}`: "ownerſ",
		`{"owners": {"token a": {"tools": "a", "rules": ["deny a"], "rules": []}}}`:          "rules",
		`{"owners": {"token a": {"tools": "a", "rules": ["deny a"], "Rules": []}}}`:          "Rules",
	} {
		if got, err := ReadOwners(owners(t, text)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the key %q occurs twice", key)) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	got, err := ReadOwners(owners(t, `{"owners": {"token a": `+alice+`, "token A": `+alice+`, /* and */ "token b": `+alice+`,}}`))
	if err != nil || len(got) != 3 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestReadOwners_FileOfOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("access control lists protect files here")
	}
	const text = `{"owners": {"token a": {"tools": "a.json", "rules": ["allow *"]}}}`
	for name, change := range map[string]func(path string) error{
		"everybody can write it":     func(path string) error { return os.Chmod(path, 0o666) },
		"everybody can replace it":   func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
		"it belongs to another user": func(path string) error { return os.Chown(path, 12345, 12345) },
		"a link of another user leads to it": func(path string) error {
			to := path + ".real"
			if err := os.Rename(path, to); err != nil {
				return err
			}
			if err := os.Symlink(to, path); err != nil {
				return err
			}
			return os.Lchown(path, 12345, 12345)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && strings.Contains(name, "another user") {
				t.Skip("only root can give a file away")
			}
			path := owners(t, text)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			got, err := ReadOwners(path)
			if err == nil || !strings.Contains(err.Error(), "other users could change which tools") || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	path := owners(t, text)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadOwners(path); err != nil || len(got) != 1 {
		t.Errorf("a file that others may read: got %v, %v", got, err)
	}
}
