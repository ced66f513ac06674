package filewatch

import (
	"io/fs"
	"syscall"
	"time"
)

// identify adds which file it is, and when it or what is said of it was changed;
// nobody can set that back.
func (s *stamp) identify(info fs.FileInfo) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.changed = uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix())
	}
}
