package engine

import "errors"

// The sentinels of the contract, the only errors callers may tell apart. They
// come wrapped; test with errors.Is.
var (
	// ErrNotFound: no such guest.
	ErrNotFound = errors.New("not found")
	// ErrExists: the id is taken by a living guest.
	ErrExists = errors.New("already exists")
	// ErrInvalid: the caller asked for something that makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported: it makes sense, but this engine or host cannot do it.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable: the engine cannot work now; trying later may help.
	ErrUnavailable = errors.New("unavailable")
	// ErrExhausted: a resource of the host (disk, memory, processes) ran out.
	ErrExhausted = errors.New("exhausted")
	// ErrGone: the guest or engine has ended.
	ErrGone = errors.New("gone")
)
