//go:build !linux

package filewatch

import "io/fs"

// identify adds nothing: what there is has another name on each platform.
func (s *stamp) identify(fs.FileInfo) {}
