package snapshot

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrNotFound means that there is no such record, or none with data.
	ErrNotFound = errors.New("no such record")
	// ErrLeased means that another process, or somebody else in this one, holds the
	// record.
	ErrLeased = errors.New("the record is held")
	// ErrDamaged means that a record cannot be used: its files are not as the store
	// writes them, or of a later version of it.
	ErrDamaged = errors.New("the record is damaged")
	// ErrFull means that the limits of the store leave no room, or the disk has
	// none. Errors of the first kind are a *FullError.
	ErrFull = errors.New("no room for snapshots")
	// ErrInvalid means that a Meta breaks its limits.
	ErrInvalid = errors.New("invalid record")
)

// FullError is an ErrFull that knows how much is missing after all that may be
// evicted would have been. Nothing has been.
type FullError struct {
	Missing int64 // bytes; 0: it is records that there are too many of
}

func (e *FullError) Error() string {
	if e.Missing == 0 {
		return ErrFull.Error() + ": all records that there may be are in use"
	}
	return fmt.Sprintf("%v: %d bytes are missing", ErrFull, e.Missing)
}

// Is says that a FullError is an ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Why tells why a record was removed without its owner asking for it.
type Why string

const (
	Lost    Why = "lost"    // who made it was killed before there were data
	Age     Why = "age"     // not used for Config.MaxAge
	Quota   Why = "quota"   // the least recently used when there was no room
	Damaged Why = "damaged" // unreadable
)

// Removed is a record that was removed. Of a damaged or lost one often no more
// than the ID is known.
type Removed struct {
	Record
	Why Why
}

// Record is what List knows of a record.
type Record struct {
	ID string // the store's own
	Meta
	Bytes  int64 // of the data
	Leased bool  // by some process, this one included
	Own    bool  // held by this process
}

// defaultRecords is how many records there are at most if Config does not say:
// file systems grow slow, and some refuse, at some 60,000 directories in one.
const defaultRecords = 20_000

// Config says where a store is and what its limits are. Processes that share a
// directory should agree on them; where they do not, each enforces its own.
type Config struct {
	Dir        string        // made if need be, for this user alone; its path must not change
	MaxBytes   int64         // of all data; 0: as the disk has
	MinFree    int64         // bytes that stay free on the disk
	MaxRecords int           // 0: 20,000
	MaxAge     time.Duration // since Used, of Box records that nobody holds; 0: any
	// AgeDoubt is for how long sweeps must find a record too old, as time passes and
	// not as the clock is set, before it goes: one that is ahead for a while shall
	// cost nothing. 0: it goes at once.
	AgeDoubt time.Duration
	Log      *slog.Logger     // nil: none
	Now      func() time.Time // nil: time.Now

	// Evicted, if set, is told what Create and Write removed to make room. It is
	// called by the goroutine that called them, with nothing locked but the claim.
	Evicted func(Removed)

	// step, in tests, is called at each step of a write.
	step func(name string)
}

const (
	lockName   = "lock"
	recordsDir = "records"
	trashDir   = "trash"
	savedName  = "saved.json"
	metaName   = "meta.json"
	newSuffix  = ".new" // of files until they are whole
	dataPrefix = "data-"
)

// Store is a directory of records. Its methods may be called at once by any number
// of goroutines and, on other Stores, processes.
type Store struct {
	cfg      Config
	log      *slog.Logger
	now      func() time.Time
	dir      string // absolute
	root     *os.Root
	records  *os.Root
	lock     *os.File
	lockInfo fs.FileInfo
	room     chan struct{} // a token: one goroutine makes room at a time
	count    atomic.Int64  // of records, as of the last scan and what we did since

	mu     sync.Mutex
	closed bool                 // guarded by mu
	holds  map[string]*hold     // guarded by mu; of this process, by id
	seen   map[string]seen      // guarded by mu, never changed once there; what the last scan found
	aged   map[string]time.Time // guarded by mu, only added to; since when sweeps have found records too old
}

