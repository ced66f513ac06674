package engine

import "errors"

// The sentinels of the contract, the only errors that callers distinguish.
// Engines wrap them; test with errors.Is.
var (
	// ErrExists: a living guest has the id.
	ErrExists = errors.New("already exists")
	// ErrInvalid: the request makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrDamaged: a snapshot is incomplete or was changed. It is an ErrInvalid.
	ErrDamaged = invalid("damaged")
	// ErrUnsupported: the request makes sense, but this engine or host cannot
	// fulfil it.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable: the engine cannot work now; a retry may succeed.
	ErrUnavailable = errors.New("unavailable")
	// ErrExhausted: a resource of the host (disk, memory, processes) ran out.
	ErrExhausted = errors.New("exhausted")
	// ErrGone: the guest or engine has ended.
	ErrGone = errors.New("gone")
)
