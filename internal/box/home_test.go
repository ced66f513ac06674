package box

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/crc32c"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

type dialer struct{ net.Conn }

func (d dialer) Dial(context.Context) (io.ReadWriteCloser, error) { return d.Conn, nil }

// lyingAgent answers hello correctly, and everything else with an archive and result.
func lyingAgent(t *testing.T, archive string, result protocol.BackupResult) *client.Conn {
	t.Helper()
	guest := fakeAgent(t, func() (string, protocol.BackupResult) { return archive, result })
	l, err := client.Open(t.Context(), dialer{guest}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// fakeAgent returns a connection to an agent that answers hello correctly, and everything else
// with what backup returns, which may take its time.
func fakeAgent(t *testing.T, backup func() (archive string, result protocol.BackupResult)) net.Conn {
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	var mu sync.Mutex
	send := func(kind protocol.Type, channel protocol.Channel, op uint32, p []byte) {
		h := protocol.Header{Type: kind, Channel: channel, Op: op, Length: uint32(len(p))}
		mu.Lock()
		defer mu.Unlock()
		there.Write(append(h.Append(nil), p...))
	}
	end := func(op uint32, answer any, err *protocol.Error) {
		raw, _ := json.Marshal(answer)
		p, _ := json.Marshal(protocol.Response{Result: raw, Error: err})
		send(protocol.End, 0, op, p)
	}
	go func() {
		r := protocol.NewReader(there)
		for {
			h, p, err := r.Next()
			if err != nil {
				return
			}
			if h.Type == protocol.Cancel {
				end(h.Op, nil, &protocol.Error{Code: protocol.CodeCancelled, Message: "cancelled"})
			}
			var req protocol.Request
			if h.Type != protocol.Open || json.Unmarshal(p, &req) != nil {
				continue
			}
			if req.Op == protocol.OpHello {
				var hello protocol.Hello
				json.Unmarshal(req.Args, &hello)
				end(h.Op, protocol.HelloResult{Version: protocol.Version, Nonce: hello.Nonce}, nil)
				continue
			}
			go func() {
				archive, result := backup()
				if archive != "" {
					send(protocol.Data, protocol.Body, h.Op, []byte(archive))
				}
				end(h.Op, result, nil)
			}()
		}
	}()
	return here
}

// TestHome_LyingAgent: an agent that lies about the files of its box changes what is stored of
// that box only, within bounds: nothing beside it, none of its earlier states, and no text that
// leads out of a line.
func TestHome_LyingAgent(t *testing.T) {
	hostile := strings.Repeat("a\x1b[31m\n\u202e/../", 20)
	escaping := tarOf(t, "../../up", "/abs", "a/../../../up")
	const earlier = "the archive of an earlier state"
	for name, c := range map[string]struct {
		archive string
		result  protocol.BackupResult
		prev    bool   // there is an earlier state
		want    string // of the stored archive; "": none
	}{
		"unchanged since no archive": {"", protocol.BackupResult{Unchanged: true, Mark: "m"}, false, ""},
		"unchanged, with an archive": {escaping, protocol.BackupResult{Unchanged: true, Mark: "m"}, false, ""},
		"unchanged since another":    {escaping, protocol.BackupResult{Unchanged: true, Mark: "other"}, true, earlier},
		"names that lead elsewhere":  {escaping, protocol.BackupResult{Mark: "m", Files: 3}, true, escaping},
		"hostile texts and numbers": {"no archive", protocol.BackupResult{
			Mark: hostile, Files: math.MinInt, Omitted: math.MaxInt, Bytes: -1, Examples: slices.Repeat([]string{hostile}, 20)}, true, "no archive"},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(DefaultConfig(), Parts{Machines: &machine.Maker{}})
			box := m.life.newBox(spec{flavor: FlavorSmall})
			box.machine = &machine.Machine{Agent: lyingAgent(t, c.archive, c.result)}
			store := t.TempDir()
			at := func(name string) string { return filepath.Join(store, name) }
			if err := errors.Join(os.Mkdir(at("prev"), 0o700), os.Mkdir(at("dir"), 0o700), os.WriteFile(at("neighbor"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			prev := ""
			if c.prev {
				prev = at("prev")
				keep(t, prev, earlier)
			}
			before := listing(t, store, "dir")
			m.records.keepHome(box, prev, at("dir"))
			if err := m.records.saveHome(t.Context(), box, at("dir")); (err == nil) != (c.want != "") {
				t.Errorf("the files are stored with the error %v", err)
			}
			if after := listing(t, store, "dir"); !maps.Equal(before, after) {
				t.Errorf("beside the directory of the box, there was %v, and is %v", before, after)
			}
			info, f, err := openHome(at("dir"))
			if c.want == "" {
				if left := listing(t, at("dir"), ""); err == nil || len(left) > 0 {
					t.Errorf("%v is left, %v; want nothing stored", left, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got, err := io.ReadAll(f); err != nil || string(got) != c.want {
				t.Errorf("an archive of %d bytes is stored, %v, want one of %d", len(got), err, len(c.want))
			}
			if len(info.Mark) > 100 || len(info.Examples) > 5 {
				t.Errorf("a mark of %d bytes and %d names of files are stored", len(info.Mark), len(info.Examples))
			}
			for _, name := range info.Examples {
				if !visible.IsPlain(name) || len(name) > 200 {
					t.Errorf("the name %q is stored", name)
				}
			}
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			files, err := readStored(f, "/home/user")
			for _, file := range files {
				if file.Path != "/home/user" && !strings.HasPrefix(file.Path, "/home/user/") {
					t.Errorf("clients see the file %q, %v", file.Path, err)
				}
			}
		})
	}
}

// An archive that is larger than the disk of its box is cut off.
func TestHome_ArchiveIsBounded(t *testing.T) {
	var b bytes.Buffer
	w := &summed{w: &b, sum: crc32c.New(), left: 5}
	if n, err := w.Write([]byte("abc")); n != 3 || err != nil {
		t.Errorf("3 of 5 bytes: %d, %v", n, err)
	}
	if n, err := w.Write([]byte("def")); n != 0 || err == nil || b.Len() != 3 {
		t.Errorf("6 of 5 bytes: %d are written, %v", b.Len(), err)
	}
}

// tarOf returns an archive of empty files.
func tarOf(t *testing.T, names ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// keep stores an archive in dir.
func keep(t *testing.T, dir, archive string) {
	t.Helper()
	sum := crc32c.New()
	sum.Write([]byte(archive))
	info := &homeInfo{Format: homeFormat, Bytes: int64(len(archive)), Sum: crc32c.Text(sum), Mark: "m"}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, homeTar), []byte(archive), 0o600), writeHomeInfo(dir, info)); err != nil {
		t.Fatal(err)
	}
}

// listing returns the files below dir with their contents, without those in the folder except.
func listing(t *testing.T, dir, except string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && except != "" && d.Name() == except:
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
