// Package embed contains the agent that runs in guests, a static executable, and
// installs it on the host, from where engines make it visible in guests.
package embed

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

//go:generate sh build.sh

//go:embed all:bin
var bin embed.FS

// Name is argv[0] of the agent. A program that links internal/guest/agent runs it
// when started under this name.
const Name = "glovebox-guest"

// embeddedName returns the file of the agent for this architecture.
func embeddedName() string { return "bin/guest-linux-" + runtime.GOARCH }

// Install writes the agent to a file in dir, an absolute directory that is created
// if missing, and returns how an engine starts it. The file is named by its content:
// processes that share dir write it once, and it never changes under a guest that
// runs it. Without an embedded agent, Install returns the running program.
func Install(dir string) (engine.Program, error) {
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
	path, err := install(dir, b)
	if err != nil {
		return engine.Program{}, fmt.Errorf("install agent: %w", err)
	}
	return engine.Program{Path: path, Args: []string{Name}}, nil
}

// Find returns an installed agent, possibly of another version of this program, by
// the SHA-256 of its executable in hex.
func Find(dir, sum string) (engine.Program, bool) {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return engine.Program{}, false
	}
	path := filepath.Join(dir, "guest-"+sum[:16])
	if !verified(path, sum) {
		return engine.Program{}, false
	}
	return engine.Program{Path: path, Args: []string{Name}}, true
}

// maxAgent bounds the size of an agent: ten times today's.
const maxAgent = 64 << 20

// readAgent reads an installed agent.
func readAgent(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm() != 0o755 {
		return nil, fmt.Errorf("%s has mode %v", path, info.Mode())
	}
	return owned.ReadFile(path, maxAgent)
}

// sums are the agents that Find has verified, by path: a summed each. There is one for
// each version of this program on this machine.
var sums sync.Map

type summed struct {
	info os.FileInfo
	sum  string
}

// verified reports whether the agent at path has a SHA-256, in hex. It reads a file once,
// and again when the file changes.
func verified(path, sum string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	if known, ok := sums.Load(path); ok {
		k := known.(summed)
		if os.SameFile(k.info, info) && k.info.ModTime().Equal(info.ModTime()) && k.info.Size() == info.Size() && k.info.Mode() == info.Mode() {
			return k.sum == sum
		}
	}
	b, err := readAgent(path)
	if err != nil {
		return false
	}
	have := sha256.Sum256(b)
	known := summed{info, hex.EncodeToString(have[:])}
	sums.Store(path, known)
	return known.sum == sum
}

func install(dir string, b []byte) (string, error) {
	sum := sha256.Sum256(b)
	path := filepath.Join(dir, "guest-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := owned.Dir(dir); err != nil {
		return "", err
	}
	if have, err := readAgent(path); err == nil && bytes.Equal(have, b) {
		return path, nil
	}
	return path, syncfile.Replace(path, b, 0o755)
}
