//go:build linux

package posture

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sentry returns the facts of a sentry and its server, under root, that are as promised.
func sentry() (server, f Facts) {
	server = Facts{
		Role: Server, UserNamespace: "user:[1]", UIDMap: []string{"0 0 4294967295"},
		Namespaces:   []string{"cgroup:[9]", "ipc:[1]", "mnt:[1]", "net:[1]", "pid:[1]", "uts:[1]"},
		Capabilities: serverCaps, Bounding: serverCaps, NoNewPrivs: true, MemoryGroup: "/",
	}
	f = Facts{
		Role: Sentry, UID: firstOwn + 7, GID: firstOwn + 7, UserNamespace: "user:[2]", UIDMap: []string{"0 1879048199 1", "1000 1000 1"},
		Namespaces:   []string{"cgroup:[9]", "ipc:[2]", "mnt:[2]", "net:[2]", "pid:[2]", "uts:[2]"},
		Capabilities: []string{"SYS_PTRACE"}, Bounding: []string{"SYS_PTRACE"}, Seccomp: true, NoNewPrivs: true, MemoryGroup: "/box", OOMScoreAdj: 500,
	}
	return server, f
}

func TestCheck_FindsEachDifference(t *testing.T) {
	server, f := sentry()
	if got := Check(ModeRoot, server, f, true); len(got) > 0 {
		t.Fatalf("as promised: %q", got)
	}
	if got := Check(ModeRoot, server, server, true); len(got) > 0 {
		t.Fatalf("server as promised: %q", got)
	}
	for want, change := range map[string]func(*Facts){
		"user 0 and group":            func(f *Facts) { f.UID, f.UIDMap = 0, nil },
		"maps [\"0 0 4294967295\"]":   func(f *Facts) { f.UIDMap = []string{"0 0 4294967295"} },
		"maps [\"0 1879048199 2\"]":   func(f *Facts) { f.UIDMap = []string{"0 1879048199 2"} },
		"and group 0 instead":         func(f *Facts) { f.GID = 0 },
		"supplementary groups [4]":    func(f *Facts) { f.Groups = []uint32{4} },
		"server's user namespace":     func(f *Facts) { f.UserNamespace = "user:[1]" },
		"holds the capabilities KILL": func(f *Facts) { f.Capabilities = []string{"KILL", "SYS_PTRACE"} },
		"can gain the capabilities":   func(f *Facts) { f.Bounding = []string{"CHOWN"} },
		"no filter":                   func(f *Facts) { f.Seccomp = false },
		"NoNewPrivs is not set":       func(f *Facts) { f.NoNewPrivs = false },
		"dump core":                   func(f *Facts) { f.CoreDumps = true },
		"server's net namespace":      func(f *Facts) { f.Namespaces = []string{"net:[1]"} },
		"server's cgroup /":           func(f *Facts) { f.MemoryGroup = "/" },
		"descriptor /etc/passwd":      func(f *Facts) { f.Suspicious = []string{"/etc/passwd"} },
		"has the oom_score_adj 0":     func(f *Facts) { f.OOMScoreAdj = 0 },
		"not in the threat model":     func(f *Facts) { f.Role = "helper" },
	} {
		_, f := sentry()
		change(&f)
		if got := Check(ModeRoot, server, f, true); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("got %q, want one with %q", got, want)
		}
	}
	// Without cgroups of its own, the server's is no difference.
	f.MemoryGroup = "/"
	if got := Check(ModeRoot, server, f, false); len(got) > 0 {
		t.Errorf("without cgroups: %q", got)
	}
	// An ordinary user's sentry runs as that user.
	server.UID, server.GID, server.UIDMap = 1000, 1000, []string{"0 1000 1"}
	if got := ModeOf(server); got != ModeUser && !InContainer() {
		t.Errorf("mode: got %s", got)
	}
	if got := Check(ModeUser, server, f, false); len(got) != 1 || !strings.Contains(got[0], "the server as 1000") {
		t.Errorf("another user: %q", got)
	}
}

