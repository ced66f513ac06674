// Package embed carries the agent that runs inside guests: a static program
// that is embedded in ours and laid out on the host for the engines to show to
// their guests.
package embed

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/glovebox-dev/glovebox/engine"
)

//go:generate sh build.sh

//go:embed all:bin
var bin embed.FS

// Name is argv[0] of the agent: a program that links internal/guest/agent and finds
// this as its name acts as the agent.
const Name = "glovebox-guest"

// embeddedName is the agent for this architecture.
func embeddedName() string { return "bin/guest-linux-" + runtime.GOARCH }

// Lay makes sure that the agent is a file below dir, an absolute directory that
// is made if missing, and returns how an engine starts it. The file's name tells
// its content, so that it is written once for all processes that share dir and
// never changes under a guest that runs it. Without an embedded agent it is the
// running program.
func Lay(dir string) (engine.Program, error) {
	b, err := bin.ReadFile(embeddedName())
	if errors.Is(err, fs.ErrNotExist) {
		exe, err := os.Executable()
		if err != nil {
			return engine.Program{}, fmt.Errorf("find the running program: %w", err)
		}
		return engine.Program{Path: exe, Args: []string{Name}}, nil
	}
	if err != nil {
		return engine.Program{}, fmt.Errorf("read embedded agent: %w", err)
	}
	path, err := lay(dir, b)
	if err != nil {
		return engine.Program{}, fmt.Errorf("lay out agent: %w", err)
	}
	return engine.Program{Path: path, Args: []string{Name}}, nil
}

// Find returns an agent that Lay has laid out below dir, also one of another
// version of this program, by the SHA-256 of its executable in hex.
func Find(dir, sum string) (engine.Program, bool) {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return engine.Program{}, false
	}
	path := filepath.Join(dir, "guest-"+sum[:16])
	if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm() != 0o755 {
		return engine.Program{}, false
	}
	return engine.Program{Path: path, Args: []string{Name}}, true
}

func lay(dir string, b []byte) (string, error) {
	sum := sha256.Sum256(b)
	path := filepath.Join(dir, "guest-"+hex.EncodeToString(sum[:8]))
	// Its size is enough: the file appears whole, by rename.
	if fi, err := os.Lstat(path); err == nil && fi.Mode().IsRegular() && fi.Size() == int64(len(b)) && fi.Mode().Perm() == 0o755 {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, ".guest-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) // gone after the rename
	_, err = f.Write(b)
	if cerr := f.Chmod(0o755); err == nil {
		err = cerr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return path, err
}
