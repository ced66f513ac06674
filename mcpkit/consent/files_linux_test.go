package consent

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// An argument that names a file inside of a container may exist here too, where the user
// may not read it.
func TestFiles_NoPermission(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "closed", "app.py")
	write(t, path, "1", 0o600)
	if err := os.Chmod(filepath.Dir(path), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Dir(path), 0o700) })
	type result struct {
		files []File
		err   error
	}
	done := make(chan result)
	go func() {
		if os.Getuid() == 0 {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0); errno != 0 {
				done <- result{err: errno}
				return
			}
		}
		files, err := Files(t.Context(), define(dir, "docker", "run", "image", "python", path), mcpjson.Resolver{})
		done <- result{files, err}
	}()
	got := <-done
	if diff := cmp.Diff([]File{{path, "unreadable"}}, got.files); got.err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", got.err, diff)
	}
}
