package posture

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:generate go run ./docgen ../../docs/threat-model.md

// Mode is how the server was started.
type Mode string

// The modes.
const (
	ModeRoot      Mode = "root"
	ModeUser      Mode = "ordinary user"
	ModeContainer Mode = "container"
	// ModeNested is root of a user namespace with users of its own, such as in a
	// container without privileges on the host.
	ModeNested Mode = "root of a user namespace"
)

// whose says whose user or user namespace a process has.
type whose string

const (
	hosts   whose = "the host's"
	servers whose = "the server's"
	own     whose = "its own"
	root    whose = "root"
	starter whose = "the caller's"
	nobody  whose = "nobody"
)

// promise is what a process of a role is promised to be.
type promise struct {
	role      Role
	user      whose
	namespace whose
	caps      []string // at most these, held or possible to gain
	filtered  bool     // its system calls
}

var (
	serverCaps = []string{
		"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
		"NET_BIND_SERVICE", "SYS_CHROOT", "SYS_ADMIN", "SETFCAP",
	}
	sentryCaps = []string{"SYS_PTRACE"}
	goferCaps  = []string{"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "SYS_CHROOT"}
)

var ofRoot = []promise{
	{role: Server, user: root, namespace: hosts, caps: serverCaps},
	{role: Sentry, user: own, namespace: own, caps: sentryCaps, filtered: true},
	{role: Stub, user: own, namespace: own, caps: sentryCaps, filtered: true},
	{role: Gofer, user: root, namespace: own, caps: goferCaps, filtered: true},
}

var ofOthers = []promise{
	{role: Server, user: starter, namespace: own, caps: serverCaps},
	{role: Sentry, user: servers, namespace: own, caps: sentryCaps, filtered: true},
	{role: Stub, user: servers, namespace: own, caps: sentryCaps, filtered: true},
	{role: Gofer, user: servers, namespace: own, caps: goferCaps, filtered: true},
}

// ofNested: the sentries share a user, since such a namespace seldom has users to spare.
var ofNested = []promise{
	{role: Server, user: starter, namespace: starter, caps: serverCaps},
	{role: Sentry, user: nobody, namespace: own, caps: sentryCaps, filtered: true},
	{role: Stub, user: nobody, namespace: own, caps: sentryCaps, filtered: true},
	{role: Gofer, user: servers, namespace: own, caps: goferCaps, filtered: true},
}

// promises is the table in docs/threat-model.md. Beyond it, Check demands of every
// process what the document says of every process.
var promises = map[Mode][]promise{ModeRoot: ofRoot, ModeUser: ofOthers, ModeContainer: ofOthers, ModeNested: ofNested}

// modes lists the modes in the order of the document.
var modes = []Mode{ModeRoot, ModeUser, ModeContainer, ModeNested}

// ModeOf returns the mode of a server with these facts.
func ModeOf(server Facts) Mode {
	switch {
	case !server.enclosed():
		return ModeRoot
	case server.maps(overflow):
		return ModeNested
	case InContainer():
		return ModeContainer
	}
	return ModeUser
}

// InContainer guesses whether this process runs in a container.
func InContainer() bool {
	return inContainer("/", os.Getenv("KUBERNETES_SERVICE_HOST"))
}

// inContainer is InContainer below a root directory. The marks that container runtimes leave in
// their file systems are not enough: a virtual machine that was made of a container image has them
// too, but its processes are in the first namespaces of its kernel.
func inContainer(root, cluster string) bool {
	if cluster != "" {
		return true
	}
	marked := slices.ContainsFunc([]string{".dockerenv", "run/.containerenv"}, func(mark string) bool {
		_, err := os.Stat(filepath.Join(root, mark))
		return err == nil
	})
	return marked && slices.ContainsFunc(firstNamespaces, func(first string) bool {
		kind, _, _ := strings.Cut(first, ":")
		is, err := os.Readlink(filepath.Join(root, "proc/self/ns", kind))
		return err == nil && is != first
	})
}

// firstNamespaces are the namespaces that Linux starts with, whose numbers are constants of it.
// The server gets no others of these kinds by entering its own.
var firstNamespaces = []string{"cgroup:[4026531835]", "pid:[4026531836]", "uts:[4026531838]", "ipc:[4026531839]"}

// enclosed reports whether the user namespace of a process has not all users.
func (f *Facts) enclosed() bool {
	return !slices.Equal(f.UIDMap, []string{"0 0 4294967295"})
}

// boxUser is the user of programs in boxes.
const boxUser = 1000

// mapsOthers reports whether the user namespace of a process has users other than its own and
// boxUser.
func (f *Facts) mapsOthers() bool {
	return slices.ContainsFunc(f.UIDMap, func(line string) bool {
		var inside, outside, n uint32
		_, err := fmt.Sscan(line, &inside, &outside, &n)
		return err != nil || n != 1 || outside != f.UID && outside != boxUser
	})
}

// overflow is the user nobody, which is also the id that the kernel shows for one without a
// mapping.
const overflow = 65534

// maps reports whether the user namespace of a process has a user.
func (f *Facts) maps(id uint32) bool {
	_, ok := translate(f.UIDMap, id)
	return ok
}

// translate returns the id outside of a user namespace of one inside, or reports false if
// it has none.
func translate(table []string, id uint32) (uint32, bool) {
	for _, line := range table {
		var first, other, n uint32
		if _, err := fmt.Sscan(line, &first, &other, &n); err == nil && id >= first && id-first < n {
			return other + (id - first), true
		}
	}
	return id, false
}

// firstOwn and lastOwn bound the users of sentries under a server of root.
const (
	firstOwn = 0x70000000
	lastOwn  = firstOwn + 1<<16 - 1
)

// IsSentryUser reports whether a server that runs as root gives this user to a sentry.
func IsSentryUser(uid uint32) bool { return uid >= firstOwn && uid <= lastOwn }

// Check compares a process of a box with the promises. groups says whether the kernel
// enforces the box's limits. Each difference is one line.
func Check(mode Mode, server, f Facts, groups bool) []string {
	var differs []string
	fail := func(format string, args ...any) { differs = append(differs, fmt.Sprintf(format, args...)) }
	i := slices.IndexFunc(promises[mode], func(p promise) bool { return p.role == f.Role })
	if i < 0 {
		return []string{fmt.Sprintf("role %q is not in the threat model", f.Role)}
	}
	p := promises[mode][i]
	switch p.user {
	case root:
		if f.UID != 0 || f.GID != 0 {
			fail("runs as user %d and group %d instead of root", f.UID, f.GID)
		}
	case own:
		if !IsSentryUser(f.UID) || f.GID != f.UID {
			fail("runs as user %d and group %d instead of one of its own", f.UID, f.GID)
		}
		if f.mapsOthers() {
			fail("is in a user namespace that maps %q, more than its own user and user %d", f.UIDMap, boxUser)
		}
	case nobody:
		if want, _ := translate(server.UIDMap, overflow); f.UID != want || f.GID == server.GID {
			fail("runs as user %d and group %d instead of nobody, %d", f.UID, f.GID, want)
		}
	case servers:
		if f.UID != server.UID || f.GID != server.GID {
			fail("runs as user %d and group %d, the server as %d and %d", f.UID, f.GID, server.UID, server.GID)
		}
	}
	if (mode == ModeRoot || mode == ModeNested) && len(f.Groups) > 0 && f.Role != Server {
		fail("has supplementary groups %v", f.Groups)
	}
	if p.namespace == own && f.Role != Server && f.UserNamespace == server.UserNamespace {
		fail("is in the server's user namespace")
	}
	if extra := beyond(f.Capabilities, p.caps); len(extra) > 0 {
		fail("holds the capabilities %s", strings.Join(extra, " "))
	}
	if extra := beyond(f.Bounding, p.caps); len(extra) > 0 {
		fail("can gain the capabilities %s", strings.Join(extra, " "))
	}
	if p.filtered && !f.Seccomp {
		fail("has no filter of system calls")
	}
	if !f.NoNewPrivs {
		fail("can gain privileges by executing a program: NoNewPrivs is not set")
	}
	if f.CoreDumps {
		fail("can dump core")
	}
	if f.Role == Server {
		return differs
	}
	for _, ns := range f.Namespaces {
		kind, _, _ := strings.Cut(ns, ":")
		if slices.Contains(separate, kind) && slices.Contains(server.Namespaces, ns) {
			fail("is in the server's %s namespace", kind)
		}
	}
	if f.OOMScoreAdj <= server.OOMScoreAdj && server.OOMScoreAdj < maxOOMScore {
		fail("has the oom_score_adj %d, the server %d: the kernel could end the server first", f.OOMScoreAdj, server.OOMScoreAdj)
	}
	if groups && f.MemoryGroup == server.MemoryGroup {
		fail("is in the server's cgroup %s", f.MemoryGroup)
	}
	for _, d := range f.Suspicious {
		fail("has the descriptor %s", d)
	}
	return differs
}

// maxOOMScore is the highest oom_score_adj.
const maxOOMScore = 1000

// separate are the kinds of namespaces that the processes of a box do not share with the
// server, apart from the user namespace.
var separate = []string{"pid", "mnt", "net", "ipc", "uts"}

// beyond returns the elements of list that are not in allowed.
func beyond(list, allowed []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(allowed, s) })
}

// The lines between which Document puts the table.
const (
	begin = "<!-- posture: written by go generate ./internal/posture -->"
	end   = "<!-- end of posture -->"
)

// Document returns text, the threat model, with the table of promises in its place.
func Document(text string) (string, error) {
	head, rest, ok := strings.Cut(text, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("find %q and %q: missing", begin, end)
	}
	var b strings.Builder
	b.WriteString("| mode | process | user | user namespace | capabilities at most | system call filter |\n|---|---|---|---|---|---|\n")
	for _, m := range modes {
		for _, p := range promises[m] {
			filter := "no"
			if p.filtered {
				filter = "yes"
			}
			user := string(p.user)
			if p.user == own {
				user = fmt.Sprintf("its own, %d to %d", firstOwn, lastOwn)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", m, p.role, user, p.namespace, strings.Join(p.caps, ", "), filter)
		}
	}
	return head + begin + "\n" + b.String() + end + tail, nil
}
