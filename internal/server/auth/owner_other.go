//go:build !linux

package auth

import "io/fs"

// ownerOf knows nothing: servers run on Linux.
func ownerOf(fs.FileInfo) (uid uint32, ok bool) { return 0, false }
