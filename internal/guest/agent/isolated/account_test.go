//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAccount_OfHostileImage starts a guest of an image whose account of user code has a
// name that no program can have in its environment: programs start.
func TestAccount_OfHostileImage(t *testing.T) {
	root := hostRoot(t)
	passwd := strings.Repeat("a", 200<<10) + ":x:1000:1000::/:\nroot:x:0:0::/root:/bin/sh\n"
	must(t, os.WriteFile(filepath.Join(root.Tree.Dir, "etc/passwd"), []byte(passwd), 0o644))
	l := connTo(t, root, map[string]string{"python": "/usr/bin/python3"})
	if res, out := sh(t, l, "echo $USER $LOGNAME $HOME; id -u"); res.Code != 0 || string(out.out) != "user user /home/user\n1000\n" {
		t.Errorf("the shell: %+v, %.300q, %.300q", res, out.out, out.err)
	}
	if res, out := python(t, l, "import getpass; print(getpass.getuser())"); res.Error != nil || string(out.out) != "user\n" {
		t.Errorf("Python: %+v, %.300q, %.300q", res, out.out, out.err)
	}
}
