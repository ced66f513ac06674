package pod

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxProgram bounds a program that is installed: several times an agent.
const maxProgram = 256 << 20

// install copies a program into a volume that the containers of the Pod share.
func install(args []string) (int, error) {
	in, err := os.Open(args[0])
	if err != nil {
		return 1, err
	}
	defer in.Close()
	tmp, err := os.CreateTemp(filepath.Dir(args[1]), ".install-*")
	if err != nil {
		return 1, err
	}
	defer os.Remove(tmp.Name()) // gone after the rename
	n, err := io.Copy(tmp, io.LimitReader(in, maxProgram+1))
	if err == nil && n > maxProgram {
		err = fmt.Errorf("%s has more than %d bytes", args[0], maxProgram)
	}
	if cerr := tmp.Chmod(0o755); err == nil {
		err = cerr
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), args[1])
	}
	return 0, err
}
