package consent

import (
	"io/fs"
	"syscall"
)

// identityOf returns the identity of a file.
func identityOf(info fs.FileInfo) (id identity, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, false
	}
	return identity{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, true
}
