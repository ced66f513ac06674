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

// noMountEnv has this program enter namespaces in which nothing may be mounted.
const noMountEnv = "GLOVEBOX_TEST_NO_MOUNT"

// forbidMount denies mounts to this process and its children, as AppArmor does in
// the namespaces of ordinary users.
func forbidMount() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MOUNT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)},
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

// Namespaces that can be made and give no power are told with what to do.
func TestEnterWithoutPower(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, enteredEnv+"=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, noMountEnv+"=1")
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	_, fix, ok := strings.Cut(text, "create user and mount namespaces: mount in them: permission denied; ")
	if err == nil || !ok || fix == "" {
		t.Errorf("got %v, %q", err, text)
	}
}
