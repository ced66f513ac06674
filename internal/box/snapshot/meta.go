package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
	"unicode/utf8"
)

// Class tells what a record is for.
type Class string

const (
	// Box is the record of a box, living or hibernated.
	Box Class = "box"
	// Kept is a snapshot that a user keeps. It never grows too old and is never
	// evicted.
	Kept Class = "kept"
)

// Limits of what a Meta says, in bytes. Its strings come from clients.
const (
	maxOwner       = 256
	maxID          = 128
	maxName        = 64
	maxDescription = 4096
	maxWord        = 64 // Kind, Template, Flavor
	maxAside       = 1024
)

// Meta says what a record is.
type Meta struct {
	Class       Class  `json:"class"`
	Owner       string `json:"owner,omitempty"`       // at most 256 bytes
	Kind        string `json:"kind,omitempty"`        // of box: "session" or "context"; at most 64 bytes
	BoxID       string `json:"box_id,omitempty"`      // at most 128 bytes
	Name        string `json:"name,omitempty"`        // at most 64 bytes
	Description string `json:"description,omitempty"` // at most 4096 bytes
	Template    string `json:"template,omitempty"`    // at most 64 bytes
	Flavor      string `json:"flavor,omitempty"`      // at most 64 bytes
	// Aside says why a Box record is no longer the box's state: it could not be
	// restored, and the box went on in another record. At most 1024 bytes.
	Aside string `json:"aside,omitempty"`

	Created time.Time `json:"created,omitzero"` // the box, or the kept snapshot
	Used    time.Time `json:"used,omitzero"`    // the last use
	// Saved is when the data were written; zero: there are none. The store sets it.
	Saved time.Time `json:"saved,omitzero"`
	// Ran says that code had run in the box's interpreter, so that it has variables
	// unless it has ended since.
	Ran bool `json:"ran,omitempty"`
	// Live says that the box went on after Saved: what it did since is not in the
	// data.
	Live bool `json:"live,omitempty"`
}

// check returns why m is not a Meta.
func (m *Meta) check() error {
	if m.Class != Box && m.Class != Kept {
		return fmt.Errorf("class %.20q is neither %q nor %q", m.Class, Box, Kept)
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"owner", m.Owner, maxOwner},
		{"kind", m.Kind, maxWord},
		{"box id", m.BoxID, maxID},
		{"name", m.Name, maxName},
		{"description", m.Description, maxDescription},
		{"template", m.Template, maxWord},
		{"flavor", m.Flavor, maxWord},
		{"reason to be set aside", m.Aside, maxAside},
	} {
		if len(f.value) > f.limit {
			return fmt.Errorf("the %s has %d bytes, more than %d", f.name, len(f.value), f.limit)
		}
		if !utf8.ValidString(f.value) {
			return fmt.Errorf("the %s %q is not UTF-8", f.name, f.value)
		}
	}
	for _, t := range []time.Time{m.Created, m.Used, m.Saved} {
		if y := t.Year(); y < 1 || y > 9999 {
			return fmt.Errorf("the year %d is not one that is written down", y)
		}
	}
	return nil
}

const (
	// format is the version of entry and of the directory around it.
	format = 1
	// maxBytes is more than any snapshot has, and small enough to be added up.
	maxBytes = 1 << 46
	// maxEntry bounds a file with an entry: JSON makes at most six bytes of one,
	// of some 6 KB.
	maxEntry = 64 << 10
)

// entry is what a file of a record says of it.
type entry struct {
	Meta
	Gen     uint64 `json:"gen,omitempty"`     // which data are valid; 0: none
	Bytes   int64  `json:"bytes,omitempty"`   // of the data
	Pending int64  `json:"pending,omitempty"` // that the holder is about to write beside them
}

// frame is what is in the file.
type frame struct {
	Format int             `json:"format"`
	Sum    string          `json:"sum"` // of Record, byte for byte
	Record json.RawMessage `json:"record"`
}

// castagnoli sums find any single damage. Against malice there is nothing: who can
// write here owns the boxes.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(b []byte) string { return fmt.Sprintf("crc32c:%08x", crc32.Checksum(b, castagnoli)) }

// check returns why e is not an entry.
func (e *entry) check() error {
	if err := e.Meta.check(); err != nil {
		return err
	}
	if e.Bytes < 0 || e.Bytes > maxBytes || e.Pending < 0 || e.Pending > maxBytes {
		return fmt.Errorf("%d bytes and %d more are no sizes", e.Bytes, e.Pending)
	}
	if (e.Gen == 0) != e.Saved.IsZero() {
		return errors.New("it contradicts itself about its data")
	}
	return nil
}

// encode returns what decode takes.
func (e *entry) encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	record, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(frame{Format: format, Sum: sum(record), Record: record})
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// decode reads a file's content. Fields that it does not know are ignored. Errors:
// ErrDamaged, also errForeign if the content is of a later format.
func decode(b []byte) (entry, error) {
	var f frame
	var e entry
	if len(b) > maxEntry {
		return e, fmt.Errorf("it has more than %d bytes: %w", maxEntry, ErrDamaged)
	}
	err := json.Unmarshal(b, &f)
	switch {
	case err != nil:
	case f.Format > format:
		return e, fmt.Errorf("it has format %d, this program reads %d: %w", f.Format, format, errForeign)
	case f.Format != format:
		err = fmt.Errorf("it has format %d, not %d", f.Format, format)
	case f.Sum != sum(f.Record):
		err = errors.New("its checksum is wrong")
	default:
		if err = json.Unmarshal(f.Record, &e); err == nil {
			err = e.check()
		}
	}
	if err != nil {
		return entry{}, fmt.Errorf("%w: %w", err, ErrDamaged)
	}
	return e, nil
}
