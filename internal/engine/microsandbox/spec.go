//go:build linux

package microsandbox

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/pod"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

const (
	// agentDir has the agent and the helper in the guest, which cannot write there.
	agentDir  = "/.glovebox"
	agentName = "agent"
	agentArg  = agentDir + "/" + agentName
	helperArg = agentDir + "/" + pod.Name

	// The labels of a sandbox that is a guest.
	labelManaged = "glovebox.managed=1"
	labelID      = "glovebox.id="

	// kernelMB is what the guest's kernel and msb's agent take of the virtual machine's
	// memory.
	kernelMB = 64
	// defaultMB is the memory of a guest without a limit: a virtual machine has to have
	// one.
	defaultMB = 1024
	// minMB is the least memory with which a virtual machine boots.
	minMB = 128
	// minDiskMB is a size of the virtual disk that msb can format; 64 is too small.
	minDiskMB = 256
)

// hostnamePattern are host names that msb can pass on.
var hostnamePattern = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)

// validate checks what can be known before anything is prepared.
func validate(s *engine.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Agent.Image != nil {
		return fmt.Errorf("agent of image %s: this engine has files only: %w", s.Agent.Image.Digest, engine.ErrUnsupported)
	}
	if info, err := os.Stat(s.Agent.Path); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("agent %q is not a file: %w", s.Agent.Path, engine.ErrInvalid)
	}
	if s.Hostname != "" && !hostnamePattern().MatchString(s.Hostname) {
		return fmt.Errorf("host name %q: %w", s.Hostname, engine.ErrInvalid)
	}
	for _, m := range s.Mounts {
		if m.Volume != "" {
			return fmt.Errorf("volume %q of the platform: %w", m.Volume, engine.ErrUnsupported)
		}
	}
	return nil
}

// createArgs returns the arguments of msb that create a sandbox. The spec is valid.
func createArgs(name, id, image, agent string, binds []engine.Mount, s *engine.Spec) ([]string, error) {
	l := s.Limits
	memory := defaultMB
	if l.MemoryMB > 0 {
		memory = max(l.MemoryMB+kernelMB, minMB)
	}
	args := []string{"create", "--quiet", "--pull=never", "--no-net", "--name=" + name,
		"--label=" + labelManaged, "--label=" + labelID + id,
		"--hostname=" + cmp.Or(s.Hostname, id),
		"--memory=" + strconv.Itoa(memory) + "M", "--cpus=" + strconv.Itoa(processors(l.CPUs)),
	}
	if l.DiskMB > 0 {
		args = append(args, "--root-disk="+strconv.Itoa(max(l.DiskMB, minDiskMB))+"M")
	}
	mounts := []engine.Mount{{Host: agent, Guest: agentDir, ReadOnly: true}}
	for _, b := range binds {
		b.ReadOnly = true
		mounts = append(mounts, b)
	}
	mounts = append(mounts, s.Mounts...)
	for _, m := range mounts[1:] {
		if m.Guest == agentDir || strings.HasPrefix(m.Guest, agentDir+"/") {
			return nil, fmt.Errorf("mount at %s: the engine needs the path: %w", m.Guest, engine.ErrInvalid)
		}
	}
	for _, m := range mounts {
		arg, err := mountArg(m)
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return append(args, "--", image), nil
}

// processors returns the number of virtual processors for a limit: whole ones, and no more
// than the host has.
func processors(limit float64) int {
	have := runtime.NumCPU()
	if limit <= 0 || limit >= float64(have) {
		return have
	}
	return max(1, int(math.Ceil(limit)))
}

// mountArg returns the argument for a mount.
func mountArg(m engine.Mount) (string, error) {
	host, err := filepath.EvalSymlinks(m.Host)
	if err != nil {
		return "", fmt.Errorf("mount of %q at %s: %w: %w", m.Host, m.Guest, err, engine.ErrInvalid)
	}
	info, err := os.Stat(host)
	if err != nil {
		return "", fmt.Errorf("mount of %q at %s: %w: %w", m.Host, m.Guest, err, engine.ErrInvalid)
	}
	option := "--mount-dir="
	switch {
	case info.Mode().IsRegular():
		option = "--mount-file="
	case !info.IsDir():
		return "", fmt.Errorf("mount of %q at %s: neither a directory nor a regular file: %w", m.Host, m.Guest, engine.ErrUnsupported)
	}
	if !plainPath(host) || !plainPath(m.Guest) {
		return "", fmt.Errorf("mount of %q at %q: a path contains a colon, comma or control character, which msb's options cannot express: %w", m.Host, m.Guest, engine.ErrUnsupported)
	}
	return option + host + ":" + m.Guest + mountOptions(m), nil
}

// mountOptions returns the options of a mount. msb's file server on the host refuses writes
// to a mount that is "ro", also when the guest's root has mounted it writable again.
func mountOptions(m engine.Mount) string {
	if m.ReadOnly || m.Frozen {
		return ":ro"
	}
	return fmt.Sprintf(":uid=%d,gid=%d", engine.UserID, engine.UserID)
}

// plainPath reports whether msb's options can express a path.
func plainPath(p string) bool {
	return !strings.ContainsFunc(p, func(r rune) bool { return r == ':' || r == ',' || r < ' ' || r == 0x7f || r == '�' })
}
