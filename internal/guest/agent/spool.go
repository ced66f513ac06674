package agent

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// spoolDir is the directory of long outputs, below home.
	spoolDir = ".outputs"
	// spoolMax bounds one file.
	spoolMax = 32 << 20
	// spoolKeep is how many files are kept.
	spoolKeep = 20
)

// spoolMu serializes creating files and removing old ones.
var spoolMu sync.Mutex

// spoolFile holds one complete stream of output, up to spoolMax. A nil spoolFile
// discards everything.
type spoolFile struct {
	f    *os.File
	path string
	left int
}

// openSpool creates the file for one stream ("stdout" or "stderr") with the user's
// rights. A failure must not affect the output: it returns nil.
func (cfg *settings) openSpool(stream string) *spoolFile {
	spoolMu.Lock()
	defer spoolMu.Unlock()
	var s *spoolFile
	err := cfg.user.Do(func() error {
		root, err := os.OpenRoot(cfg.home)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := root.Mkdir(spoolDir, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
		// The names sort by time.
		name := path.Join(spoolDir, fmt.Sprintf("%016x.%s", time.Now().UnixNano(), stream))
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		s = &spoolFile{f: f, path: path.Join(cfg.home, name), left: spoolMax}
		removeOldSpools(root)
		return nil
	})
	if err != nil {
		return nil
	}
	return s
}

// removeOldSpools removes all but the newest spool files. Files with other names belong
// to the user.
func removeOldSpools(root *os.Root) {
	d, err := root.Open(spoolDir)
	if err != nil {
		return
	}
	defer d.Close()
	entries, _ := d.ReadDir(10_000)
	var names []string
	for _, e := range entries {
		stamp, stream, _ := strings.Cut(e.Name(), ".")
		if len(stamp) == 16 && (stream == "stdout" || stream == "stderr") && e.Type() == fs.FileMode(0) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names[:max(0, len(names)-spoolKeep)] {
		root.Remove(path.Join(spoolDir, name)) // if it fails, the next one retries
	}
}

// write appends while there is room in the file and on the disk.
func (s *spoolFile) write(p []byte) {
	if s == nil || s.left == 0 {
		return
	}
	n, err := s.f.Write(p[:min(len(p), s.left)])
	s.left -= n
	if err != nil {
		s.left = 0
	}
}

// close returns the file's path.
func (s *spoolFile) close() string {
	if s == nil {
		return ""
	}
	s.f.Close()
	return s.path
}
