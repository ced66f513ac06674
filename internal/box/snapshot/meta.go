package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/crc32c"
)

// Purpose is the purpose of a record.
type Purpose string

const (
	// Box is the record of a box, living or hibernated.
	Box Purpose = "box"
	// Saved is a snapshot that a user saves. It never expires and is never evicted.
	Saved Purpose = "kept"
)

// Limits of the strings of a Meta, in bytes. They come from clients.
const (
	maxOwner       = 256
	maxID          = 128
	maxName        = 64
	maxDescription = 4096
	maxWord        = 64 // Kind, Interpreter, Template, Flavor
	maxAside       = 1024
	// MaxUnreported bounds Meta.Unreported.
	MaxUnreported = 4096
)

// Meta is the metadata of a record.
type Meta struct {
	Purpose     Purpose `json:"class"`
	Owner       string  `json:"owner,omitempty"`       // at most 256 bytes
	Kind        string  `json:"kind,omitempty"`        // of box: "session" or "context"; at most 64 bytes
	BoxID       string  `json:"box_id,omitempty"`      // at most 128 bytes
	Name        string  `json:"name,omitempty"`        // at most 64 bytes
	Description string  `json:"description,omitempty"` // at most 4096 bytes
	Interpreter string  `json:"template,omitempty"`    // at most 64 bytes
	Flavor      string  `json:"flavor,omitempty"`      // at most 64 bytes
	Template    string  `json:"named,omitempty"`       // the named template that the box came from; at most 64 bytes
	// Limits narrow the network of the box.
	Limits NetLimits `json:"limits,omitempty"`
	// Aside is the reason why a Box record is no longer the state of its box: it could
	// not be restored, and the box continues in another record. At most 1024 bytes.
	Aside string `json:"aside,omitempty"`

	Created time.Time `json:"created,omitzero"` // of the box, or of the saved snapshot
	Used    time.Time `json:"used,omitzero"`    // last use
	// Written is the time of the data; zero: there are none. The store sets it.
	Written time.Time `json:"saved,omitzero"`
	// Ran means that code ran in the box's interpreter, so that it had variables.
	Ran bool `json:"ran,omitempty"`
	// Stale means that the box continued after Written, so that the data are not its
	// latest state.
	Stale bool `json:"live,omitempty"`
	// Restored means that a machine was made of the data before, which may have run. Another
	// one must not draw the same random numbers.
	Restored bool `json:"restored,omitempty"`
	// InCall means that calls were in flight in the box when the data were written.
	InCall bool `json:"in_call,omitempty"`
	// Unreported describes the losses of the box that no call has reported, in the form of
	// its writer. At most MaxUnreported bytes.
	Unreported string `json:"unreported,omitempty"`
}

// check validates m.
func (m *Meta) check() error {
	if m.Purpose != Box && m.Purpose != Saved {
		return fmt.Errorf("class %.20q is neither %q nor %q", m.Purpose, Box, Saved)
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
		{"template", m.Interpreter, maxWord},
		{"flavor", m.Flavor, maxWord},
		{"named template", m.Template, maxWord},
		{"reason for setting aside", m.Aside, maxAside},
		{"unreported losses", m.Unreported, MaxUnreported},
	} {
		if len(f.value) > f.limit {
			return fmt.Errorf("%s has %d bytes, more than %d", f.name, len(f.value), f.limit)
		}
		if !utf8.ValidString(f.value) {
			return fmt.Errorf("%s %q is not UTF-8", f.name, f.value)
		}
	}
	if err := m.Limits.Check(); err != nil {
		return err
	}
	for _, t := range []time.Time{m.Created, m.Used, m.Written} {
		if y := t.Year(); y < 1 || y > 9999 {
			return fmt.Errorf("the year %d is not between 1 and 9999", y)
		}
	}
	return nil
}

const (
	// format is the version of entry and of the directory around it.
	format = 1
	// maxBytes exceeds any snapshot and is small enough to be summed.
	maxBytes = 1 << 46
	// maxEntry bounds an entry's file: some 10 KB, of which JSON may make six bytes
	// each.
	maxEntry = 64 << 10
)

// entry is the content of a record's file.
type entry struct {
	Meta
	Gen     uint64 `json:"gen,omitempty"`     // number of the valid data; 0: none
	Bytes   int64  `json:"bytes,omitempty"`   // of the data
	Pending int64  `json:"pending,omitempty"` // bytes that the lease's owner is about to write beside them
}

// frame is the envelope of an entry.
type frame struct {
	Format int             `json:"format"`
	Sum    string          `json:"sum"` // checksum of Record, byte for byte; a process that can write here controls the boxes anyway
	Record json.RawMessage `json:"record"`
}

// check validates e.
func (e *entry) check() error {
	if err := e.Meta.check(); err != nil {
		return err
	}
	if e.Bytes < 0 || e.Bytes > maxBytes || e.Pending < 0 || e.Pending > maxBytes {
		return fmt.Errorf("invalid sizes: %d bytes, %d pending", e.Bytes, e.Pending)
	}
	if (e.Gen == 0) != e.Written.IsZero() {
		return errors.New("the data's number and time disagree")
	}
	return nil
}

// encode returns the content of a file.
func (e *entry) encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	record, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(frame{Format: format, Sum: crc32c.Of(record), Record: record})
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// decode parses the content of a file. Unknown fields are ignored. Errors: ErrDamaged,
// also errForeign for a later format. Of a damaged one it returns the Meta if that can be read; it
// is for reports only.
func decode(b []byte) (entry, error) {
	var f frame
	var e entry
	if len(b) > maxEntry {
		return e, fmt.Errorf("more than %d bytes: %w", maxEntry, ErrDamaged)
	}
	err := json.Unmarshal(b, &f)
	switch {
	case err != nil:
	case f.Format > format:
		return e, fmt.Errorf("format %d is newer than %d: %w", f.Format, format, errForeign)
	case f.Format != format:
		err = fmt.Errorf("format %d, want %d", f.Format, format)
	default:
		if err = json.Unmarshal(f.Record, &e); err == nil {
			err = e.check()
		}
		if err == nil && f.Sum != crc32c.Of(f.Record) {
			return entry{Meta: e.Meta}, fmt.Errorf("checksum mismatch: %w", ErrDamaged)
		}
	}
	if err != nil {
		return entry{}, fmt.Errorf("%w: %w", err, ErrDamaged)
	}
	return e, nil
}
