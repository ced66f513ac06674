package box

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
)

// silentDir returns a directory whose file system does not answer until the test ends: one of
// FUSE without a program behind it, which nobody else sees. An ordinary user may not mount it:
// then checks has a stand-in for a name.
func silentDir(t *testing.T, checks *volumeChecks, name string) string {
	t.Helper()
	dir, err := silentMount(t)
	if err == nil {
		return dir
	}
	t.Logf("%s has a stand-in: %v", name, err)
	dir = t.TempDir()
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	next := checks.stat
	if next == nil {
		next = os.Stat
	}
	checks.stat = func(path string) (fs.FileInfo, error) {
		if path == dir {
			<-ended
		}
		return next(path)
	}
	return dir
}

func silentMount(t *testing.T) (dir string, err error) {
	conn, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open /dev/fuse: %w", err)
	}
	t.Cleanup(func() { unix.Close(conn) }) // ends what waits for an answer
	config, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(config)
	for key, value := range map[string]string{"fd": fmt.Sprint(conn), "rootmode": "40000", "user_id": "0", "group_id": "0"} {
		if err := unix.FsconfigSetString(config, key, value); err != nil {
			return "", fmt.Errorf("fsconfig %s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return "", fmt.Errorf("make the file system: %w", err)
	}
	mount, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("fsmount: %w", err)
	}
	t.Cleanup(func() { unix.Close(mount) })
	return fmt.Sprintf("/proc/self/fd/%d", mount), nil
}

// ownVolumes has the volume of each owner that has one.
type ownVolumes map[Owner]string

func (v ownVolumes) Of(o Owner) ([]engine.Mount, error) { return v.Peek(o), nil }
func (v ownVolumes) Peek(o Owner) []engine.Mount {
	if v[o] == "" {
		return nil
	}
	return []engine.Mount{{Host: v[o], Guest: "/mine"}}
}

// TestStart_SilentVolume: boxes whose volume hangs wait without a place among the starts, which
// boxes of others need, and with one goroutine for a directory.
func TestStart_SilentVolume(t *testing.T) {
	f := newFixture(t, nil)
	f.machines.starts = fairslots.New(1)
	checks := &f.machines.volumeChecks
	volumes := ownVolumes{"bob": silentDir(t, checks, "bob"), "carol": silentDir(t, checks, "carol")}
	f.env.parts.Volumes = volumes
	running := func() int {
		checks.mu.Lock()
		defer checks.mu.Unlock()
		return len(checks.running)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, owner := range []Owner{"bob", "carol"} { // an owner without a start has a place of its own
		for i := range 3 {
			wg.Go(func() {
				if _, _, err := f.Session(ctx, owner, SessionOptions{ID: fmt.Sprint(i)}); err == nil {
					t.Errorf("a box of %s starts", owner)
				}
			})
		}
	}
	eventually(t, "the checks hang", func() bool { return running() == 2 })
	soon, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	_, hold, err := f.Session(soon, "alice", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatalf("a box of somebody else: %v", err)
	}
	hold.Release()

	// The checks have hung for long. Others read them without a lock.
	checks.mu.Lock()
	for name, check := range checks.running {
		checks.running[name] = &volumeCheck{begun: check.begun.Add(-checkPatience), ended: check.ended}
	}
	checks.mu.Unlock()
	_, _, err = f.Session(soon, "bob", SessionOptions{ID: "late"})
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != CodeStartFailed || !strings.Contains(e.Msg, "the volume /mine cannot be used, since its directory on the server does not answer") || strings.Contains(e.Msg+e.Hint, volumes["bob"]) {
		t.Errorf("then, a start gets %v", err)
	}
	if n := running(); n != 2 {
		t.Errorf("%d checks hang at two directories", n)
	}
}

// TestVolumeChecks_Bounded: a check holds a thread, so their number has a bound.
func TestVolumeChecks_Bounded(t *testing.T) {
	var l volumeChecks
	hang := make(chan struct{})
	for i := range maxChecks {
		l.begin(fmt.Sprint(i), func() (fs.FileInfo, error) { <-hang; return nil, nil })
	}
	if _, err := l.do(t.Context(), "more", time.Minute, func() (fs.FileInfo, error) { return nil, nil }); !errors.Is(err, errNoAnswer) {
		t.Errorf("one more: got %v", err)
	}
	close(hang)
	eventually(t, "the checks have ended", func() bool {
		_, err := l.do(t.Context(), "more", time.Minute, func() (fs.FileInfo, error) { return nil, nil })
		return err == nil
	})
}
