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

	"github.com/glovebox-dev/glovebox/internal/owned"
)

var (
	// ErrNotFound means that there is no such record, or that it has no data.
	ErrNotFound = errors.New("no such record")
	// ErrLeased means that the record is leased, by this process or another.
	ErrLeased = errors.New("the record is in use")
	// ErrDamaged means that the record is unusable: its files are corrupt, or of a
	// later version of the format.
	ErrDamaged = errors.New("the record is damaged")
	// ErrFull means that the store's limits or the disk leave no room. Errors of the
	// first kind are a *FullError.
	ErrFull = errors.New("no room for snapshots")
	// ErrInvalid means that a Meta violates its limits.
	ErrInvalid = errors.New("invalid record")
)

// FullError is an ErrFull with the shortfall that remains even if everything evictable
// is evicted. Nothing has been evicted.
type FullError struct {
	Missing int64 // bytes; 0: the number of records is the limit
	Limit   Limit // the limit that was reached
	Max     int64 // of LimitOwner and LimitSaved, in bytes
	Need    int64 // bytes of the record itself, for LimitOwner and LimitSaved; 0: unknown
}

// Limit is a limit of the store that a write reached.
type Limit string

const (
	LimitStore Limit = ""      // on all records, or the space on the disk
	LimitSaved Limit = "kept"  // on the Saved records of all owners
	LimitOwner Limit = "owner" // on the Saved records of one owner
)

func (e *FullError) Error() string {
	switch {
	case e.Limit == LimitOwner:
		return fmt.Sprintf("%v: the owner's saved snapshots would exceed %d bytes by %d", ErrFull, e.Max, e.Missing)
	case e.Limit == LimitSaved:
		return fmt.Sprintf("%v: all saved snapshots would exceed %d bytes by %d", ErrFull, e.Max, e.Missing)
	case e.Missing == 0:
		return ErrFull.Error() + ": the maximum number of records is in use"
	}
	return fmt.Sprintf("%v: %d bytes short", ErrFull, e.Missing)
}

// Is reports whether target is ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Why is the reason for removing a record without a request of its owner.
type Why string

const (
	Lost    Why = "lost"    // its creator was killed before it had data
	Age     Why = "age"     // not used for Config.MaxAge
	Evicted Why = "quota"   // the least recently used when space was needed
	Damaged Why = "damaged" // unreadable
)

// Removal is a record that is about to be removed, or that was. Of a damaged or lost one often
// only the ID is known.
type Removal struct {
	Record
	Why Why
}

// Record is the listing of a record.
type Record struct {
	ID string // assigned by the store
	Meta
	Bytes  int64 // of the data
	Leased bool  // by any process, including this one
	Own    bool  // leased by this process
	// Leaving means that the record is leased by another process, which has called Leave: it
	// is about to release it.
	Leaving bool
}

// defaultRecords is the default of Config.MaxRecords: file systems get slow at some
// 60,000 directories in one, and some refuse more.
const defaultRecords = 20_000

// Config configures a Store. Processes that share a directory should use the same
// limits; each enforces its own.
type Config struct {
	Dir        string        // created if missing, with mode 0700; its path must not change
	MaxBytes   int64         // of all data; 0: unlimited
	MinFree    int64         // bytes to leave free on the disk
	MaxSaved   int64         // of the data of one owner's Saved records; 0: a quarter of the store
	Reserved   func() int64  // more bytes to leave free, which others will write; nil: none
	MaxRecords int           // 0: 20,000
	MaxAge     time.Duration // since Used, of Box records without a lease; 0: unlimited
	// AgeGrace is how long, by the monotonic clock, sweeps must find a record expired
	// before it is removed, so that a clock that is wrong for a while costs nothing. 0:
	// removed at once.
	AgeGrace time.Duration
	// DiskGrace is how long the disk must have less than MinFree, at most 256 MiB, before
	// records are evicted for it, so that a disk that is full for a while costs nothing. Until
	// then, writes fail.
	DiskGrace time.Duration
	Log       *slog.Logger     // nil: none
	Now       func() time.Time // nil: time.Now

	// step is called at each step of a write or removal, in tests.
	step func(name string)
	// free replaces the measured free space of the disk, in tests.
	free func() int64
}

const (
	lockName   = "lock"
	recordsDir = "records"
	trashDir   = "trash"
	savedName  = "saved.json"
	metaName   = "meta.json"
	newSuffix  = ".new" // of files that are not complete
	dataPrefix = "data-"
)

