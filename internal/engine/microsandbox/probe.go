//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	kvmDevice = "/dev/kvm"
	// versionWait bounds the question for msb's version.
	versionWait = 30 * time.Second
	// maxVersion bounds the answer in a message.
	maxVersion = 80

	fixInstall = "install msb " + supported + "x of microsandbox and put it on PATH: npm install -g @superradcompany/microsandbox-linux-x64-gnu@0.7.2, then link its bin/msb"
	fixKVM     = "run on a machine with hardware virtualization, or allow nested virtualization for this one, and type: modprobe kvm_intel || modprobe kvm_amd"
	fixAccess  = "type: sudo usermod -aG kvm $USER, then log in again"
)

// Probe checks whether this machine can run microVMs. It changes nothing and starts only
// "msb --version".
func Probe(ctx context.Context) []engine.Finding {
	return []engine.Finding{probeProgram(ctx, ""), probeKVM(kvmDevice), probeProcessor("/proc/cpuinfo")}
}

func probeProgram(ctx context.Context, program string) engine.Finding {
	path, err := find(program)
	if err != nil {
		return failed("msb", err)
	}
	version, err := versionOf(ctx, path)
	if err != nil {
		return failed("msb", err)
	}
	return engine.Finding{Name: "msb", Level: engine.LevelOK, Detail: fmt.Sprintf("%s, version %s", path, version)}
}

func probeKVM(device string) engine.Finding {
	if err := checkKVM(device); err != nil {
		return failed("kvm", err)
	}
	return engine.Finding{Name: "kvm", Level: engine.LevelOK, Detail: device + " can be opened"}
}

// probeProcessor checks for the instructions that KVM needs: a virtual machine may have a
// /dev/kvm without them, in which no microVM boots.
func probeProcessor(cpuinfo string) engine.Finding {
	f := engine.Finding{Name: "processor", Level: engine.LevelOK, Detail: "has hardware virtualization"}
	if runtime.GOARCH != "amd64" {
		f.Detail = "not examined on " + runtime.GOARCH
		return f
	}
	b, err := os.ReadFile(cpuinfo)
	if err != nil {
		f.Level, f.Detail = engine.LevelWarn, "not examined: "+err.Error()
		return f
	}
	for line := range strings.Lines(string(b)) {
		if key, flags, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "flags" {
			for _, flag := range strings.Fields(flags) {
				if flag == "vmx" || flag == "svm" {
					return f
				}
			}
			break // all processors have the same
		}
	}
	f.Level, f.Detail = engine.LevelFail, "has neither vmx nor svm: no hardware virtualization"
	f.Fix = "enable VT-x or AMD-V in the firmware or, in a virtual machine, nested virtualization on its host"
	return f
}

// failed returns the finding for an error.
func failed(name string, err error) engine.Finding {
	f := engine.Finding{Name: name, Level: engine.LevelFail, Detail: err.Error()}
	var host *engine.HostError
	if errors.As(err, &host) {
		f.Detail, f.Fix = fmt.Sprintf("%s: %v", host.Op, host.Cause), host.Fix
	}
	return f
}

// find returns the absolute path of msb: program, or that of PATH, or where its installer
// puts it.
func find(program string) (string, error) {
	if program != "" {
		return filepath.Abs(program)
	}
	path, err := exec.LookPath("msb")
	if err == nil {
		return trusted(path)
	}
	if home, herr := os.UserHomeDir(); herr == nil {
		if path, herr := exec.LookPath(filepath.Join(home, ".microsandbox", "bin", "msb")); herr == nil {
			return trusted(path)
		}
	}
	return "", &engine.HostError{Op: "find msb", Cause: err, Fix: fixInstall}
}

// trusted returns the absolute path of a program that was found by its name. It is an error
// if this process is root and another user can change or replace the program: sudo may keep
// PATH and HOME of its caller.
func trusted(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil || os.Geteuid() != 0 || !owned.MapsAllUsers() {
		return path, err
	}
	if err := owned.File(path); errors.Is(err, owned.ErrUnsafe) {
		return "", &engine.HostError{Op: "run msb as root", Cause: err, Fix: "install msb where root alone can write, or run Glovebox as the user whose msb it is"}
	}
	return path, nil // an error of the file system shows when the program is run
}

// versionOf returns the version of msb at path, which has to be one that this package
// knows.
func versionOf(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	out, err := newClient(path, os.DevNull).run(ctx, nil, "--version")
	if err != nil {
		return "", &engine.HostError{Op: "run " + path, Cause: err, Fix: fixInstall}
	}
	version, err := parseVersion(out)
	if err != nil {
		return "", &engine.HostError{Op: "run " + path, Cause: err, Fix: fixInstall}
	}
	if !strings.HasPrefix(version, supported) {
		return "", &engine.HostError{
			Op:    "check the version of " + path,
			Cause: fmt.Errorf("it is %s, and this program knows the commands of %sx only", truncate.Bytes(visible.Line(version), maxVersion), supported),
			Fix:   fixInstall,
		}
	}
	return version, nil
}

// checkKVM opens the device.
func checkKVM(device string) error {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		return unix.Close(fd)
	}
	fix := fixKVM
	if errors.Is(err, fs.ErrPermission) {
		fix = fixAccess
	}
	return &engine.HostError{Op: "open " + device, Cause: err, Fix: fix}
}
