//go:build linux

package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// childEnv tells a process of this test program what to do, instead of the tests.
const childEnv = "GLOVEBOX_TEST_SNAPSHOT_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := child(strings.Split(what, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(proctest.Main(m))
}

// child does, with the store in args[1], what args[0] says.
func child(args []string) error {
	cfg := Config{Dir: args[1]}
	if args[0] == "write" || args[0] == "extend" || args[0] == "drop" {
		cfg.step = func(step string) { dieAt(step, args[3]) }
	}
	s, err := Open(cfg)
	if err != nil {
		return err
	}
	switch args[0] {
	case "hold": // the record args[2] until its input ends
		c, err := s.Acquire(args[2])
		if err != nil {
			return err
		}
		defer c.Release()
	case "read":
		_, _, release, err := s.Read(args[2])
		if err != nil {
			return err
		}
		defer release()
	case "create": // a record, as hold
		c, err := s.Create(box("created"))
		if err != nil {
			return err
		}
		defer c.Release()
	case "write": // to args[2], and be killed at args[3]
		c, err := s.Acquire(args[2])
		if err != nil {
			return err
		}
		return c.Write(context.Background(), usedOn(20), 8, func(ctx context.Context, dir string) error {
			if err := fill("new")(ctx, dir); err != nil {
				return err
			}
			dieAt("halfway", args[3])
			return fill("new data")(ctx, dir)
		})
	case "extend": // args[2], and be killed at args[3]
		c, err := s.Acquire(args[2])
		if err != nil {
			return err
		}
		return c.Extend(context.Background(), 8, func(ctx context.Context, dir string) error {
			dieAt("halfway", args[3])
			return addFiles(ctx, dir)
		})
	case "drop": // the data of args[2], and be killed at args[3]
		c, err := s.Acquire(args[2])
		if err != nil {
			return err
		}
		c.AllowDrop(agrees)
		s.dropCopies(context.Background(), []*item{s.readItem(args[2])})
		return nil
	case "contend": // for the records args[2:]
		return contend(s, args[2:])
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func dieAt(step, where string) {
	if step == where {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// contend acquires records and checks that no other process has them.
func contend(s *Store, ids []string) error {
	for range 40 {
		for _, id := range ids {
			c, err := s.Acquire(id)
			if errors.Is(err, ErrLeased) {
				continue
			}
			if err != nil {
				return err
			}
			mark := filepath.Join(s.dir, id)
			f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("two leases of one record: %w", err)
			}
			f.Close()
			if err := c.Update(c.Meta()); err != nil {
				return err
			}
			if err := errors.Join(os.Remove(mark), c.Release()); err != nil {
				return err
			}
		}
		if _, err := s.Sweep(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// start starts a child that does what args say.
func start(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	return cmd
}

// startReady starts a child and returns when it is ready, and how to kill it.
func startReady(t *testing.T, args ...string) (kill func()) {
	t.Helper()
	cmd := start(t, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
		in.Close()
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child %q: %q, %v", args, line, err)
	}
	return kill
}

func TestStore_SharedByProcesses(t *testing.T) {
	s := open(t, Config{})
	id := stored(t, s, box("a"), "data")
	refused := func() {
		t.Helper()
		_, err := s.Acquire(id)
		wantErr(t, "acquire", err, ErrLeased)
		wantErr(t, "delete", s.Delete(id), ErrLeased)
		if got := list(t, s); len(got) != 1 || !got[0].Leased {
			t.Errorf("listed: %+v", got)
		}
	}
	kill := startReady(t, "hold", s.dir, id)
	refused()
	_, _, _, err := s.Read(id)
	wantErr(t, "read", err, ErrLeased)
	kill()
	if got := list(t, s); len(got) != 1 || got[0].Leased {
		t.Errorf("listed: %+v", got)
	}

	kill = startReady(t, "read", s.dir, id)
	refused()
	_, _, release, err := s.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	kill()
	refused()
	release()
	c, err := s.Acquire(id)
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Dir()); got != "data" {
		t.Errorf("acquired record: %q", got)
	}
	// Children of this process must not keep what it gives up.
	kill = startReady(t, "create", s.dir)
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(id); err != nil {
		t.Fatal(err)
	}
	if removed := sweep(t, s); len(removed) > 0 {
		t.Errorf("swept a living box of another process: %+v", removed)
	}
	kill()
	if removed := sweep(t, s); len(removed) != 1 || removed[0].Why != Lost || removed[0].Name != "created" {
		t.Errorf("swept %+v", removed)
	}
}

func TestAcquire_ByManyProcesses(t *testing.T) {
	s := open(t, Config{})
	args := []string{"contend", s.dir}
	for range 5 {
		args = append(args, stored(t, s, box("a"), "data"))
	}
	var cmds []*exec.Cmd
	for range 3 {
		cmd := start(t, args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	if err := contend(s, args[2:]); err != nil {
		t.Error(err)
	}
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if got := list(t, s); len(got) != 5 {
		t.Errorf("left: %+v", got)
	}
}

// killed runs a child, which has to kill itself.
func killed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	err := cmd.Run()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("child: %v", err)
	}
}

// TestWrite_Killed kills a process at each step of a write.
func TestWrite_Killed(t *testing.T) {
	for _, step := range []string{"made", "halfway", "written", "described", "renamed"} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s first=%t", step, first), func(t *testing.T) {
				now := day(25)
				s := open(t, Config{MaxAge: 20 * 24 * time.Hour, MaxBytes: 16, Now: func() time.Time { return now }})
				c := create(t, s, usedOn(10))
				want := c.Meta()
				if !first {
					write(t, c, usedOn(10), "old data")
					want = c.Meta()
				}
				id := c.ID()
				c.Release()

				killed(t, start(t, "write", s.dir, id, step))
				committed := step == "renamed"
				got := list(t, s)
				if len(got) != 1 || got[0].Leased {
					t.Fatalf("listed: %+v", got)
				}
				if committed {
					want = usedOn(20)
					want.Written = got[0].Written
				}
				if !reflect.DeepEqual(got[0].Meta, want) {
					t.Errorf("got  %+v\nwant %+v", got[0].Meta, want)
				}
				// The space that the dead process had reserved is free.
				other := create(t, s, usedOn(20))
				write(t, other, usedOn(20), "12345678")

				removed := sweep(t, s)
				if first && !committed {
					if len(removed) != 1 || removed[0].Why != Lost {
						t.Errorf("removed %+v", removed)
					}
					return
				}
				if len(removed) > 0 {
					t.Errorf("removed %+v", removed)
				}
				c, err := s.Acquire(id)
				if err != nil {
					t.Fatal(err)
				}
				wantData := "old data"
				if committed {
					wantData = "new data"
				}
				if got := content(t, c.Dir()); got != wantData || !reflect.DeepEqual(c.Meta(), want) {
					t.Errorf("acquired record: %q, %+v", got, c.Meta())
				}
				all := tree(t, filepath.Dir(c.Dir()))
				n := len(slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, dataPrefix) }))
				if n != 2 { // one directory, one file
					t.Errorf("left: %q", tree(t, s.dir))
				}
				write(t, c, usedOn(21), "newer")
				if got := content(t, c.Dir()); got != "newer" {
					t.Errorf("written: %q", got)
				}
			})
		}
	}
}

