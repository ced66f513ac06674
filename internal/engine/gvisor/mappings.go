//go:build linux && (amd64 || arm64)

package gvisor

import (
	"runtime"
	"sync"
	"weak"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// mappingCalls are the system calls that make or split mappings, each at most two.
var mappingCalls = []uintptr{unix.SYS_MMAP, unix.SYS_MREMAP, unix.SYS_SHMAT, unix.SYS_MPROTECT, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MLOCK}

// boundMappings makes these calls fail with ENOMEM in a program that has too many
// mappings, as Linux does. Beyond the limit of the host, gVisor itself would fail and end
// the guest. Only three quarters of that limit are for programs, since gVisor may need
// several mappings of the host for one of a program.
func boundMappings() {
	b := &mappingBound{limit: maxMappings() * 3 / 4, counts: make(map[weak.Pointer[mm.MemoryManager]]int64)}
	table := linux.AMD64
	if runtime.GOARCH == "arm64" {
		table = linux.ARM64
	}
	for _, number := range mappingCalls {
		call, ok := table.Table[number]
		if !ok {
			continue
		}
		serve := call.Fn
		call.Fn = func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			// A program frees whole mappings also at the limit.
			if !b.add(t) && number != unix.SYS_MUNMAP {
				return 0, nil, linuxerr.ENOMEM
			}
			return serve(t, number, args)
		}
		table.Table[number] = call
	}
	table.Init()
}

// mappingBound counts the mappings of programs.
type mappingBound struct {
	limit int64

	mu sync.Mutex
	// counts are upper bounds of the mappings of each address space. Guarded by mu.
	counts map[weak.Pointer[mm.MemoryManager]]int64
}

// add reports whether a program may make or split a mapping.
func (b *mappingBound) add(t *kernel.Task) bool {
	space := t.MemoryManager()
	if space == nil {
		return true // the program is ending
	}
	key := weak.Make(space)
	b.mu.Lock()
	n, known := b.counts[key]
	if known && n+2 <= b.limit {
		b.counts[key] = n + 2
		b.mu.Unlock()
		return true
	}
	b.mu.Unlock()

	n = 0
	space.ReadMapsDataInto(t, func(hostarch.Addr, hostarch.Addr, hostarch.AccessType, string, uint64, uint32, uint32, uint64, string) {
		n++
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.counts[key]; !known {
		runtime.AddCleanup(space, b.forget, key)
	}
	b.counts[key] = n + 2
	return n+2 <= b.limit
}

func (b *mappingBound) forget(key weak.Pointer[mm.MemoryManager]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.counts, key)
}
