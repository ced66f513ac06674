// Package embed contains the agent that runs in guests, a static executable, and
// installs it on the host, from where engines make it visible in guests.
package embed

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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
	agent, err := bin.Open(embeddedName())
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
	defer agent.Close()
	path, err := install(dir, agent.(io.ReadSeeker)) // as package embed documents
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

// sumInstalled returns the SHA-256 of an installed agent in hex.
func sumInstalled(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm() != 0o755 {
		return "", fmt.Errorf("%s has mode %v", path, info.Mode())
	}
	if info.Size() > maxAgent {
		return "", fmt.Errorf("%s has %d bytes", path, info.Size())
	}
	f, err := owned.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return sumOf(io.LimitReader(f, maxAgent))
}

// sumOf returns the SHA-256 of what r reads in hex. It does not hold the content in memory.
func sumOf(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
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
	have, err := sumInstalled(path)
	if err != nil {
		return false
	}
	sums.Store(path, summed{info, have})
	return have == sum
}

func install(dir string, agent io.ReadSeeker) (string, error) {
	sum, err := sumOf(agent)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "guest-"+sum[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := owned.Dir(dir); err != nil {
		return "", err
	}
	if have, err := sumInstalled(path); err == nil && have == sum {
		return path, nil
	}
	if _, err := agent.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	content, err := io.ReadAll(agent)
	if err != nil {
		return "", err
	}
	return path, syncfile.Replace(path, content, 0o755)
}
