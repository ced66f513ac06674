package main

import (
	"fmt"
	"hash/fnv"
	"path/filepath"

	"github.com/gofrs/flock"
)

// atOnce bounds the clients that run at a time. The suite starts all at once, too many
// for its timeouts on a busy machine.
const atOnce = 4

// turn waits for one of atOnce places among the clients that share a directory. The
// returned function frees it. Without a directory there is no limit.
func turn(dir, scenario string) (end func(), err error) {
	if dir == "" {
		return func() {}, nil
	}
	h := fnv.New32a()
	h.Write([]byte(scenario))
	l := flock.New(filepath.Join(dir, fmt.Sprintf("turn-%d", h.Sum32()%atOnce)))
	if err := l.Lock(); err != nil {
		return nil, fmt.Errorf("wait for a turn: %w", err)
	}
	return func() { _ = l.Close() }, nil // the end of the process does it too
}
