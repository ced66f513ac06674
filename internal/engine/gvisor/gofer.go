//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
)

// notServed is, in gVisor's words, how a mount is backed that is not a gofer's business:
// the gofer takes it for one in the sentry's memory.
const notServed = "none:memory"

// everyVolume is the choice of the volumes that a sentry sees.
func everyVolume(int) bool { return true }

// startGofers starts the gofers of a guest with volumes. The first also serves the root, unless
// the root is an image. After an error, the result has the gofers that run.
//
// A user namespace shows the server's user as the guest's in all volumes that its gofer
// serves. Volumes that must not show it have a gofer of their own.
func (l *launch) startGofers(e *Engine, oci *specs.Spec, sentry *commandLine, trash *files) (started []*exec.Cmd, err error) {
	pairs := make([]pair, 0, len(l.spec.Mounts)+1)
	offset := 0 // of the volumes in pairs
	if l.tree.images == nil {
		offset++ // the root
	}
	for range len(l.spec.Mounts) + offset {
		p, err := newPair()
		if err != nil {
			return nil, err
		}
		trash.add(p.sentry, p.gofer)
		sentry.pass("io-fds", p.sentry)
		pairs = append(pairs, p)
	}
	mounts, mountsW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	trash.add(mounts, mountsW)
	sentry.pass("mounts-fd", mounts)

	first := func(i int) bool { return !l.volumes.beside(l.volumes.list[i]) }
	second := func(i int) bool { return !first(i) }
	root, volumes := pairs[:offset], pairs[offset:]
	// It resolves links in mount points and tells the sentry.
	g := gofer{name: "gofer", confs: mountConfs(l.spec, l.tree, first), serves: first, pairs: slices.Concat(root, chosen(volumes, first)), mounts: mountsW, nest: l.volumes.nested()}
	cmd, err := l.startGofer(e, oci, g, trash)
	if err != nil {
		return nil, err
	}
	started = append(started, cmd)
	if others := chosen(volumes, second); len(others) > 0 {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return started, fmt.Errorf("start gofer: %w", err)
		}
		trash.add(null)
		g := gofer{name: "gofer2", confs: mountConfs(l.spec, l.tree, second), serves: second, pairs: others, mounts: null}
		if l.tree.images == nil {
			g.confs = notServed + volumeConfs(l.spec, second)
		}
		cmd, err := l.startGofer(e, oci, g, trash)
		if err != nil {
			return started, err
		}
		started = append(started, cmd)
	}
	return started, nil
}

// chosen returns the pairs whose index is chosen, in a new slice.
func chosen(pairs []pair, choose func(int) bool) (list []pair) {
	for i, p := range pairs {
		if choose(i) {
			list = append(list, p)
		}
	}
	return list
}

// gofer describes a gofer to start.
type gofer struct {
	name   string         // of its debug log
	confs  string         // of its mounts
	serves func(int) bool // chooses its volumes
	pairs  []pair         // with the sentry, one for each mount that it serves
	mounts *os.File       // it writes the mounts with links resolved here
	nest   bool           // whether the server's user is the guest's in it
}

// startGofer starts one gofer.
func (l *launch) startGofer(e *Engine, oci *specs.Spec, g gofer, trash *files) (*exec.Cmd, error) {
	gofer, err := l.begin(g.name, "gofer", g.confs, trash)
	if err != nil {
		return nil, err
	}
	// Each process reads the spec at its own pace, hence a file of its own.
	spec, err := memFile("spec", oci)
	if err != nil {
		return nil, err
	}
	trash.add(spec)
	gofer.pass("spec-fd", spec)
	for _, p := range g.pairs {
		gofer.pass("io-fds", p.gofer)
	}
	gofer.pass("mounts-fd", g.mounts)
	// The gofer asks here for mounts that it may not make itself.
	rpc, err := newPair()
	if err != nil {
		return nil, err
	}
	trash.add(rpc.sentry, rpc.gofer)
	gofer.pass("rpc-fd", rpc.gofer)
	if err := l.volumes.answer(rpc.sentry, g.serves); err != nil {
		return nil, err
	}
	gofer.args = append(gofer.args, l.id)
	cmd := l.cmd(goferName, gofer)
	if g.nest {
		e.vols.runAsGuestUser(cmd)
	} else {
		e.vols.runAsRoot(cmd)
	}
	if err := l.group.start(e.spawn, cmd); err != nil {
		return nil, fmt.Errorf("start gofer: %w", err)
	}
	return cmd, nil
}

// besideOptions returns the options of a volume of the second gofer: those that the file
// system at the host path needs, which only the first gofer tells the sentry.
func besideOptions(host string, options []string) []string {
	adjusted, err := sandboxsetup.AdjustMountOptions(nil, host, options)
	if err != nil {
		return options // the gofer will say why
	}
	return adjusted
}
