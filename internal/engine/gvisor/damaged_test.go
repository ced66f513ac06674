package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestOpenImage_Damaged: a snapshot without its files is a damaged one, and clients learn no path of
// the host.
func TestOpenImage_Damaged(t *testing.T) {
	for what, spoil := range map[string]func(dir string) error{
		"no directory": os.Remove,
		"no manifest":  func(string) error { return nil },
		"a directory":  func(dir string) error { return os.Mkdir(filepath.Join(dir, manifestName), 0o700) },
		"half of it": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestName), []byte(`{"format":`), 0o600)
		},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		if err := errors.Join(os.Mkdir(dir, 0o700), spoil(dir)); err != nil {
			t.Fatal(err)
		}
		_, _, err := openImage(dir)
		if !errors.Is(err, engine.ErrDamaged) || !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrDamaged, which is an ErrInvalid", what, err)
		}
		public, ok := errors.AsType[interface {
			error
			Public() string
		}](err)
		if !ok || strings.Contains(public.Public(), "/") {
			t.Errorf("%s: clients learn %v", what, err)
		}
	}
}

// TestOpenImage_NoDescriptors: a lack of descriptors says nothing about the snapshot, which is not
// given up.
func TestOpenImage_NoDescriptors(t *testing.T) {
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		err := damaged(&os.PathError{Op: "open", Path: "/somewhere", Err: lack})
		if errors.Is(err, engine.ErrInvalid) || !errors.Is(err, engine.ErrExhausted) {
			t.Errorf("%v: got %v, want ErrExhausted", lack, err)
		}
	}
}