// data is tree without the unsynced files.
func data(t testing.TB, dir string) []string {
	return slices.DeleteFunc(tree(t, dir), func(name string) bool { return strings.HasPrefix(filepath.Base(name), metaName) })
}

// TestWrite_AfterKilledWrite writes where another process was killed, before any sweep.
func TestWrite_AfterKilledWrite(t *testing.T) {
	s := open(t, Config{})
	id := stored(t, s, usedOn(10), "old data")
	for _, step := range []string{"halfway", "described", "renamed"} {
		_ = start(t, "write", s.dir, id, step).Run() // is killed
	}
	c, err := s.Acquire(id)
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Dir()); got != "new data" {
		t.Errorf("acquired record: %q", got)
	}
	write(t, c, usedOn(21), "newer")
	dir := filepath.Dir(c.Dir())
	if got, want := data(t, dir), []string{filepath.Base(c.Dir()), filepath.Base(c.Dir()) + "/pages", savedName}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}

// TestReservation_OfKilledWriter acquires a record whose writer was killed.
func TestReservation_OfKilledWriter(t *testing.T) {
	s := open(t, Config{MaxBytes: 10})
	c := create(t, s, usedOn(10))
	c.Release()
	_ = start(t, "write", s.dir, c.ID(), "halfway").Run() // is killed; it wanted 8 bytes
	if _, err := s.Acquire(c.ID()); err != nil {
		t.Fatal(err)
	}
	write(t, create(t, s, usedOn(11)), usedOn(11), "123456789")
}

