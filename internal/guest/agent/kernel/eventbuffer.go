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
	// eventBufferHead comes before the events. Its words say where they end, how far
	// the raw pipes of stdout and stderr were read, and how many bytes of events
	// there is room for.
	eventBufferHead = 64
)

// A board is memory that the kernel writes the first events of a run to, which
// costs neither of us a system call. When it is full the rest of the run's
// events goes through the pipe. It is for one goroutine at a time.
type eventBuffer struct {
	mem  []byte // nil: there is none
	room int    // for events
	seen int    // bytes of events taken
	copy []byte // of what was taken last
}

// newEventBuffer makes a board and the file of it that the kernel gets.
func newEventBuffer() (*eventBuffer, *os.File, error) {
	b := &eventBuffer{}
	if runtime.GOARCH == "amd64" {
		// Only there are stores seen in the order in which they are made, without
		// a barrier, which Python does not have.
		b.room = eventBufferSize - eventBufferHead
	}
	fd, err := unix.MemfdCreate("glovebox-board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kernel board")
	// Pages are set aside here, and never fewer: an access to one that is missing
	// would end us.
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

// reset empties the board for a run.
func (b *eventBuffer) reset() {
	if b.mem != nil {
		b.word(0).Store(0)
	}
	b.seen = 0
}

// position tells the kernel how far a raw pipe was read, and whether it is being
// read at this moment: then there is nothing to go by.
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

// take returns the events that were not yet taken. They are valid until the next
// take: the kernel may change the board at any time.
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

// close gives the memory back. The board is empty from then on.
func (b *eventBuffer) close() {
	if b.mem != nil {
		unix.Munmap(b.mem)
		b.mem = nil
	}
}
