//go:build linux

package microsandbox

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// program returns an executable that prints text as msb would.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "msb")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProbe_SaysWhatToType(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		finding engine.Finding
		detail  string
		fix     string
	}{
		"no msb":          {probeProgram(t.Context(), missing), "no such file", "npm install"},
		"another version": {probeProgram(t.Context(), program(t, "echo msb 0.8.1")), "it is 0.8.1", "npm install"},
		"the old server":  {probeProgram(t.Context(), program(t, "echo microsandbox 0.2.6")), "no version", "npm install"},
		"broken":          {probeProgram(t.Context(), program(t, "echo error: no libcap-ng.so.0 >&2; exit 127")), "no libcap-ng.so.0", "npm install"},
		"no device":       {probeKVM(missing), "no such file", "modprobe"},
		"no right":        {failed("kvm", &engine.HostError{Op: "open", Cause: os.ErrPermission, Fix: fixAccess}), "permission denied", "usermod -aG kvm"},
	} {
		if f := c.finding; f.Level != engine.LevelFail || !strings.Contains(f.Detail, c.detail) || !strings.Contains(f.Fix, c.fix) || strings.Contains(f.Detail, "\n") {
			t.Errorf("%s: got %+v", name, f)
		}
	}
	if f := probeProgram(t.Context(), program(t, "echo msb 0.7.9")); f.Level != engine.LevelOK {
		t.Errorf("a version that works: got %+v", f)
	}
}

func TestProbeProcessor_LooksForHardwareVirtualization(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 tells by flags")
	}
	for content, want := range map[string]engine.Level{
		"flags\t\t: fpu svm sse\n": engine.LevelOK, "processor: 0\nflags : vmx\n": engine.LevelOK,
		"flags : fpu svmx\nvmx flags : vmx\n": engine.LevelFail, "": engine.LevelFail,
	} {
		path := filepath.Join(t.TempDir(), "cpuinfo")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := probeProcessor(path).Level; got != want {
			t.Errorf("%q: got %s, want %s", content, got, want)
		}
	}
	if got := probeProcessor("/nonexistent").Level; got != engine.LevelWarn {
		t.Errorf("without the file: got %s", got)
	}
}

func TestOpen_WithoutMsbIsAnErrorOfTheHost(t *testing.T) {
	_, err := Open(t.Context(), Config{StateDir: t.TempDir(), Program: "/nonexistent/msb"})
	var host *engine.HostError
	if !errors.As(err, &host) || host.Fix == "" {
		t.Errorf("got %v", err)
	}
}

func TestOpenDir_RefusesPathsThatMsbCannotUse(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "gb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, want := range map[string]string{strings.Repeat("x", 60): "too long", "a:b": "colon"} {
		if _, err := openDir(filepath.Join(dir, name)); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	if _, err := openDir(filepath.Join(dir, "state")); err != nil {
		t.Errorf("a path that msb can use: %v", err)
	}
}

func TestClient_OutputIsBounded(t *testing.T) {
	c := newClient(program(t, "head -c 5000000 /dev/zero"), "/")
	if _, err := c.brief("list"); !errors.Is(err, errOutput) {
		t.Errorf("got %v", err)
	}
	c = newClient(program(t, "head -c 5000000 /dev/zero >&2; exit 1"), "/")
	if _, err := c.brief("list"); err == nil || len(err.Error()) > 2*maxDetail {
		t.Errorf("got an error of %d bytes", len(err.Error()))
	}
}

func TestClient_InheritsNoSecrets(t *testing.T) {
	t.Setenv("GLOVEBOX_TOKEN", "secret")
	out, err := newClient(program(t, "env"), "/home").brief("list")
	if err != nil || strings.Contains(string(out), "secret") || !strings.Contains(string(out), "MSB_HOME=/home\n") {
		t.Errorf("got %q, %v", out, err)
	}
}
