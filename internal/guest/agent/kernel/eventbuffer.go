package kernel

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// eventBufferSize holds the output of most runs.
	eventBufferSize = 16 << 10
	// eventBufferHead precedes the events. Its words are the end of the events, the
	// read positions of the raw pipes of stdout and stderr, and the capacity for
	// events.
	eventBufferHead = 64
)

// eventBuffer is memory to which the kernel writes the first events of a run, which
// costs neither side a system call. When it is full, the run's further events use the
// pipe. It is for one goroutine at a time.
type eventBuffer struct {
	mem  []byte // nil: none
	room int    // capacity for events
	seen int    // bytes of events already taken
	copy []byte // of the events taken last
}

// newEventBuffer returns an event buffer and its file for the kernel.
func newEventBuffer() (*eventBuffer, *os.File, error) {
	b := &eventBuffer{}
	if runtime.GOARCH == "amd64" {
		// Only amd64 guarantees the order of stores without a barrier, which Python
		// does not have.
		b.room = eventBufferSize - eventBufferHead
	}
	fd, err := unix.MemfdCreate("glovebox-events", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kernel event buffer")
	// The pages are allocated here, and sealed: an access to a missing page would crash
	// the agent.
	_, err = f.Write(make([]byte, eventBufferSize))
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err == nil {
		b.mem, err = unix.Mmap(fd, 0, eventBufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("prepare memory file: %w", err)
	}
	b.word(3).Store(uint32(b.room))
	return b, f, nil
}

func (b *eventBuffer) word(i int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.mem[4*i]))
}

// reset empties the buffer for a run.
func (b *eventBuffer) reset() {
	if b.mem != nil {
		b.word(0).Store(0)
	}
	b.seen = 0
}

// position publishes how far a raw pipe was read, and whether a read is in progress,
// during which the position is meaningless.
func (b *eventBuffer) position(ch protocol.Channel, at uint32, reading bool) {
	if b.mem == nil {
		return
	}
	w := at << 1
	if reading {
		w |= 1
	}
	i := 1
	if ch == protocol.Stderr {
		i = 2
	}
	b.word(i).Store(w)
}

// take returns the events not yet taken. They are valid until the next take: it copies
// them, since the kernel may change the buffer at any time.
func (b *eventBuffer) take() []byte {
	if b.mem == nil {
		return nil
	}
	end := min(int(b.word(0).Load()), b.room)
	if end <= b.seen {
		return nil
	}
	b.copy = append(b.copy[:0], b.mem[eventBufferHead+b.seen:eventBufferHead+end]...)
	b.seen = end
	return b.copy
}

// close releases the memory. The buffer is empty from then on.
func (b *eventBuffer) close() {
	if b.mem != nil {
		unix.Munmap(b.mem)
		b.mem = nil
	}
}