// TestWrite_SyncFails: the disk fails after the new data are in place.
func TestWrite_SyncFails(t *testing.T) {
	var c *Lease
	fails := false
	s := open(t, Config{step: func(step string) {
		if step == "renamed" && fails {
			c.dir.Close()
		}
	}})
	c = create(t, s, usedOn(10))
	write(t, c, usedOn(10), "old")
	fails = true
	if err := c.Write(t.Context(), usedOn(11), 4, fill("new!")); err == nil {
		t.Error("no error")
	}
	if got := content(t, c.Dir()); got != "new!" || !c.Meta().Used.Equal(day(11)) {
		t.Errorf("%q, %+v", got, c.Meta())
	}
	c.Release()
	c, err := s.Acquire(c.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Dir()); got != "new!" {
		t.Errorf("acquired record: %q", got)
	}
}

// TestWrite_EngineFails: the engine fails to write the data.
func TestWrite_EngineFails(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, usedOn(10))
	write(t, c, usedOn(10), "old data")
	want, dir := c.Meta(), c.Dir()
	before := data(t, s.dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	for name, write := range map[string]func(context.Context, string) error{
		"error":  func(context.Context, string) error { return why },
		"ctx":    func(ctx context.Context, dir string) error { return context.Cause(ctx) },
		"half":   func(ctx context.Context, dir string) error { return errors.Join(fill("half")(ctx, dir), why) },
		"no dir": func(_ context.Context, dir string) error { return errors.Join(os.Remove(dir), why) },
	} {
		wantErr(t, name, c.Write(ctx, usedOn(20), 1, write), why)
		if !reflect.DeepEqual(c.Meta(), want) || c.Dir() != dir || content(t, dir) != "old data" {
			t.Errorf("%s: %+v", name, c.Meta())
		}
		after := data(t, s.dir)
		if !slices.Equal(before, after) {
			t.Errorf("%s: left %q", name, after)
		}
	}
	for name, write := range map[string]func(context.Context, string) error{
		"are not there":   func(_ context.Context, dir string) error { return os.Remove(dir) },
		"are for anybody": func(_ context.Context, dir string) error { return os.Chmod(dir, 0o755) },
	} {
		if err := c.Write(t.Context(), usedOn(20), 1, write); err == nil {
			t.Errorf("data that %s were taken", name)
		}
	}
	if content(t, c.Dir()) != "old data" {
		t.Error("the old data are gone")
	}
}

// spaceEnv says that this process has mounts of its own.
const spaceEnv = "GLOVEBOX_TEST_SNAPSHOT_MOUNTS"

