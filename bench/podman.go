//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// podman runs an interpreter of the host in a new container: the same program and files,
// without network.
type podman struct {
	root string
	runs int
}

// errNoPodman is the reason of rows that lack podman.
var errNoPodman = errors.New("podman: not installed (apt-get install podman runc)")

// runPodman prints 1 in a container and returns the milliseconds.
func (p *peers) runPodman(ctx context.Context) (float64, error) {
	c, err := p.newPodman()
	if err != nil {
		return 0, err
	}
	return c.timed(ctx, "1", nil, append([]string{"--network", "none"}, c.program(p.b.python, "print(1)")...)...)
}

// inPodman runs a program that prints a number in a container with a network, and returns
// the number.
func (p *peers) inPodman(ctx context.Context, program string) (float64, error) {
	c, err := p.newPodman()
	if err != nil {
		return 0, err
	}
	network := ""
	for _, way := range []struct{ program, network string }{
		// With these options, the gateway of the container is the host's loopback.
		// podman 4.3, which Debian 12 has, knows no pasta, and newer ones refuse it to root.
		{"slirp4netns", "slirp4netns:allow_host_loopback=true"}, {"pasta", "pasta:--map-gw"},
	} {
		if _, err := exec.LookPath(way.program); err == nil && network == "" {
			network = way.network
		}
	}
	if network == "" {
		return 0, errors.New("podman: neither slirp4netns nor pasta is installed")
	}
	argv, clean := c.command(nil, append([]string{"--network", network}, c.program(p.b.python, program)...)...)
	x, err := printed(ctx, nil, argv...)
	if err != nil {
		clean(ctx)
	}
	return x, err
}

// runImage prints 1 in a container of an image. If it is the first one, the image has to
// be unpacked.
func (p *peers) runImage(ctx context.Context, image string, first bool) (float64, error) {
	c, err := p.newPodman()
	if err != nil {
		return 0, err
	}
	store := p.imageStore()
	if first {
		p.forgetImages(ctx)
	} else {
		id, err := exec.CommandContext(ctx, "podman", append(store, "images", "--quiet")...).Output()
		if err != nil {
			return 0, fmt.Errorf("list podman's images: %w", err)
		}
		image, _, _ = strings.Cut(strings.TrimSpace(string(id)), "\n")
	}
	return c.timed(ctx, "1", store, "--network", "none", image, "/bin/sh", "-c", "echo 1")
}

// imageStore returns the flags of a store of images that ends with the run.
func (p *peers) imageStore() []string {
	return []string{"--root", filepath.Join(p.b.dir, "podman-images"), "--runroot", filepath.Join(p.b.short, "run")}
}

// forgetImages removes the images of imageStore, if any.
func (p *peers) forgetImages(ctx context.Context) {
	if p.container == nil {
		return // it has none
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	exec.CommandContext(clean, "podman", append(p.imageStore(), "rmi", "--all", "--force")...).Run()
}

// newPodman makes the directory of the containers once.
func (p *peers) newPodman() (*podman, error) {
	if p.container != nil {
		return p.container, nil
	}
	if _, err := exec.LookPath("podman"); err != nil {
		return nil, errNoPodman
	}
	c := &podman{root: filepath.Join(p.b.dir, "podman-root")}
	for _, d := range []string{"etc", "tmp", "proc", "dev", "sys", "run", "usr", "home", "var"} {
		if err := os.MkdirAll(filepath.Join(c.root, d), 0o755); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, filepath.Join(c.root, d)); err != nil {
			return nil, err
		}
	}
	p.container = c
	return c, nil
}

// program returns the arguments of podman run for a program in the host's Python.
func (c *podman) program(python, program string) []string {
	return []string{"-v", "/usr:/usr:ro", "--rootfs", c.root, python, "-c", program}
}

// command returns the command line of a new container, and a function that removes the
// container, which an interrupted run may leave.
func (c *podman) command(store []string, args ...string) (argv []string, clean func(context.Context)) {
	c.runs++
	name := fmt.Sprintf("glovebox-bench-%d-%d", os.Getpid(), c.runs)
	podman := append([]string{"podman"}, store...)
	// runc, because crun refuses hybrid cgroups. The ulimits, because podman's defaults
	// may exceed the machine's limits.
	argv = append(podman[:len(podman):len(podman)], "--runtime", "runc", "run", "--rm", "--name", name,
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
	return append(argv, args...), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopDelay)
		defer cancel()
		rm := append(podman[1:len(podman):len(podman)], "rm", "--force", "--ignore", name)
		exec.CommandContext(ctx, podman[0], rm...).Run()
	}
}

// timed runs a container and returns the milliseconds, as the function timed.
func (c *podman) timed(ctx context.Context, want string, store []string, args ...string) (float64, error) {
	argv, clean := c.command(store, args...)
	took, err := timed(ctx, want, nil, argv...)
	if err != nil {
		clean(ctx)
	}
	return took, err
}