// Store is a directory of records. Its methods may be called concurrently, also by
// several processes that opened the same directory.
type Store struct {
	cfg      Config
	log      *slog.Logger
	now      func() time.Time
	dir      string // absolute
	root     *os.Root
	records  *os.Root
	lock     *os.File
	lockInfo fs.FileInfo
	count    atomic.Int64 // of records: the last scan's, adjusted by own changes
	damaged  atomic.Bool  // the last scan found a damaged record

	// evictions is held by an eviction while it calls beforeRemove and removes records. An eviction
	// loses the state of a box, so no two evict for the same lack. Only reservations that must
	// evict wait for it. It is taken before space.
	evictions storeLock
	// space is held by a reservation from its look at the records until it has published what
	// it takes, so that no two take the same room. That reads what changed of the records and
	// replaces one file without a sync; nothing is removed meanwhile.
	space storeLock
	// beforeRemove is the function of BeforeRemove; nil: none.
	beforeRemove func([]Removal) (stay []string, err error)

	mu             sync.Mutex
	closed         bool                   // guarded by mu
	left           bool                   // guarded by mu; Leave was called
	leases         map[string]*localLease // guarded by mu; of this process, by id
	listed         listing                // guarded by mu; of the last scan that read the directory
	seen           map[string]seen        // guarded by mu, the map is immutable; result of the last scan
	aged           map[string]time.Time   // guarded by mu; since when sweeps have found records expired
	hookDone       map[string]time.Time   // guarded by mu; last use of the records that are still there although beforeRemove has succeeded for them
	diskShortSince time.Time              // guarded by mu; since when sweeps have found the disk short; zero: it is not
	usage                                 // guarded by mu
}

// BeforeRemove sets a function that Create, Write, Sweep and RemoveDamaged call before they remove
// records, so that either the record or a tombstone of it always exists. The function returns the
// IDs of the records for which it could make no tombstone, with an error that says why. These records
// stay, and a later Sweep tries again.
//
// The function gets many records at once where many go. It runs in the goroutine of the caller of
// these methods. It may get a record that then cannot be removed; it gets that one again only if the
// record was used meanwhile. While it runs, other evictions wait, of all processes, and writes that
// evict nothing go on. The function must not call Write or Create of the store, which may wait for
// it. Call BeforeRemove before any of these methods.
func (s *Store) BeforeRemove(f func([]Removal) (stay []string, err error)) {
	s.beforeRemove = f
}

// Open opens the store in cfg.Dir. The caller must Close it. It fails if the directory
// belongs to another user, or the platform has no file locks.
func Open(cfg Config) (_ *Store, err error) {
	s := &Store{
		cfg: cfg, log: cfg.Log, now: cfg.Now,
		evictions: newStoreLock(evictionLockOffset, "evictions"), space: newStoreLock(spaceLockOffset, "disk space"),
		leases: make(map[string]*localLease), hookDone: make(map[string]time.Time), usage: newUsage(),
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
	if err := owned.AboveState(s.dir); err != nil {
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

// Close ends all leases of the store, which should have been released before. Only
// Release may be called on its leases afterwards.
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

// Create makes a leased record without data. m.Purpose is required; zero Created and Used
// become now. At Config.MaxRecords it evicts the least recently used Box record without
// a lease; concurrent processes may exceed the limit slightly. Create does not sync.
//
// Errors: ErrInvalid; a *FullError if there are too many records.
func (s *Store) Create(m Meta) (*Lease, error) {
	lease, err := s.create(m)
	if err != nil {
		return nil, fmt.Errorf("make record: %w", err)
	}
	return lease, nil
}

func (s *Store) create(m Meta) (_ *Lease, err error) {
	e := entry{}
	if e.Meta, err = s.meta(m, entry{}); err != nil {
		return nil, err
	}
	if err := s.reserveRecord(m.Owner); err != nil {
		return nil, err
	}
	id := newID()
	// Leased before it exists, so that no process takes it for an abandoned one.
	if err := s.acquireLease(id, false); err != nil {
		return nil, err
	}
	lease := &Lease{s: s, id: id, op: make(chan struct{}, 1), e: e}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.records.RemoveAll(id), lease.release())
		}
	}()
	if err := s.records.Mkdir(id, 0o700); err != nil {
		return nil, full(err)
	}
	if lease.dir, err = s.records.OpenRoot(id); err != nil {
		return nil, err
	}
	if err := writeEntry(lease.dir, metaName+newSuffix, &e, false); err != nil {
		return nil, err
	}
	if err := lease.dir.Rename(metaName+newSuffix, metaName); err != nil {
		return nil, err
	}
	s.count.Add(1)
	return lease, nil
}

