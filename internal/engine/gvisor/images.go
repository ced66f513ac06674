//go:build linux && (amd64 || arm64)

package gvisor

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/erofs"
	"github.com/glovebox-dev/glovebox/internal/regular"
)

// images are the files of a root that is an EROFS image. The sentry maps them itself, so
// that guests of one root share the page cache, and no path of the image becomes a path
// of the host.
type images struct {
	root  *os.File // the image of the engine.Tree
	agent *os.File // an image with the agent, mounted at its directory
}

// agentMount is the mount of the agent in a guest whose root is an image.
var agentMount = specs.Mount{Destination: path.Dir(agentPath), Type: "erofs", Source: "agent", Options: []string{"ro", "nosuid", "nodev"}}

// openImages opens the image of a plan's root and makes that of its agent. The caller
// closes them.
func openImages(state *stateDir, p *plan) (*images, error) {
	root, err := regular.Open(p.tree.File)
	if err != nil {
		return nil, fmt.Errorf("find root: %w: %w", err, engine.ErrInvalid)
	}
	agent, err := agentImage(state, p)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make image of the agent: %w", err), root.Close())
	}
	return &images{root: root, agent: agent}, nil
}

func (i *images) close() error { return errors.Join(i.root.Close(), i.agent.Close()) }

// agentImage writes the image of a plan's agent to a file without a name, and returns it
// open for reading only.
func agentImage(state *stateDir, p *plan) (*os.File, error) {
	agent, err := regular.Open(p.Agent.Path)
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	info, err := agent.Stat()
	if err != nil {
		return nil, err
	}
	f, err := state.scratch()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir := &erofs.Inode{Mode: erofs.TypeDir | 0o755, Entries: map[string]*erofs.Inode{
		path.Base(agentPath): {Mode: erofs.TypeRegular | 0o755, Size: info.Size()},
	}}
	// A guest is restored only with the agent that it was stored with.
	sum := sha256.Sum256([]byte(p.made.Agent))
	if err := erofs.Write(f, dir, agent, [16]byte(sum[:16])); err != nil {
		return nil, err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), "agent.erofs"), nil
}
