package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/glovebox-dev/glovebox/engine"
)

// userID is the account inside guests that code runs as.
const userID = 1000

// skeleton is a directory tree of mount points, links and small files, and what
// is bound over it.
type skeleton struct {
	dirs  map[string]fs.FileMode
	links map[string]string
	files map[string]string // path -> content
	binds []engine.Mount
}

func newSkeleton() *skeleton {
	return &skeleton{
		dirs: map[string]fs.FileMode{
			"/dev": 0o755, "/proc": 0o755, "/sys": 0o755, "/run": 0o755, "/mnt": 0o755,
			"/etc": 0o755, "/home": 0o755, "/home/user": 0o755, "/root": 0o700,
			"/tmp": 0o777 | fs.ModeSticky, "/var": 0o755, "/var/tmp": 0o777 | fs.ModeSticky,
			"/var/cache": 0o755, "/var/lib": 0o755, "/var/log": 0o755,
		},
		links: map[string]string{"/var/run": "/run"},
		files: make(map[string]string),
	}
}

// systemDirs are the directories of programs and libraries beside /usr.
var systemDirs = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// addSystem adds the host's system directories, and an /etc made of what is made up
// and of what programs need.
func (s *skeleton) addSystem() {
	s.addBind("/usr")
	for _, dir := range systemDirs {
		info, err := os.Lstat(dir)
		if err != nil {
			continue
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			s.addBind(dir)
		} else if to, err := os.Readlink(dir); err == nil {
			s.links[dir] = to
		}
	}
	for name, content := range made {
		s.files["/etc/"+name] = content
	}
	s.addEtc("/etc")
	for _, dir := range shown {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			s.addBind(dir)
		}
	}
}

// addBind shows a directory or file of the host at the same path, unless it is
// shown already as part of another.
func (s *skeleton) addBind(p string) {
	real, err := filepath.EvalSymlinks(p)
	if err != nil {
		return
	}
	for _, b := range s.binds {
		if isWithin(p, b.Guest) {
			return
		}
	}
	s.binds = append(s.binds, engine.Mount{Host: real, Guest: p, ReadOnly: true})
	s.addParents(p)
	if info, err := os.Stat(real); err == nil && !info.IsDir() {
		s.files[p] = ""
	} else if _, have := s.dirs[p]; !have {
		s.dirs[p] = 0o755
	}
}

// addParents makes the directories above p, and lets user code pass through those
// that it may not list: root's home is one, and interpreters are installed there.
func (s *skeleton) addParents(p string) {
	for _, dir := range parents(p) {
		if mode, have := s.dirs[dir]; have {
			s.dirs[dir] = mode | 0o111
		} else {
			s.dirs[dir] = 0o755
		}
	}
}

// describe returns a text that is different for different skeletons.
func (s *skeleton) describe() string {
	var lines []string
	for p, mode := range s.dirs {
		lines = append(lines, fmt.Sprintf("dir %q %v", p, mode))
	}
	for p, to := range s.links {
		lines = append(lines, fmt.Sprintf("link %q %q", p, to))
	}
	for p, content := range s.files {
		lines = append(lines, fmt.Sprintf("file %q %x", p, sha256.Sum256([]byte(content))))
	}
	slices.Sort(lines)
	for _, b := range s.binds {
		lines = append(lines, fmt.Sprintf("bind %q %q", b.Host, b.Guest))
	}
	return strings.Join(lines, "\n")
}

// write makes the skeleton at dir, unless it is there: its name says what is in
// it. It appears complete or not at all.
func (s *skeleton) write(dir string) error {
	if err := checkSkeleton(dir); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			err = fmt.Errorf("use image: %w", err)
		}
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	defer os.RemoveAll(temp) // gone already if it was renamed
	if err := s.fill(temp); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil && !exists(dir) { // another process may have been faster
		return fmt.Errorf("make image: %w", err)
	}
	return nil
}

func (s *skeleton) fill(root string) error {
	dirs := make([]string, 0, len(s.dirs))
	for dir := range s.dirs {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs) // parents first
	for _, dir := range dirs {
		to := filepath.Join(root, dir)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(to, s.dirs[dir]); err != nil {
			return err
		}
	}
	for p, content := range s.files {
		to := filepath.Join(root, p)
		if err := os.WriteFile(to, []byte(content), 0o644); err != nil {
			return err
		}
		if err := os.Chmod(to, 0o644); err != nil {
			return err
		}
	}
	for p, target := range s.links {
		if err := os.Symlink(target, filepath.Join(root, p)); err != nil {
			return err
		}
	}
	// Only real root can give the home directory away here; for others the agent
	// does it inside the guest.
	if err := os.Chown(filepath.Join(root, "home/user"), userID, userID); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
