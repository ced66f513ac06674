//go:build linux

package microsandbox

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

func TestTakeHold_OneOfSeveralGetsTheGuest(t *testing.T) {
	dir, name := t.TempDir(), newName()
	first := random()
	if err := makeGuestDir(dir, name, first, "box-1"); err != nil {
		t.Fatal(err)
	}
	had, err := holdingOf(dir, name)
	if err != nil || had.holder != first || had.id != "box-1" {
		t.Fatalf("got %+v, %v", had, err)
	}
	if err := takeHold(dir, name, had, ""); err != nil {
		t.Fatal(err)
	}
	had, err = holdingOf(dir, name)
	if err != nil || had.holder != "" || had.id != "box-1" || time.Since(had.since) > time.Minute {
		t.Fatalf("a detached guest: got %+v, %v", had, err)
	}
	var got atomic.Int64
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			switch err := takeHold(dir, name, had, random()); {
			case err == nil:
				got.Add(1)
			case !errors.Is(err, fs.ErrNotExist):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if got.Load() != 1 {
		t.Errorf("%d of 8 holders got the guest", got.Load())
	}
}

func TestHoldingOf_WhatIsNoGuest(t *testing.T) {
	dir := t.TempDir()
	if _, err := holdingOf(dir, newName()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: got %v", err)
	}
	name := newName()
	if err := os.MkdirAll(filepath.Join(guestDir(dir, name), "held-..", shareName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := holdingOf(dir, name); !errors.Is(err, errUnheld) {
		t.Errorf("without a holder: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(guestDir(dir, name), detached), []byte("../x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if had, err := holdingOf(dir, name); err == nil {
		t.Errorf("with a malformed id: got %+v", had)
	}
}

// swept returns an engine whose msb knows the guests as running sandboxes, and notes what
// it removes.
func swept(t *testing.T, guests ...string) (*Engine, func() string) {
	t.Helper()
	dir := t.TempDir()
	list := "["
	for i, name := range guests {
		if i > 0 {
			list += ","
		}
		list += `{"name":"` + name + `","status":"Running"}`
	}
	removed := filepath.Join(dir, "removed")
	msb := newClient(program(t, `case $1 in
list) echo '`+list+`]' ;;
remove) echo "$3" >>'`+removed+`' ;;
status) printf '{"name":"%s","status":"Running"}' "$4" ;;
esac`), dir)
	own, err := newHolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.close)
	e := &Engine{msb: msb, dir: dir, holder: own, log: slog.New(slog.DiscardHandler)}
	return e, func() string {
		b, err := os.ReadFile(removed)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(b)
	}
}

func TestSweep_RemovesWhatNobodyHolds(t *testing.T) {
	mine, living, dead, fresh, orphan, lost := newName(), newName(), newName(), newName(), newName(), newName()
	e, removed := swept(t, mine, living, dead, fresh, orphan, lost)
	other, err := newHolder(e.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	for name, holder := range map[string]string{mine: e.holder.name, living: other.name, dead: random(), fresh: other.name, orphan: other.name} {
		if err := makeGuestDir(e.dir, name, holder, "box-1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{fresh, orphan} {
		had, err := holdingOf(e.dir, name)
		if err == nil {
			err = takeHold(e.dir, name, had, "")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * orphanAfter)
	if err := os.Chtimes(filepath.Join(guestDir(e.dir, orphan), detached), old, old); err != nil {
		t.Fatal(err)
	}
	if err := e.sweep(); err != nil {
		t.Fatal(err)
	}
	got := removed()
	for what, c := range map[string]struct {
		name string
		want bool
	}{
		"of this engine": {mine, false}, "of another engine": {living, false}, "just detached": {fresh, false},
		"of a dead engine": {dead, true}, "detached long ago": {orphan, true}, "without files": {lost, true},
	} {
		if has := strings.Contains(got, c.name); has != c.want {
			t.Errorf("a guest %s was removed: %t, want %t", what, has, c.want)
		}
		if _, err := os.Stat(guestDir(e.dir, c.name)); c.want != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("files of a guest %s: got %v", what, err)
		}
	}
}

func TestRecover_RefusesGuestsThatOthersHold(t *testing.T) {
	name := newName()
	e, _ := swept(t, name)
	other, err := newHolder(e.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if err := makeGuestDir(e.dir, name, other.name, "box-1"); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		id, name string
		want     error
	}{
		"held":           {"box-1", name, engine.ErrUnavailable},
		"of another id":  {"box-2", name, engine.ErrInvalid},
		"of no guest":    {"box-1", newName(), engine.ErrGone},
		"with a bad one": {"box-1", "../x", engine.ErrInvalid},
	} {
		var err error
		if sandbox, derr := decode(encode(c.id, c.name)); derr != nil {
			err = derr
		} else {
			_, err = e.take(t.Context(), c.id, sandbox, func() {})
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	if states, err := e.List(t.Context()); err != nil || len(states) != 1 || states[0].ID != "box-1" {
		t.Errorf("list: got %+v, %v", states, err)
	}
}
