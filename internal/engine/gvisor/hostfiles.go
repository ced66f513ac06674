//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// goferRoot is the path at which a gofer sees the root of its guest: the prefix
	// of the paths of the files that it has passed to the sentry.
	goferRoot = "/root"
	// replaced is the suffix that the kernel appends to the path of a deleted file.
	replaced = " (deleted)"
	// maxHostFiles bounds the files of the root that a snapshot records: a guest with
	// pandas has about 150 open.
	maxHostFiles = 4096
)

// hostFile is a file of the root that a guest has open or mapped. A restored guest maps
// it again, and the sentry does not notice if another file has replaced it, whose code
// is at other addresses.
type hostFile struct {
	Path  string `json:"path"` // inside
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"` // Unix nanoseconds
}

// hostFiles lists the files of the root that the guest has open, from the sentry's open
// files. It omits volumes, which are outside the root, and the agent, whose content is
// compared. A root that is an image has none: the sentry compares the superblock.
func (g *guest) hostFiles() []hostFile {
	if g.tree.images != nil {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/fd", g.sentry.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it has ended, and the snapshot will fail
	}
	found := map[string]hostFile{}
	for _, e := range entries {
		link := filepath.Join(dir, e.Name())
		target, err := os.Readlink(link)
		if err != nil || len(found) == maxHostFiles {
			continue
		}
		path, ours := g.inRoot(target)
		if !ours || g.made.mounted(path) {
			continue
		}
		if info, err := os.Stat(link); err == nil && info.Mode().IsRegular() {
			found[path] = hostFile{path, info.Size(), info.ModTime().UnixNano()}
		}
	}
	list := make([]hostFile, 0, len(found))
	for _, f := range found {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b hostFile) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// inRoot returns the path in the root of a file that the sentry has open under name, and
// whether the file is in the root. A deleted file keeps its old path.
func (g *guest) inRoot(name string) (path string, ours bool) {
	if len(g.gofers) > 0 {
		path, ours = strings.CutPrefix(name, goferRoot+"/")
		return "/" + path, ours
	}
	// The root of a rootServer has nothing above it, and the names of all other
	// files begin at the root of this process. Lookup in the root tells them apart.
	at := strings.TrimPrefix(name, "/")
	if strings.HasPrefix(at, "memfd:") {
		return "", false
	}
	if dir, gone := strings.CutSuffix(at, replaced); gone {
		at = filepath.Dir(dir)
	}
	fd, err := openBeneath(int(g.tree.root.Fd()), at)
	if err != nil {
		return "", false
	}
	unix.Close(fd)
	return name, true
}

// mounted reports whether a path of the guest is the agent's or in a volume.
func (s fixedSpec) mounted(path string) bool {
	if path == agentPath {
		return true
	}
	for _, mount := range s.Mounts {
		at := mount[:strings.LastIndexByte(mount, ',')]
		if path == at || strings.HasPrefix(path, at+"/") {
			return true
		}
	}
	return false
}

// changed returns the first file that is not what it was in the root, or "".
func changed(files []hostFile, root *engine.Tree) string {
	for _, f := range files {
		if !fs.ValidPath(strings.TrimPrefix(f.Path, "/")) {
			return f.Path
		}
		info, err := os.Stat(hostPath(root, f.Path))
		if err != nil || info.Size() != f.Size || info.ModTime().UnixNano() != f.MTime {
			return f.Path
		}
	}
	return ""
}

// hostPath returns where on the host a path of the guest's root is. It has no
// symbolic links.
func hostPath(root *engine.Tree, path string) string {
	guest, host := "", root.Dir
	for _, b := range root.Binds {
		if (path == b.Guest || strings.HasPrefix(path, b.Guest+"/")) && len(b.Guest) > len(guest) {
			host, guest = b.Host, b.Guest
		}
	}
	return filepath.Join(host, strings.TrimPrefix(path, guest))
}