// TestCheck_EachNamespaceOfEachRole: each part of a box has namespaces of its own, and ends before the
// server when memory is short.
func TestCheck_EachNamespaceOfEachRole(t *testing.T) {
	for _, role := range []Role{Sentry, Stub, Gofer} {
		parts := func() (server, f Facts) {
			server, f = sentry()
			if f.Role = role; role == Gofer {
				f.UID, f.GID, f.Capabilities, f.Bounding = 0, 0, goferCaps, goferCaps
			}
			return server, f
		}
		server, f := parts()
		if got := Check(ModeRoot, server, f, true); len(got) > 0 {
			t.Errorf("%s as promised: %q", role, got)
		}
		for _, kind := range []string{"pid", "mnt", "net", "ipc", "uts"} {
			server, f := parts()
			f.Namespaces = []string{kind + ":[1]"}
			if got := Check(ModeRoot, server, f, true); len(got) != 1 || !strings.Contains(got[0], "server's "+kind+" namespace") {
				t.Errorf("%s in the server's %s namespace: got %q", role, kind, got)
			}
		}
		f.OOMScoreAdj = server.OOMScoreAdj
		if got := Check(ModeRoot, server, f, true); len(got) != 1 || !strings.Contains(got[0], "oom_score_adj") {
			t.Errorf("%s with the oom_score_adj of the server: got %q", role, got)
		}
		server.OOMScoreAdj, f.OOMScoreAdj = maxOOMScore, maxOOMScore
		if got := Check(ModeRoot, server, f, true); len(got) > 0 {
			t.Errorf("%s beside a server with the highest oom_score_adj: got %q", role, got)
		}
	}
}

// TestCheck_UsersAndGroups: a difference of the group alone is one, and so is a user of a sentry's
// namespace that is neither its own nor that of programs.
func TestCheck_UsersAndGroups(t *testing.T) {
	server, f := sentry()
	f.UIDMap = []string{"0 1879048199 1", "1000 1000 1", "5 5 1"}
	if got := Check(ModeRoot, server, f, true); len(got) != 1 || !strings.Contains(got[0], "more than its own user") {
		t.Errorf("another user in the namespace: %q", got)
	}
	server.UID, server.GID = 1000, 1000
	f.UID, f.GID = 1000, 1000
	if got := Check(ModeUser, server, f, true); len(got) > 0 {
		t.Errorf("an ordinary user's: %q", got)
	}
	f.GID = 4
	if got := Check(ModeUser, server, f, true); len(got) != 1 || !strings.Contains(got[0], "group 4") {
		t.Errorf("with another group: %q", got)
	}
	server.UID, server.GID, server.UIDMap = 100000, 100000, []string{"0 100000 65536"}
	f.UID, f.GID = 165534, 100000
	if got := Check(ModeNested, server, f, true); len(got) != 1 || !strings.Contains(got[0], "instead of nobody") {
		t.Errorf("the user nobody in the server's group: got %q", got)
	}
}

