// Package volume decides which directories of the host the boxes of an owner see.
//
// A volume is one directory for all boxes or, below a parent directory, one for each
// owner. The directory of an owner is closed to other users of the host. Boxes see the
// directory "data" in it, and decide the mode of that one only. Machines without an owner,
// from which templates are made, get an empty directory to which the host's kernel refuses
// all writes.
//
//	s, err := volume.Open(list, emptyDir)
//	mounts, err := s.Of(owner)   // of a new machine of a box
//	mounts := s.Peek(owner)      // the same, without making directories
//	mounts := s.Ownerless()      // of a machine without an owner
package volume
