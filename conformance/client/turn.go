package main

import (
	"fmt"
	"hash/fnv"
	"path/filepath"

	"github.com/gofrs/flock"
)

// atOnce is how many clients work at a time. The suite starts all that it has,
// which on a busy machine would leave each too little to be in time.
const atOnce = 4

// turn waits for a turn among the clients that share a directory, and returns what
// ends it. Without a directory nobody is waited for.
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
