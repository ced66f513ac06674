//go:build linux

package attack

import (
	"fmt"
	"os"
	"strconv"
)

func kernelMemoryClass() class {
	memory := func(name, claim, function string) Attack {
		return Attack{Name: name, Claim: claim, Alone: true, run: memoryAttack(function)}
	}
	bounded := func(what string) string { return what + " cannot take more of the host's memory than a box may" }
	return class{
		name:  "kernel-memory",
		about: "A box makes the kernels keep memory for it. The judge measures the memory that the host has available.",
		attacks: []Attack{
			memory("anonymous", bounded("anonymous pages"), "anonymous"),
			memory("anonymous-in-processes", bounded("anonymous pages of many processes"), "anonymous_in_processes"),
			memory("fork-copies", bounded("copies of pages after forks"), "fork_copies"),
			memory("shared-anonymous", bounded("shared anonymous pages"), "shared_anonymous"),
			memory("page-tables", bounded("page tables for one page mapped many times"), "page_tables"),
			memory("mappings", bounded("a mapping for every second page"), "mappings"),
			memory("descriptors", bounded("open descriptors"), "descriptors"),
			memory("eventfds", bounded("eventfds"), "eventfds"),
			memory("epoll", bounded("nested epoll sets"), "epoll"),
			memory("inotify", bounded("inotify watches and events"), "inotify"),
			memory("timers", bounded("timers"), "timers"),
			memory("unix-sockets", bounded("full Unix sockets"), "unix_sockets"),
			memory("tcp-sockets", bounded("full loopback connections"), "tcp_sockets"),
			memory("rights-in-flight", bounded("chains of descriptors in flight (SCM_RIGHTS)"), "rights_in_flight"),
			memory("extended-attributes", bounded("extended attributes"), "extended_attributes"),
			memory("pipes", bounded("full pipes"), "pipes"),
			memory("shared-memory", bounded("shared memory of System V"), "system_v_shared_memory"),
			memory("message-queues", bounded("message queues of System V"), "message_queues"),
			memory("dev-shm", bounded("files in /dev/shm"), "dev_shm"),
			memory("memfds", bounded("memfds"), "memfds"),
			memory("small-files", bounded("a flood of empty files"), "files_in_memory"),
			memory("links", bounded("a flood of long symbolic links"), "links_in_memory"),
			memory("missing-names", bounded("look-ups of names that do not exist"), "negative_entries"),
			memory("file-locks", bounded("file locks"), "file_locks"),
			memory("queued-signals", bounded("queued signals"), "queued_signals"),
			memory("long-arguments", bounded("long arguments of many processes"), "long_arguments"),
			memory("terminals", bounded("pseudo-terminals"), "terminals"),
			memory("threads", bounded("threads"), "threads"),
			memory("mremap", bounded("a mapping that grows"), "remapping"),
			memory("sparse-files", bounded("holes of sparse files that are read"), "sparse_files"),
		},
	}
}

// hostThreads returns the number of threads of the processes.
func hostThreads(list []proc) (n int) {
	for _, p := range list {
		if tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid)); err == nil {
			n += len(tasks)
		}
	}
	return n
}

// hostDescriptors returns the number of open descriptors of the process that has
// most: the others of a box share its table.
func hostDescriptors(list []proc) (n int) {
	for _, p := range list {
		if fds, err := os.ReadDir("/proc/" + strconv.Itoa(p.pid) + "/fd"); err == nil {
			n = max(n, len(fds))
		}
	}
	return n
}
