package snapshot

import "maps"

// usage is the space that the data of records take, without a scan: as of the last one,
// with the changes by this process since then.
type usage struct {
	bytes   map[string]int64     // by id
	used    int64                // sum of bytes
	resized uint64               // number of changes by this process
	writing map[*Lease]unwritten // the data being written
}

// unwritten is a directory of data that are being written.
type unwritten struct {
	name  string
	there int64 // bytes in it that are those of the earlier data
}

func newUsage() usage {
	return usage{bytes: make(map[string]int64), writing: make(map[*Lease]unwritten)}
}

// Space returns how many bytes the data of all records take, including those that this
// process is writing, and how many more they may take under Config.MaxBytes (0 without a
// limit). Changes by other processes count from the next scan on. It only looks at the
// sizes of a few files.
func (s *Store) Space() (used, unused int64) {
	s.mu.Lock()
	used = s.used
	writing := maps.Clone(s.writing)
	s.mu.Unlock()
	for l, w := range writing {
		if size, err := sizeOf(l.dir, w.name); err == nil { // otherwise it is just being made or removed
			used += max(0, size-w.there)
		}
	}
	return used, max(0, s.cfg.MaxBytes-used)
}

// beginWrite counts what a lease writes to a directory of its record, until endWrite.
func (s *Store) beginWrite(l *Lease, w unwritten) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing[l] = w
}

// endWrite counts the data of a lease after a write, which may have failed.
func (s *Store) endWrite(l *Lease) {
	bytes := l.Bytes()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writing, l)
	s.resizeLocked(l.id, bytes)
}

// resizeLocked sets the size of a record; 0 after its removal. The caller holds s.mu.
func (s *Store) resizeLocked(id string, bytes int64) {
	s.resized++
	s.used += bytes - s.bytes[id]
	s.bytes[id] = bytes
	if bytes == 0 {
		delete(s.bytes, id)
	}
}

// recountLocked replaces all sizes by those of a scan. The caller holds s.mu.
func (s *Store) recountLocked(items []*item) {
	s.used = 0
	clear(s.bytes)
	for _, it := range items {
		if it.Bytes != 0 {
			s.bytes[it.id] = it.Bytes
			s.used += it.Bytes
		}
	}
}
