//go:build !linux

package proctest

import (
	"testing"
	"time"
)

// Main runs the tests of m. Only on Linux does it look for processes that they left.
func Main(m *testing.M) int { return m.Run() }

// WaitUnused does nothing: only Linux shows what processes use.
func WaitUnused(testing.TB, string, time.Duration) {}
