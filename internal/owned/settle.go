package owned

import (
	"io/fs"
	"sync"
)

// newcomers remembers which entries of shared directories, such as /tmp, had an owner that this
// user namespace does not map when the program started.
//
// Such an owner is real root or anybody else. Before the program entered the namespace it
// refused those of others. Nobody else can put anything into the other directories of a safe
// path, so an entry there that has such an owner later is of root. In a shared directory,
// everybody can make an entry once the one from before is gone.
var newcomers struct {
	mu      sync.Mutex
	settled bool                // guarded by mu
	known   map[string]identity // guarded by mu: by path
}

// Settle says that the program has started: it has checked the files of its settings once
// before and once after it entered its user namespace. From then on [File] and [Above] refuse
// an entry of a shared directory whose owner the namespace does not map, unless it is the same
// file or directory as before. They also refuse one that root has put in its place: its owner
// cannot be told from others. Settle changes nothing in a namespace that maps all users.
func Settle() {
	newcomers.mu.Lock()
	defer newcomers.mu.Unlock()
	newcomers.settled = true
}

// newcomer reports whether an entry of a shared directory, with an owner that the namespace
// does not map, appeared after Settle. info is of the entry itself, also if it is a link.
func newcomer(path string, info fs.FileInfo) bool {
	now, ok := identify(path, info) // before the lock: it asks the file system
	newcomers.mu.Lock()
	defer newcomers.mu.Unlock()
	if newcomers.settled {
		before, known := newcomers.known[path]
		return !ok || !known || now != before
	}
	if ok {
		if newcomers.known == nil {
			newcomers.known = make(map[string]identity)
		}
		newcomers.known[path] = now
	}
	return false
}
