//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// machine describes this machine. Fields that cannot be read stay empty.
func machine() report.Machine {
	m := report.Machine{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, Root: os.Geteuid() == 0}
	m.CPU = field("/proc/cpuinfo", "model name", ":")
	m.Kernel = strings.TrimSpace(text("/proc/sys/kernel/osrelease"))
	m.OS = strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`)
	if kb, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal", ":"), " kB")); err == nil {
		m.MemoryMB = kb / 1000
	}
	if load, _, ok := strings.Cut(text("/proc/loadavg"), " "); ok {
		m.Load, _ = strconv.ParseFloat(load, 64)
	}
	return m
}

func text(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}

func field(path, key, separator string) string {
	for line := range strings.Lines(text(path)) {
		if k, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// versions returns the versions of Glovebox and the installed peers.
func (b *bench) versions(ctx context.Context) map[string]string {
	versions := map[string]string{"go": runtime.Version()}
	note := func(name, out string) {
		line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
		if line != "" {
			versions[name] = strings.TrimSpace(line)
		}
	}
	for name, argv := range map[string][]string{
		"glovebox":        {b.binary, "version"},
		"python":          {b.python, "-c", "import platform; print(platform.python_version())"},
		"pandas":          {b.python, "-c", "import pandas; print(pandas.__version__)"},
		"ipykernel":       {b.python, "-c", "import ipykernel; print(ipykernel.__version__)"},
		"jupyter-client":  {b.python, "-c", "import jupyter_client; print(jupyter_client.__version__)"},
		"node":            {"node", "--version"},
		"node of peers":   {b.peers.node(), "--version"},
		"podman":          {"podman", "--version"},
		"runc":            {"runc", "--version"},
		"bubblewrap":      {"bwrap", "--version"},
		"sandbox-runtime": nil,
		"pyodide":         nil,
	} {
		if argv == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output(); err == nil {
			note(name, strings.TrimPrefix(string(out), name+" "))
		}
		cancel()
	}
	for name, module := range map[string]string{
		"sandbox-runtime": "@anthropic-ai/sandbox-runtime", "pyodide": "pyodide", "typescript-sdk": "@modelcontextprotocol/sdk",
		"mcporter": "mcporter", "server-everything": "@modelcontextprotocol/server-everything",
	} {
		var p struct {
			Version string `json:"version"`
		}
		if json.Unmarshal([]byte(text(b.peers.module(module, "package.json"))), &p) == nil {
			note(name, p.Version)
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/modelcontextprotocol/go-sdk" {
				note("go-sdk", d.Version)
			}
		}
	}
	return versions
}

// findPython finds a Python with pandas for boxes and peers. It tries Debian's first, for
// which scripts/setup installs Jupyter and pandas.
func findPython(ctx context.Context) (string, error) {
	any := ""
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			return "", err
		}
		if any == "" {
			any = path
		}
		if exec.CommandContext(ctx, path, "-c", "import pandas").Run() == nil {
			return path, nil
		}
	}
	if any == "" {
		return "", errors.New("no python3 on this machine")
	}
	return any, nil
}