// TestWrite_FullDisk runs in a mount namespace, with disks of its own.
func TestWrite_FullDisk(t *testing.T) {
	if os.Getenv(spaceEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWrite_FullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), spaceEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) {
			t.Skipf("needs a mount namespace, which this user cannot have here: %v", err)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := syscall.Mount("small", dir, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)

	var evicted []Removal
	cfg := Config{Dir: filepath.Join(dir, "snapshots"), MinFree: 1 << 20}
	s := openBeforeRemove(t, cfg, func(r []Removal) ([]string, error) { evicted = append(evicted, r...); return nil, nil })
	const mB = 1 << 20
	first := stored(t, s, usedOn(2), blob(1*mB))
	second := stored(t, s, usedOn(3), blob(mB/2))
	c := create(t, s, usedOn(4))
	write(t, c, usedOn(4), blob(mB/2))
	if len(evicted) > 0 {
		t.Fatalf("evicted %+v", evicted)
	}
	// Some 2 MB are free, one of them has to stay, and its old data stay for now.
	write(t, c, usedOn(4), blob(2*mB-mB/4))
	if len(evicted) != 1 || evicted[0].ID != first {
		t.Errorf("evicted %+v, want %s", evicted, first)
	}
	// Of the 3 MB that the disk has room for, saved snapshots may take a half.
	k := create(t, s, savedOf("alice"))
	kerr := k.Write(t.Context(), savedOf("alice"), 1*mB, fill(blob(1*mB)))
	if full, _ := errors.AsType[*FullError](kerr); full == nil || full.Limit != LimitOwner || full.Max > mB || full.Max < mB/2 {
		t.Errorf("a saved snapshot: got %v, want the limit of the owner, a quarter of the disk", kerr)
	}
	if err := k.Remove(); err != nil {
		t.Error(err)
	}
	err := c.Write(t.Context(), usedOn(4), 2*mB, fill(blob(2*mB)))
	var fullErr *FullError
	if !errors.As(err, &fullErr) || fullErr.Missing <= 0 || fullErr.Missing > 2*mB || len(evicted) != 1 {
		t.Errorf("write without room: %v; evicted %+v", err, evicted)
	}

	// The disk runs full although it was said that it would not.
	want, dataDir := c.Meta(), c.Dir()
	s.cfg.MinFree = 0
	before := data(t, s.dir)
	err = c.Write(t.Context(), usedOn(5), 1, fill(blob(4*mB)))
	wantErr(t, "write to a full disk", err, ErrFull)
	wantErr(t, "write to a full disk", err, syscall.ENOSPC)
	if !reflect.DeepEqual(c.Meta(), want) || c.Dir() != dataDir || len(content(t, dataDir)) != 2*mB-mB/4 {
		t.Errorf("after a write to a full disk: %+v", c.Meta())
	}
	after := data(t, s.dir)
	if !slices.Equal(before, after) {
		t.Errorf("left: %q, before: %q", after, before)
	}

	// Not even a meta has room.
	stuff := filepath.Join(dir, "stuff")
	if err := os.WriteFile(stuff, []byte(blob(8*mB)), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	long := usedOn(6)
	long.Description = strings.Repeat("\x01", maxDescription)
	wantErr(t, "update on a full disk", c.Update(long), ErrFull)
	_, err = s.Create(usedOn(6))
	wantErr(t, "create on a full disk", err, ErrFull)
	wantErr(t, "write on a full disk", c.Write(t.Context(), usedOn(6), 0, fill("x")), ErrFull)
	if !reflect.DeepEqual(c.Meta(), want) {
		t.Errorf("after what a full disk has refused: %+v", c.Meta())
	}
	if got := list(t, s); len(got) != 2 || !reflect.DeepEqual(got[0].Meta, want) {
		t.Errorf("listed: %+v", got)
	}
	// A sweep gives way to what fills the disk.
	s.cfg.MinFree = 1 << 20
	if removed := sweep(t, s); len(removed) != 1 || removed[0].ID != second || removed[0].Why != Evicted {
		t.Errorf("swept %+v", removed)
	}
	if err := c.Update(usedOn(6)); err != nil {
		t.Errorf("update with room: %v", err)
	}
}
