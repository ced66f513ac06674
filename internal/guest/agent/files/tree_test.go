package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestReadOnly checks that files in a read-only directory can be read, and that the
// errors of changes say why they are refused.
func TestReadOnly(t *testing.T) {
	home, volume := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree := New(home, []string{home}, []string{volume})
	var b strings.Builder
	if _, err := tree.Read(protocol.Read{Path: volume + "/f"}, &b); err != nil || b.String() != "x" {
		t.Errorf("read: got %q, %v", b.String(), err)
	}
	if res, err := tree.List(protocol.List{Path: volume}); err != nil || len(res.Entries) != 1 {
		t.Errorf("list: got %+v, %v", res, err)
	}
	_, write := tree.Write(protocol.Write{Path: volume + "/f"}, strings.NewReader("y"))
	_, mkdir := tree.Mkdir(protocol.Mkdir{Path: volume + "/d"})
	for name, err := range map[string]error{
		"write": write, "mkdir": mkdir, "remove": tree.Remove(protocol.Remove{Path: volume + "/f"}),
		"extract": tree.Extract(protocol.Extract{Path: volume}, io.LimitReader(nil, 0)),
	} {
		we, ok := errors.AsType[*protocol.Error](err)
		if !ok || we.Code != protocol.CodeNotAllowed || !strings.Contains(we.Message, "the volume "+volume+" is read-only") {
			t.Errorf("%s: got %v, want that the volume is read-only", name, err)
		}
	}
	if _, err := tree.Write(protocol.Write{Path: "f"}, strings.NewReader("y")); err != nil {
		t.Errorf("write into the home: %v", err)
	}
}

// Errors about paths are in plain words, and not those of errno.
func TestExplain_Plain(t *testing.T) {
	for err, want := range map[error]string{
		&fs.PathError{Op: "open", Path: "/internal", Err: unix.ENOENT}:                       `read "a": there is no such file or directory`,
		&fs.PathError{Op: "open", Path: "/internal", Err: unix.EISDIR}:                       `read "a": it is a directory, not a file`,
		&fs.PathError{Op: "open", Path: "/internal", Err: unix.EACCES}:                       `read "a": permission denied: its permissions do not allow that to the user of the sandbox`,
		&fs.PathError{Op: "open", Path: "/internal", Err: unix.EROFS}:                        `read "a": permission denied: it is on a read-only file system`,
		&os.LinkError{Op: "rename", Old: "/internal", New: "/internal", Err: unix.ENOTEMPTY}: `read "a": the directory is not empty`,
		fmt.Errorf("write: %w", unix.ENOSPC):                                                 `read "a": the disk of the sandbox is full`,
	} {
		if got := new(Tree).explain("read", "a", err); got.Error() != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

// Backup stops in both of its walks when its context ends. A host that writes the box again would
// otherwise wait seconds for the agent.
func TestBackup_Cancelled(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := New(home, []string{home}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the host has cancelled it")
	cancel(why)
	var b bytes.Buffer
	if res, err := tree.Backup(ctx, protocol.Backup{MaxBytes: 1 << 20}, &b); err == nil || !strings.Contains(err.Error(), why.Error()) || res.Mark != "" || b.Len() > 0 {
		t.Errorf("before the first walk: got %+v, %v and %d bytes", res, err, b.Len())
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(home, fmt.Sprint("file", i)), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stops := writerFunc(func(p []byte) (int, error) {
		cancel(why)
		return b.Write(p)
	})
	if res, err := tree.Backup(ctx, protocol.Backup{MaxBytes: 1 << 20}, stops); err == nil || res.Files != 1 {
		t.Errorf("during the second walk: got %+v, %v; want an error after one file", res, err)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
