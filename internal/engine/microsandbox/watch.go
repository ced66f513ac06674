//go:build linux

package microsandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// watchEvery is the interval of the checks whether the agent has ended. A check takes
	// some 50 µs.
	watchEvery = 250 * time.Millisecond
	// ownSockets is how many sockets a msb has that is connected to nothing: a pair with
	// which it tells itself of signals, one end twice.
	ownSockets = 3
)

// watch closes the stream once the agent has ended with code 0. The msb that runs the agent
// does not end by itself then, as it does with any other code: a thread of it goes on
// reading its standard input. It has let go of the sandbox, though, and has only sockets of
// its own. watch returns when that msb has ended.
func (g *guest) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	connected, alone := false, 0
	for {
		select {
		case <-g.client:
			return
		case <-tick.C:
		}
		switch n, err := sockets(g.cmd.Process.Pid); {
		case err != nil: // it is ending
		case n > ownSockets:
			connected, alone = true, 0
		case connected:
			alone++
		}
		if alone == 2 { // not just between two connections
			g.stream.Close() // an error of closing a pipe has no remedy
			<-g.client
			return
		}
	}
}

// sockets returns how many descriptors of a process are sockets.
func sockets(pid int) (int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	f, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, name := range names {
		if target, err := os.Readlink(filepath.Join(dir, name)); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n, nil
}