// Open opens the store in cfg.Dir. The caller closes it. Errors also if the
// directory belongs to somebody else, or the platform has no locks.
func Open(cfg Config) (_ *Store, err error) {
	s := &Store{
		cfg: cfg, log: cfg.Log, now: cfg.Now,
		room: make(chan struct{}, 1), holds: make(map[string]*hold),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.cfg.MaxRecords == 0 {
		s.cfg.MaxRecords = defaultRecords
	}
	if s.cfg.step == nil {
		s.cfg.step = func(string) {}
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open snapshots %q: %w", cfg.Dir, errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *Store) open() (err error) {
	if s.dir, err = filepath.Abs(s.cfg.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if s.root, err = os.OpenRoot(s.dir); err != nil {
		return err
	}
	info, err := s.root.Stat(".")
	if err != nil {
		return err
	}
	if err := checkOwner(info); err != nil {
		return err
	}
	if info.Mode().Perm() != 0o700 {
		if err := s.root.Chmod(".", 0o700); err != nil {
			return err
		}
	}
	for _, name := range []string{recordsDir, trashDir} {
		if err := s.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := checkDir(s.root, name); err != nil {
			return err
		}
	}
	if s.records, err = s.root.OpenRoot(recordsDir); err != nil {
		return err
	}
	names, err := readNames(s.records)
	if err != nil {
		return err
	}
	s.count.Store(int64(len(names)))
	if s.lock, err = s.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	s.lockInfo, err = checkFile(s.root, lockName, s.lock)
	return err
}

// Close gives up every hold of the store; claims should have been released before.
// Nothing of the store and its claims may be used afterwards, but for releasing
// them.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.lock != nil {
		errs = append(errs, unlock(s.lock, 0, 0), s.lock.Close())
	}
	for _, root := range []*os.Root{s.records, s.root} {
		if root != nil {
			errs = append(errs, root.Close())
		}
	}
	return errors.Join(errs...)
}

// newID returns the id of a new record: 26 characters of a-z and 2-7, 130 random
// bits.
func newID() string { return strings.ToLower(rand.Text()) }

func validID(id string) bool {
	return len(id) == 26 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Create makes a record and holds it. It has no data. Of m the class is needed;
// Created and Used are now if they are zero. At Config.MaxRecords, the least
// recently used Box record that nobody holds goes first; processes that create at
// once may go a little over. The record is not waited for to reach the disk.
//
// Errors: ErrInvalid; a *FullError if there are too many records.
func (s *Store) Create(m Meta) (*Lease, error) {
	c, err := s.create(m)
	if err != nil {
		return nil, fmt.Errorf("make record: %w", err)
	}
	return c, nil
}

func (s *Store) create(m Meta) (_ *Lease, err error) {
	e := entry{}
	if e.Meta, err = s.meta(m, entry{}); err != nil {
		return nil, err
	}
	if err := s.roomForRecord(m.Owner); err != nil {
		return nil, err
	}
	id := newID()
	// Held before it exists: nobody takes it for one that was left behind.
	if err := s.takeHold(id, false); err != nil {
		return nil, err
	}
	c := &Lease{s: s, id: id, op: make(chan struct{}, 1), e: e}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.records.RemoveAll(id), c.drop())
		}
	}()
	if err := s.records.Mkdir(id, 0o700); err != nil {
		return nil, full(err)
	}
	if c.dir, err = s.records.OpenRoot(id); err != nil {
		return nil, err
	}
	if err := writeEntry(c.dir, metaName+newSuffix, &e, false); err != nil {
		return nil, err
	}
	if err := c.dir.Rename(metaName+newSuffix, metaName); err != nil {
		return nil, err
	}
	s.count.Add(1)
	return c, nil
}

