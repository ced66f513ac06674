//go:build linux

package attack

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The traces that the attacks "volume/read-only" and "volume/setuid" would leave are noticed.
func TestControl_VolumesThatWereBrokenOutOf(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"v", "ro", "outside"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ro/file", "ro/new", "outside/new", "v/one", "outside/secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("changed\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "v/one"), filepath.Join(dir, "v/two")); err != nil {
		t.Fatal(err)
	}
	want := []string{"the read-only volume was changed", "the read-only volume has 2 files", "new appeared outside", "is a link to a file elsewhere"}
	if os.Geteuid() == 0 {
		if err := os.Chmod(filepath.Join(dir, "v/one"), 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(filepath.Join(dir, "v/device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err == nil {
			want = append(want, "is a device node")
		}
		if hostRoot() {
			want = append(want, "is a setuid file of root")
		}
	}
	r := judged(t, func(_ context.Context, tr *trial) error {
		tr.checkVolumes(dir)
		return nil
	})
	for _, w := range want {
		expectBroken(t, r, w)
	}
}

// An owner's directory that a box has opened ("volume/owner-mode") is noticed.
func TestControl_OwnersDirectoryThatIsOpen(t *testing.T) {
	for _, mode := range []os.FileMode{0o701, 0o750} {
		parent := t.TempDir()
		if err := os.Mkdir(filepath.Join(parent, "attacker"), mode); err != nil {
			t.Fatal(err)
		}
		r := judged(t, func(_ context.Context, tr *trial) error {
			tr.checkOwners(parent)
			return nil
		})
		expectBroken(t, r, "the directory of attacker is open")
	}
}

// A server that starts although it must not ("local-user/open-state-directory" and
// others) is noticed.
func TestControl_ServerThatStarts(t *testing.T) {
	program := filepath.Join(t.TempDir(), "glovebox")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"local-user/open-state-directory", "local-user/squatted-port"} {
		cfg := unisolated(t, nil)
		cfg.Program = program
		expectBroken(t, run(t, cfg, id), "the server starts")
	}
}

// Programs in place of glovebox that do what the attacks look for are noticed.
func TestControl_NaivePrograms(t *testing.T) {
	for id, c := range map[string]struct{ script, want string }{
		"local-user/planted-links":        {`echo x > "$TMPDIR/glovebox.pid"`, "the file that the links led to has changed"},
		"local-user/path-of-another-user": {`python3 -c 1`, "ran as 0"},
		"state/replaced-agent":            {`d="$GLOVEBOX_STATE_DIR/agent"; mkdir -p "$d"; test -e "$d/guest-1" || head -c 100 /dev/zero > "$d/guest-1"; echo "$4"`, "the replaced agent stays"},
		"files/copied-links":              {`cat "${3%%:*}/honest" "${3%%:*}/absolute"`, "contains the secret"},
		"files/out-links":                 {`out="${3#d:}"; cd "$out"; echo x > honest; ln -sf ../beside up; echo x > up`, "a file beside the directory was changed"},
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			if id == "local-user/path-of-another-user" && !hostRoot() {
				t.Skip("needs root")
			}
			cfg := unisolated(t, nil)
			cfg.Program = filepath.Join(t.TempDir(), "glovebox")
			if err := os.WriteFile(cfg.Program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			expectBroken(t, run(t, cfg, id), c.want)
		})
	}
}

// Sockets that other users can reach ("local-user/sockets") are noticed.
func TestControl_OpenSockets(t *testing.T) {
	for network, c := range map[string]struct{ address, want string }{
		"unix": {"@glovebox-test-" + newNonce(), "listens on the Unix socket @"},
		"tcp":  {"0.0.0.0:0", "listens on tcp"},
		"udp":  {"0.0.0.0:0", "listens on udp"},
	} {
		t.Run(network, func(t *testing.T) {
			var open io.Closer
			var err error
			if network == "udp" {
				open, err = net.ListenPacket(network, c.address)
			} else {
				open, err = net.Listen(network, c.address)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			r := judged(t, func(_ context.Context, tr *trial) error {
				tr.checkSockets(os.Getpid())
				return nil
			})
			expectBroken(t, r, c.want)
		})
	}
}
