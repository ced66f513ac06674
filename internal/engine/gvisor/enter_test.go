//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denyEnv has this program deny a system call to itself before it enters
// namespaces: number and errno, as "165=13".
const denyEnv = "GLOVEBOX_TEST_DENY"

// deny denies a system call to this process and its children, as security modules
// and the filters of service managers do.
func deny(what string) error {
	var call, answer uint32
	if _, err := fmt.Sscanf(what, "%d=%d", &call, &answer); err != nil {
		return fmt.Errorf("read %s=%q: %w", denyEnv, what, err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | answer},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("install a filter: %w", errno)
	}
	return nil
}

// denied returns a command that runs this program again, with a system call
// denied and not yet in namespaces.
func denied(t *testing.T, call int, answer unix.Errno, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, enteredEnv+"=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d=%d", denyEnv, call, answer))
	return cmd
}

// If namespaces can be created but give no capabilities, the error has the remedy.
func TestEnter_WithoutCapabilities(t *testing.T) {
	// As AppArmor does in the namespaces of ordinary users.
	cmd := denied(t, unix.SYS_MOUNT, unix.EACCES)
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	_, fix, ok := strings.Cut(text, "create user and mount namespaces: mount in them: permission denied; ")
	if err == nil || !ok || fix == "" {
		t.Errorf("got %v, %q", err, text)
	}
}

// The label of a process names the profile of AppArmor that forbids it something, if one does.
// scripts/test-vm shows the hint with a real profile.
func TestEnforcedProfile(t *testing.T) {
	for label, want := range map[string]string{
		"no-userns (enforce)\n": "no-userns", "/usr/bin/a b (enforce)": "/usr/bin/a b",
		"no-userns (complain)\n": "", "unconfined\n": "", "": "",
	} {
		if got, ok := enforcedProfile(label); ok != (want != "") || ok && got != want {
			t.Errorf("label %q: got %q, %t, want %q", label, got, ok, want)
		}
	}
}
