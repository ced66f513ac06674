// Package volume decides which directories of the host the boxes of an owner see.
//
// A volume is one directory for all boxes or, below a parent directory, one for each
// owner. Machines that have no owner yet, from which templates are made, get an empty
// directory to which nobody can write: the kernel of the host refuses it.
//
//	s, err := volume.Open(list, emptyDir)
//	mounts, err := s.Of(owner)   // of a box
//	mounts := s.Ownerless()      // of a machine that belongs to nobody
package volume