// meta returns m as it replaces old: with its times filled in, and the fields that m
// cannot set taken from old.
func (s *Store) meta(m Meta, old entry) (Meta, error) {
	if old.Purpose != "" && m.Purpose != old.Purpose {
		return m, fmt.Errorf("class %q of a record cannot change to %.20q: %w", old.Purpose, m.Purpose, ErrInvalid)
	}
	now := s.now()
	m.Written = old.Written
	if m.Created.IsZero() {
		m.Created = old.Created
	}
	if m.Created.IsZero() {
		m.Created = now
	}
	if m.Used.IsZero() {
		m.Used = now
	}
	for _, t := range []*time.Time{&m.Created, &m.Used, &m.Written} {
		*t = t.UTC().Round(0) // as read back from the disk
	}
	if err := m.check(); err != nil {
		return m, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return m, nil
}

// Acquire leases a record. The caller must release or remove it.
//
// Errors: ErrNotFound, ErrLeased, ErrDamaged.
func (s *Store) Acquire(id string) (*Lease, error) {
	dir, e, err := s.leaseAndLoad(id, false)
	if err != nil {
		return nil, fmt.Errorf("acquire record %.40q: %w", id, err)
	}
	if e.Stale && isQuiescent(dir) {
		e.Stale = false
	}
	lease := &Lease{s: s, id: id, dir: dir, op: make(chan struct{}, 1), e: e}
	_ = lease.reserve(0) // clear a reservation of a killed process
	return lease, nil
}

// Read leases a record for reading, shared with other readers, and returns the
// directory of its data. The data stay until release is called, which is required and
// idempotent.
//
// Errors: ErrNotFound, also if there are no data; ErrLeased if it has an exclusive
// lease; ErrDamaged.
func (s *Store) Read(id string) (dir string, m Meta, release func(), err error) {
	root, e, err := s.leaseAndLoad(id, true)
	if err != nil {
		return "", Meta{}, nil, fmt.Errorf("read record %.40q: %w", id, err)
	}
	root.Close()
	drop := sync.OnceFunc(func() { _ = s.releaseLease(id) }) // cannot fail on an open file
	if e.Gen == 0 {
		drop()
		return "", Meta{}, nil, fmt.Errorf("read record %.40q: it has no data: %w", id, ErrNotFound)
	}
	return s.dataPath(id, e.Gen), e.Meta, drop, nil
}

// Peek returns the directory of a record's data without a lease: the data may be
// replaced or removed at any time.
//
// Errors: ErrNotFound, also if there are no data; ErrDamaged.
func (s *Store) Peek(id string) (dir string, m Meta, err error) {
	it := s.readItem(id)
	if it.err == nil && it.Gen == 0 {
		it.err = ErrNotFound
	}
	if it.err != nil {
		return "", Meta{}, fmt.Errorf("peek at record %.40q: %w", id, it.err)
	}
	return s.dataPath(id, it.Gen), it.Meta, nil
}

// leaseAndLoad leases a record and reads its entry.
func (s *Store) leaseAndLoad(id string, shared bool) (_ *os.Root, _ entry, err error) {
	if !validID(id) {
		return nil, entry{}, ErrNotFound
	}
	if err := s.acquireLease(id, shared); err != nil {
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
		return nil, entry{}, errors.Join(err, s.releaseLease(id))
	}
	return dir, e, nil
}

// Delete removes a record without a lease, damaged or not, with its data.
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
	if err := s.acquireLease(id, false); err != nil {
		return err
	}
	err := s.moveToTrash(id)
	return errors.Join(err, s.releaseLease(id), s.removeFromTrash(id))
}

// moveToTrash moves a leased record to the trash.
func (s *Store) moveToTrash(id string) error {
	s.cfg.step("trash " + id)
	err := s.root.Rename(recordsDir+"/"+id, trashDir+"/"+id)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err == nil {
		s.count.Add(-1)
		s.mu.Lock()
		delete(s.hookDone, id)
		s.mu.Unlock()
	}
	return err
}

// removeFromTrash deletes one entry of the trash. Other processes may delete it
// concurrently.
func (s *Store) removeFromTrash(name string) error {
	err := s.root.RemoveAll(trashDir + "/" + name)
	if err == nil {
		s.mu.Lock()
		s.resizeLocked(name, 0)
		s.mu.Unlock()
	}
	return err
}

func (s *Store) dataPath(id string, gen uint64) string {
	return filepath.Join(s.dir, recordsDir, id, dataName(gen))
}