// TestInContainer: the file that a container runtime leaves is also in a virtual machine that was
// made of a container image, where nothing is contained.
func TestInContainer(t *testing.T) {
	for name, c := range map[string]struct {
		mark, namespace, cluster string
		want                     bool
	}{
		"no container":                     {"", "pid:[4026531836]", "", false},
		"service in namespaces of its own": {"", "pid:[4026532201]", "", false},
		"Docker":                           {".dockerenv", "pid:[4026532201]", "", true},
		"Podman":                           {"run/.containerenv", "pid:[4026532201]", "", true},
		"Docker with processes of host":    {".dockerenv", "uts:[4026532199]", "", true},
		"virtual machine of an image":      {".dockerenv", "pid:[4026531836]", "", false},
		"Pod":                              {"", "pid:[4026532201]", "10.0.0.1", true},
	} {
		root := t.TempDir()
		for _, dir := range []string{"run", "proc/self/ns"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, link := range firstNamespaces {
			kind, _, _ := strings.Cut(link, ":")
			if strings.HasPrefix(c.namespace, kind) {
				link = c.namespace
			}
			if err := os.Symlink(link, filepath.Join(root, "proc/self/ns", kind)); err != nil {
				t.Fatal(err)
			}
		}
		if c.mark != "" {
			if err := os.WriteFile(filepath.Join(root, c.mark), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := inContainer(root, c.cluster); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestCheck_RootOfAUserNamespace(t *testing.T) {
	server, f := sentry()
	server.UID, server.GID, server.UIDMap = 100000, 100000, []string{"0 100000 65536"}
	if got := ModeOf(server); got != ModeNested {
		t.Fatalf("mode: got %s, want %s", got, ModeNested)
	}
	f.UID, f.GID = 165534, 165534
	if got := Check(ModeNested, server, f, true); len(got) > 0 {
		t.Errorf("a sentry that runs as nobody: %q", got)
	}
	f.UID, f.GID = 100000, 100000
	if got := Check(ModeNested, server, f, true); len(got) != 1 || !strings.Contains(got[0], "instead of nobody, 165534") {
		t.Errorf("a sentry that runs as the server's user: %q", got)
	}
}

func TestParse(t *testing.T) {
	const text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 20 \nCapInh:\t0000000000000000\nCapPrm:\t0000000000080000\n" +
		"CapEff:\t0000000000000000\nCapBnd:\t00000000000000c1\nCapAmb:\t8000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	s := parseStatus(text)
	if s.uid != 2 || s.gid != 6 || !slices.Equal(s.groups, []uint32{4, 20}) || !s.seccomp || !s.noNewPrivs {
		t.Errorf("got %+v", s)
	}
	if got := capNames(s.held); !slices.Equal(got, []string{"SYS_PTRACE", "CAP_63"}) {
		t.Errorf("held: got %q", got)
	}
	if got := capNames(s.bounding); !slices.Equal(got, []string{"CHOWN", "SETGID", "SETUID"}) {
		t.Errorf("bounding: got %q", got)
	}
	if s := parseStatus("CapBnd:\tx\nSeccomp:\t1\n"); s.bounding != ^uint64(0) || s.seccomp || s.noNewPrivs {
		t.Errorf("without facts: got %+v", s)
	}
	for limits, want := range map[string]bool{
		"Max core file size        0                    0                    bytes\n": false,
		"Max core file size        1                    1                    bytes\n": false,
		"Max core file size        0                    unlimited            bytes\n": true,
		"Max core file size        unlimited            unlimited            bytes\n": true,
		"Max stack size            8388608              unlimited            bytes\n": true,
	} {
		if got := allowsCore(limits); got != want {
			t.Errorf("%q: got %t", limits, got)
		}
	}
	if got := memoryGroup("3:memory:/a/b\n2:cpu,cpuacct:/c\n0::/u\n"); got != "/a/b" {
		t.Errorf("memory cgroup: got %q", got)
	}
	if got := memoryGroup("0::/u\n"); got != "/u" {
		t.Errorf("unified cgroup: got %q", got)
	}
	table := []string{"0 1000 1", "1 100000 65536"}
	for id, want := range map[uint32]uint32{0: 1000, 2: 100001} {
		if got, ok := translate(table, id); got != want || !ok {
			t.Errorf("translate %d: got %d, %t; want %d", id, got, ok, want)
		}
	}
	if got, ok := translate(table, 70000); ok {
		t.Errorf("translate an id that is not in the table: got %d", got)
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		target   string
		mode     os.FileMode
		writable bool
		want     Kind
	}{
		{"pipe:[1]", os.ModeNamedPipe, true, KindPipe},
		{"socket:[1]", os.ModeSocket, true, KindSocket},
		{"anon_inode:[eventpoll]", 0, true, KindEvent},
		{"/memfd:runsc-memory (deleted)", 0, true, KindMemory},
		{"/dev/null", os.ModeDevice | os.ModeCharDevice, true, KindDevice},
		{"/lib", os.ModeSymlink, false, KindLink},
		{"/usr", os.ModeDir, false, KindDirectory},
		{"/usr/bin/env", 0, false, KindRead},
		{"/state/#7 (deleted)", 0, true, KindScratch},
		{"/etc/passwd", 0, true, KindWritable},
		{"/run/fifo", os.ModeNamedPipe, true, KindOther},
	} {
		if got := kindOf(c.target, c.mode, c.writable); got != c.want {
			t.Errorf("%s: got %q, want %q", c.target, got, c.want)
		}
	}
	if !writable("pos:\t0\nflags:\t0100002\n") || writable("pos:\t0\nflags:\t02000000\n") || !writable("") {
		t.Error("flags of descriptors are misread")
	}
}

const document = "../../docs/threat-model.md"

func TestDocument_IsCurrent(t *testing.T) {
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Document(string(b))
	if err != nil {
		t.Fatal(err)
	}
	if want != string(b) {
		t.Errorf("%s is not current; type: go generate ./internal/posture", document)
	}
	if !strings.Contains(want, "| root | sentry | its own, ") {
		t.Errorf("the table has no line for the sentry of root")
	}
}

// TestDocument_PromisesAreTested: each promise of the threat model names tests that exist
// and are the only ones of that name, or names their packages, too; its classes of attacks
// exist. Each class of attacks belongs to a promise, and each limit of docs/security.md is one.
func TestDocument_PromisesAreTested(t *testing.T) {
	read := func(file string) string {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	packages := make(map[string][]string) // of each test, by its name
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err := walkTests("../..", func(file string) error {
		b, err := os.ReadFile(file)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			name, dir := string(m[1]), strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../")
			if !slices.Contains(packages[name], dir) {
				packages[name] = append(packages[name], dir)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	attackable := make(map[string]bool) // classes of attacks, and whether a promise names them
	for _, m := range regexp.MustCompile(`(?m)^## ([a-z-]+)$`).FindAllStringSubmatch(read("../../docs/attack.md"), -1) {
		attackable[m[1]] = false
	}
	_, promises, _ := strings.Cut(read(document), "\n## Promises\n")
	promises, _, _ = strings.Cut(promises, "\n## ")
	word := regexp.MustCompile("`([A-Za-z0-9_-]+)`")
	named := regexp.MustCompile("`(?:([a-z0-9/_]+)\\.)?(Test\\w+)`") // the package if several have such a test
	rows := 0
	for line := range strings.Lines(promises) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[1]) == "promise" {
			continue
		}
		rows++
		if !named.MatchString(cells[2]) {
			t.Errorf("%s: no test of the promise %q", document, cells[1])
		}
		for _, m := range word.FindAllStringSubmatch(cells[3], -1) {
			if _, ok := attackable[m[1]]; !ok {
				t.Errorf("%s names the class of attacks %s, which does not exist", document, m[1])
			}
			attackable[m[1]] = true
		}
	}
	if rows < 30 {
		t.Errorf("found %d promises in %s", rows, document)
	}
	described, tested := limitsIn(read("../../docs/security.md"), "\n## Limits\n"), limitsIn(promises, "\n### Limits\n")
	for limit := range described {
		if !tested[limit] {
			t.Errorf("%s names no test of the limit %q of docs/security.md", document, limit)
		}
	}
	for limit := range tested {
		if !described[limit] {
			t.Errorf("%s names tests of the limit %q, which docs/security.md does not have", document, limit)
		}
	}
	for class, named := range attackable {
		if !named {
			t.Errorf("%s names no promise for the attacks of the class %s", document, class)
		}
	}
	for _, m := range named.FindAllStringSubmatch(read(document), -1) {
		switch dir, have := m[1], packages[m[2]]; {
		case dir == "" && len(have) > 1:
			t.Errorf("%s names %s, which is ambiguous: write one of %q before it, with a dot", document, m[2], have)
		case len(have) == 0, dir != "" && !slices.Contains(have, dir):
			t.Errorf("%s names %s, which does not exist", document, m[0])
		}
	}
}

// limitsIn returns the first cells of the table below a heading.
func limitsIn(text, heading string) map[string]bool {
	found := make(map[string]bool)
	_, section, _ := strings.Cut(text, heading)
	section, _, _ = strings.Cut(section, "\n#")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "-") {
			continue
		}
		if limit := strings.TrimSpace(cells[1]); limit != "limit" && limit != "promise" {
			found[limit] = true
		}
	}
	return found
}

// walkTests calls do with every file of tests below root.
func walkTests(root string, do func(string) error) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == ".vm"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(file, "_test.go"):
			return do(file)
		}
		return nil
	})
}
