package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// TestTombstones_SharedByServers: concurrent servers, and a later one, know what became
// of each other's boxes.
func TestTombstones_SharedByServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombstones.json")
	c := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
	server := func() *Manager {
		m := New(DefaultConfig(), Parts{Tombstones: path, Now: c.Now})
		m.maintainer.shareTombstones(t.Context())
		return m
	}
	bury := func(m *Manager, id string, reason Reason) key {
		c.add(time.Second)
		k := key{"owner", KindContext, id}
		m.reg.tombstones.add(&Tombstone{ID: id, Name: "name of " + id, Kind: k.kind, Owner: k.owner, Reason: reason, Detail: "detail", At: c.Now(),
			Interpreter: InterpreterPython, Template: "named", Flavor: FlavorLarge, Limits: snapshot.NetLimits{{Of: snapshot.OfBox}}})
		m.maintainer.shareTombstones(t.Context())
		return k
	}
	want := func(m *Manager, what string, k key, reason Reason) {
		t.Helper()
		m.maintainer.shareTombstones(t.Context())
		got := m.reg.tombstones.get(k)
		if reason == "" {
			if got != nil {
				t.Errorf("%s: got %+v, want nothing", what, got)
			}
			return
		}
		if got == nil || got.Reason != reason {
			t.Errorf("%s: got %+v, want %q", what, got, reason)
		}
	}

	a, b := server(), server()
	first := bury(a, "first", ReasonOOM)
	want(b, "the other server", first, ReasonOOM)
	want(server(), "a later server", first, ReasonOOM)
	whole := *a.reg.tombstones.get(first)
	if got := *b.reg.tombstones.get(first); !reflect.DeepEqual(got, whole) {
		t.Errorf("got %+v, want %+v", got, whole)
	}
	for v, i := reflect.ValueOf(whole), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the field %s is not looked at", v.Type().Field(i).Name)
		}
	}
	if b.reg.tombstones.get(key{"another", KindContext, "first"}) != nil {
		t.Error("another owner has the tombstone")
	}

	bury(b, "first", ReasonIdle)
	want(a, "the newer of two, to who has the older", first, ReasonIdle)
	want(b, "the newer of two, to who has it", first, ReasonIdle)

	// The box is there again.
	d := server()
	d.reg.tombstones.remove(first)
	want(d, "what was removed, to who removed it", first, "")
	want(server(), "what was removed, to a later server", first, "")
	want(a, "what was removed, to one that had it", first, "")
	want(d, "what was removed, once all have met", first, "")
	if got := a.reg.tombstones.named(first.owner, "name of first"); got != nil {
		t.Errorf("what was removed, by its name: got %+v", got)
	}
	bury(a, "first", ReasonIdle)
	want(d, "what ended again", first, ReasonIdle)

	second := bury(d, "second", ReasonCrashed)
	c.add(tombstoneAge + time.Second)
	want(server(), "what is too old", second, "")
}

// TestTombstones_CannotBeShared leaves a server with those of its own.
func TestTombstones_CannotBeShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombstones.json")
	const damaged = `{"version": 1, "data": [{"id`
	if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	m := New(DefaultConfig(), Parts{Tombstones: path})
	tomb := &Tombstone{ID: "x", Kind: KindSession, Reason: ReasonOOM, At: m.now()}
	m.reg.tombstones.add(tomb)
	m.maintainer.shareTombstones(t.Context())
	if m.reg.tombstones.get(tomb.key()) != tomb {
		t.Error("the server's own tombstone is gone")
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != damaged {
		t.Errorf("the damaged file is now %q, %v", now, err)
	}
}

// TestShareTombstones_ClosingLogsNothing: a Manager that closes cancels the write under
// way, which is no failure, since it writes once more at the end.
func TestShareTombstones_ClosingLogsNothing(t *testing.T) {
	dir := t.TempDir()
	for cause, want := range map[error]bool{errClosed: false, errors.New("other"): true} {
		var log bytes.Buffer
		m := New(DefaultConfig(), Parts{Tombstones: filepath.Join(dir, "tombstones.json"), Log: slog.New(slog.NewTextHandler(&log, nil))})
		m.reg.tombstones.add(&Tombstone{ID: "x", Kind: KindSession, Reason: ReasonOOM, At: m.now()})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		m.maintainer.shareTombstones(ctx)
		if got := log.Len() > 0; got != want {
			t.Errorf("cancelled because %v: the log has %q", cause, &log)
		}
	}
}

