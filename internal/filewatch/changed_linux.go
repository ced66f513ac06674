package filewatch

import (
	"io/fs"
	"syscall"
	"time"
)

// identify adds device, inode and ctime, which users cannot set.
func (s *stamp) identify(info fs.FileInfo) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.changed = uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix())
	}
}
