package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// jupyter is a bare Jupyter kernel driven by its own client library.
type jupyter struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startJupyter(ctx context.Context) (*jupyter, error) {
	if err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import ipykernel, jupyter_client").Run(); err != nil {
		return nil, errors.New("no Jupyter kernel: apt-get install python3-ipykernel python3-jupyter-client")
	}
	script, err := filepath.Abs("bench/jupyter.py")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", script)
	// Debian's kernels warn about frozen modules on the terminal otherwise.
	cmd.Env = append(os.Environ(), "PYDEVD_DISABLE_FILE_VALIDATION=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &jupyter{cmd: cmd, in: in, out: bufio.NewScanner(out)}, nil
}

// ask sends one request and returns the milliseconds that it took.
func (j *jupyter) ask(request string) (float64, error) {
	if _, err := io.WriteString(j.in, request+"\n"); err != nil {
		return 0, err
	}
	if !j.out.Scan() {
		return 0, fmt.Errorf("ask the Jupyter kernel %q: it ended: %w", request, errors.Join(j.out.Err(), io.EOF))
	}
	return strconv.ParseFloat(strings.TrimSpace(j.out.Text()), 64)
}

func (j *jupyter) close() {
	j.in.Close()
	j.cmd.Wait()
}

// podman runs an interpreter of the host in a container of its own, as the
// peers of create_context: the same program, the same files, no network.
type podman struct{ root, python string }

func newPodman(ctx context.Context, dir, python string) (*podman, error) {
	if _, err := exec.LookPath("podman"); err != nil {
		return nil, errors.New("no podman: apt-get install podman runc")
	}
	p := &podman{root: filepath.Join(dir, "podman-root"), python: python}
	for _, d := range []string{"etc", "tmp", "proc", "dev", "sys", "run", "usr", "home", "var"} {
		if err := os.MkdirAll(filepath.Join(p.root, d), 0o755); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, filepath.Join(p.root, d)); err != nil {
			return nil, err
		}
	}
	_, err := p.run(ctx)
	return p, err
}

// run creates a container, prints 1 in Python and removes it.
func (p *podman) run(ctx context.Context) (float64, error) {
	begun := time.Now()
	// runc, because crun refuses hybrid cgroups; the ulimits, because the limits
	// that podman asks for may be above what the machine allows.
	out, err := exec.CommandContext(ctx, "podman", "--runtime", "runc", "run", "--rm", "--network", "none",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
		"-v", "/usr:/usr:ro", "--rootfs", p.root, p.python, "-c", "print(1)").CombinedOutput()
	took := ms(time.Since(begun))
	if err != nil || strings.TrimSpace(string(out)) != "1" {
		return 0, fmt.Errorf("run podman: %w: %s", err, out)
	}
	return took, nil
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
