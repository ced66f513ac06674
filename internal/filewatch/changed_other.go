//go:build !linux

package filewatch

import "io/fs"

// identify adds nothing: the fields have another name on each platform.
func (s *stamp) identify(fs.FileInfo) {}
