package cli

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/cli/help"
)

// A closed standard output is not an error.
func TestOutput_WithoutReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	var log bytes.Buffer
	if code := Main(t.Context(), []string{"version"}, Streams{In: strings.NewReader(""), Out: w, Err: &log}); code != ExitOK || log.Len() > 0 {
		t.Errorf("exit code %d, %q, want 0 and silence", code, &log)
	}
}

// The first error is reported, and only once.
func TestOutput_FirstErrorIsReported(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	o := &output{Writer: full}
	if err := o.lost(nil); err != nil {
		t.Errorf("nothing was written, and is lost: %v", err)
	}
	_, first := o.Write([]byte("x"))
	o.Writer = os.Stdin // another error
	_, _ = o.Write([]byte("x"))
	if got := o.lost(nil); got == nil || got != first {
		t.Errorf("got %v, want %v", got, first)
	}
	if got := o.lost(errors.Join(errors.New("x"), first)); got != nil {
		t.Errorf("%v is reported twice", got)
	}
	if code := exitCode(first); code != ExitFailure {
		t.Errorf("exit code %d, want %d", code, ExitFailure)
	}
}

// An output that is not a file has no width.
func TestOutput_WidthOfTerminalOnly(t *testing.T) {
	if got, want := help.Width(&output{Writer: &bytes.Buffer{}}), help.Width(&bytes.Buffer{}); got != want {
		t.Errorf("the width of a buffer is %d, want %d", got, want)
	}
	if got := (&output{Writer: os.Stderr}).Fd(); got != os.Stderr.Fd() {
		t.Errorf("descriptor %d, want %d", got, os.Stderr.Fd())
	}
}

// A server over standard input and output detects through the descriptor that its client
// is gone, and cancels its calls.
func TestOutput_HasDescriptorOfItsStream(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	raw, err := (&output{Writer: w}).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got uintptr
	if err := raw.Control(func(fd uintptr) { got = fd }); err != nil || got != w.Fd() {
		t.Errorf("the descriptor is %d, %v, want %d", got, err, w.Fd())
	}
	if _, err := (&output{Writer: new(bytes.Buffer)}).SyscallConn(); err == nil {
		t.Error("a buffer has a descriptor")
	}
}
