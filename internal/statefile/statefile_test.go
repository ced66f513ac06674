package statefile

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type counts map[string]int

func open(t *testing.T) *File[counts] {
	t.Helper()
	return &File[counts]{Path: filepath.Join(t.TempDir(), "state", "counts.json"), Version: 1}
}

func increase(key string) func(*counts) error {
	return func(c *counts) error {
		if *c == nil {
			*c = counts{}
		}
		(*c)[key]++
		return nil
	}
}

func TestReadAndUpdate(t *testing.T) {
	f := open(t)
	if got, err := f.Read(); err != nil || got != nil {
		t.Fatalf("a missing file: %v, %v", got, err)
	}
	if err := f.Update(t.Context(), increase("a")); err != nil {
		t.Fatal(err)
	}
	got, err := f.Read()
	if diff := cmp.Diff(counts{"a": 1}, got); err != nil || diff != "" {
		t.Fatalf("%v, (-want +got)\n%s", err, diff)
	}
	for path, want := range map[string]os.FileMode{f.Path: 0o600, filepath.Dir(f.Path): 0o700, f.Path + ".lock": 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); runtime.GOOS != "windows" && got != want {
			t.Errorf("mode of %s is %v, want %v", filepath.Base(path), got, want)
		}
	}
}

func TestUpdate_ErrorChangesNothing(t *testing.T) {
	f := open(t)
	if err := f.Update(t.Context(), increase("a")); err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	err := f.Update(t.Context(), func(c *counts) error { (*c)["a"] = 100; return no })
	if !errors.Is(err, no) {
		t.Errorf("got %v, want %v", err, no)
	}
	if got, err := f.Read(); err != nil || got["a"] != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	entries, err := os.ReadDir(filepath.Dir(f.Path))
	if err != nil || len(entries) != 2 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

func TestFile_Unusable(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		mode          os.FileMode
		want          string
	}{
		{"damaged", `{"version":1,"data":{`, 0o600, "the file is damaged"},
		{"empty", "", 0o600, "the file is damaged"},
		{"of another version", `{"version":7,"data":{}}`, 0o600, "it has version 7, this program supports 1"},
		{"of another type", `{"version":1,"data":[1]}`, 0o600, "the file is damaged"},
		{"too large", `{"version":1,"data":{"` + strings.Repeat("x", maxSize) + `":1}}`, 0o600, "it is larger than"},
		{"writable by others", `{"version":1,"data":{}}`, 0o622, "others can write to it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.mode != 0o600 {
				t.Skip("Windows has no such modes")
			}
			f := open(t)
			if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f.Path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(f.Path, tt.mode); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Read(); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), f.Path) {
				t.Errorf("Read: got %v, want %q and the path", err, tt.want)
			}
			if err := f.Update(t.Context(), increase("a")); err == nil {
				t.Error("Update: no error")
			}
			if b, err := os.ReadFile(f.Path); err != nil || string(b) != tt.content {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
	f := open(t)
	if err := os.MkdirAll(f.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

func TestUpdate_LockWaitEndsWithContext(t *testing.T) {
	f := open(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- f.Update(t.Context(), func(*counts) error { close(inside); <-leave; return nil })
	}()
	<-inside
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
	defer cancel()
	if err := f.Update(ctx, increase("a")); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
	close(leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// Concurrent updates of several processes with several goroutines each lose nothing.
func TestUpdate_SeveralProcesses(t *testing.T) {
	const processes, goroutines, updates = 3, 3, 10
	if path := os.Getenv("STATEFILE_TEST_PATH"); path != "" {
		f := &File[counts]{Path: path, Version: 1}
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for range updates {
					if err := f.Update(t.Context(), increase(strconv.Itoa(g))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return
	}
	f := open(t)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { // sees whole documents only
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if _, err := f.Read(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestUpdate_SeveralProcesses$")
			cmd.Env = append(os.Environ(), "STATEFILE_TEST_PATH="+f.Path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	close(stop)
	reader.Wait()
	got, err := f.Read()
	want := counts{"0": processes * updates, "1": processes * updates, "2": processes * updates}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", err, diff)
	}
}