// meta returns m as it is to be written over old: its times filled in, and what it
// cannot say taken from old.
func (s *Store) meta(m Meta, old entry) (Meta, error) {
	if old.Class != "" && m.Class != old.Class {
		return m, fmt.Errorf("the class %q of a record cannot become %.20q: %w", old.Class, m.Class, ErrInvalid)
	}
	now := s.now()
	m.Saved = old.Saved
	if m.Created.IsZero() {
		m.Created = old.Created
	}
	if m.Created.IsZero() {
		m.Created = now
	}
	if m.Used.IsZero() {
		m.Used = now
	}
	for _, t := range []*time.Time{&m.Created, &m.Used, &m.Saved} {
		*t = t.UTC().Round(0) // as it comes back from the disk
	}
	if err := m.check(); err != nil {
		return m, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return m, nil
}

// Acquire takes a record that nobody holds. The caller releases or removes it.
//
// Errors: ErrNotFound, ErrLeased, ErrDamaged.
func (s *Store) Acquire(id string) (*Lease, error) {
	dir, e, err := s.take(id, false)
	if err != nil {
		return nil, fmt.Errorf("claim record %.40q: %w", id, err)
	}
	c := &Lease{s: s, id: id, dir: dir, op: make(chan struct{}, 1), e: e}
	_ = c.reserve(0) // what a killed process had reserved; see abandon
	return c, nil
}

// Read holds the data of a record together with others who do the same, and
// returns the directory they are in. They stay there until release is called,
// which must be called and may be called more than once.
//
// Errors: ErrNotFound, also if there are no data; ErrLeased if somebody has claimed
// it, ErrDamaged.
func (s *Store) Read(id string) (dir string, m Meta, release func(), err error) {
	root, e, err := s.take(id, true)
	if err != nil {
		return "", Meta{}, nil, fmt.Errorf("read record %.40q: %w", id, err)
	}
	root.Close()
	drop := sync.OnceFunc(func() { _ = s.dropHold(id) }) // cannot fail on an open file
	if e.Gen == 0 {
		drop()
		return "", Meta{}, nil, fmt.Errorf("read record %.40q: it has no data: %w", id, ErrNotFound)
	}
	return s.dataPath(id, e.Gen), e.Meta, drop, nil
}

// Peek returns the directory of the data of a record without holding it: they may
// be replaced or removed at any time. It is for looking at them while another may
// claim the record.
//
// Errors: ErrNotFound, also if there are no data; ErrDamaged.
func (s *Store) Peek(id string) (dir string, m Meta, err error) {
	it := s.look(id)
	if it.err == nil && it.Gen == 0 {
		it.err = ErrNotFound
	}
	if it.err != nil {
		return "", Meta{}, fmt.Errorf("look at record %.40q: %w", id, it.err)
	}
	return s.dataPath(id, it.Gen), it.Meta, nil
}

// take holds a record and reads what it is.
func (s *Store) take(id string, shared bool) (_ *os.Root, _ entry, err error) {
	if !validID(id) {
		return nil, entry{}, ErrNotFound
	}
	if err := s.takeHold(id, shared); err != nil {
		return nil, entry{}, err
	}
	dir, e, err := s.load(id)
	if err == nil {
		err = checkData(dir, &e)
	}
	if err != nil {
		if dir != nil {
			dir.Close()
		}
		return nil, entry{}, errors.Join(err, s.dropHold(id))
	}
	return dir, e, nil
}

// Delete removes a record that nobody holds, damaged or not, and its data.
//
// Errors: ErrNotFound, ErrLeased.
func (s *Store) Delete(id string) error {
	if err := s.delete(id); err != nil {
		return fmt.Errorf("delete record %.40q: %w", id, err)
	}
	return nil
}

func (s *Store) delete(id string) error {
	if !validID(id) {
		return ErrNotFound
	}
	if err := s.takeHold(id, false); err != nil {
		return err
	}
	err := s.discard(id)
	return errors.Join(err, s.dropHold(id), s.emptyTrash(id))
}

// discard takes a record that the caller holds from among the others. Its files
// are in the trash then.
func (s *Store) discard(id string) error {
	err := s.root.Rename(recordsDir+"/"+id, trashDir+"/"+id)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err == nil {
		s.count.Add(-1)
	}
	return err
}

// emptyTrash removes one thing from the trash for good. Others may do the same.
func (s *Store) emptyTrash(name string) error {
	return s.root.RemoveAll(trashDir + "/" + name)
}

func (s *Store) dataPath(id string, gen uint64) string {
	return filepath.Join(s.dir, recordsDir, id, dataName(gen))
}