func TestTombstones_SharedOnesAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombstones.json")
	c := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	var last *Manager
	for i := range 2 {
		last = New(DefaultConfig(), Parts{Tombstones: path, Now: c.Now})
		for n := range maxTombstones {
			c.add(time.Millisecond)
			last.reg.tombstones.add(&Tombstone{ID: fmt.Sprint(i, "-", n), Kind: KindSession, Reason: ReasonIdle, At: c.Now()})
		}
		last.maintainer.shareTombstones(t.Context())
	}
	next := New(DefaultConfig(), Parts{Tombstones: path, Now: c.Now})
	next.maintainer.shareTombstones(t.Context())
	for _, m := range []*Manager{last, next} {
		if n := m.reg.tombstones.lru.Len(); n != maxTombstones || m.reg.tombstones.get(key{"", KindSession, "1-0"}) == nil {
			t.Errorf("got %d tombstones, want the %d newest", n, maxTombstones)
		}
	}
}

// TestTombstones_LastForADay: a server that starts within a day after a loss knows of it, and later not.
func TestTombstones_LastForADay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombstones.json")
	c := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	server := func() *Manager {
		m := New(DefaultConfig(), Parts{Tombstones: path, Now: c.Now})
		m.maintainer.shareTombstones(t.Context())
		return m
	}
	k := key{"owner", KindSession, "s"}
	first := server()
	first.reg.tombstones.add(&Tombstone{ID: k.id, Kind: k.kind, Owner: k.owner, Reason: ReasonCrashed, At: c.Now()})
	first.maintainer.shareTombstones(t.Context())
	c.add(24 * time.Hour)
	if got := server().reg.tombstones.get(k); got == nil {
		t.Error("the loss is forgotten within a day")
	}
	c.add(time.Second)
	if got := server().reg.tombstones.get(k); got != nil {
		t.Errorf("the loss is known after a day: %+v", got)
	}
}

// TestTombstones_LargestLimitsFit: an owner whose boxes have the longest limits, in many small
// ones, does not keep the file from being written for the others.
func TestTombstones_LargestLimitsFit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombstones.json")
	var limits snapshot.NetLimits
	for {
		more := append(limits, snapshot.NetLimit{Of: snapshot.OfBox, Allow: []string{"npm"}})
		if more.Check() != nil {
			break
		}
		limits = more
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := New(DefaultConfig(), Parts{Tombstones: path, Now: func() time.Time { return now }})
	for n := range maxTombstones {
		m.reg.tombstones.add(&Tombstone{
			ID: fmt.Sprint("a-box-with-a-long-name-", n), Kind: KindSession, Owner: "mallory", Reason: ReasonCrashed,
			Detail: strings.Repeat("x", 256), At: now, Limits: limits,
		})
	}
	bob := key{"bob", KindSession, "x"}
	m.reg.tombstones.add(&Tombstone{ID: bob.id, Kind: bob.kind, Owner: bob.owner, Reason: ReasonOOM, At: now, Limits: limits})
	m.maintainer.shareTombstones(t.Context())
	other := New(DefaultConfig(), Parts{Tombstones: path, Now: func() time.Time { return now }})
	other.maintainer.shareTombstones(t.Context())
	if got := other.reg.tombstones.get(bob); got == nil || len(got.Limits) != len(limits) {
		t.Errorf("another server has %+v", got)
	}
}

// TestTombstones_OfOneOwnerSpareOthers: an owner who ends many boxes does not push out the
// tombstones of others, on one server or on several.
func TestTombstones_OfOneOwnerSpareOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombstones.json")
	c := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	bob := key{"bob", KindSession, "x"}
	for i := range 2 {
		m := New(DefaultConfig(), Parts{Tombstones: path, Now: c.Now})
		if i == 0 {
			m.reg.tombstones.add(&Tombstone{ID: bob.id, Kind: bob.kind, Owner: bob.owner, Reason: ReasonOOM, At: c.Now()})
		}
		for n := range 2 * maxTombstones {
			c.add(time.Millisecond)
			m.reg.tombstones.add(&Tombstone{ID: fmt.Sprint(i, "-", n), Kind: KindSession, Owner: "alice", Reason: ReasonStopped, At: c.Now()})
		}
		m.maintainer.shareTombstones(t.Context())
		if n := m.reg.tombstones.lru.Len(); m.reg.tombstones.get(bob) == nil || n != maxTombstones {
			t.Errorf("server %d: it has %d tombstones, and of the other owner %+v", i, n, m.reg.tombstones.get(bob))
		}
	}
}
