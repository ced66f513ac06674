package box

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestNetworkNote has what real programs printed in a box, and what only looks
// like it.
func TestNetworkNote(t *testing.T) {
	for _, c := range []struct {
		name           string
		failed         bool
		stdout, stderr string
		want           bool
	}{
		{"socket", true, "", "socket.gaierror: [Errno -2] Name or service not known", true},
		{"old resolver", true, "", "socket.gaierror: [Errno -3] Temporary failure in name resolution", true},
		{"urllib", true, "", "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", true},
		{"requests", true, "", "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='pypi.org', port=443): Max retries exceeded with url: / (Caused by NameResolutionError(\"<urllib3.connection…", true},
		{"address", true, "", "OSError: [Errno 101] Network is unreachable", true},
		{"node", true, "", "TypeError: fetch failed {\n  [cause]: Error: getaddrinfo ENOTFOUND a.b", true},
		{"node address", true, "", "Error: connect ENETUNREACH 1.1.1.1:443", true},
		{"curl", true, "", "curl: (6) Could not resolve host: pypi.org", true},
		{"wget", true, "", "wget: unable to resolve host address ‘x.y’", true},
		{"git", true, "", "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com", true},
		{"pip", true, "", "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\nERROR: No matching distribution found for x", true},
		{"npm", true, "", "npm ERR! code ENOTFOUND\nnpm ERR! network request to https://packages.example.org/x failed", true},
		{"go", true, "", "dial tcp: lookup modules.example.org: no such host", true},
		{"handled, on stderr", false, "", "warning: Could not resolve host: a", true},
		{"into stdout", true, "curl: (6) Could not resolve host: pypi.org", "", true},
		{"pip, through tail", false, "Defaulting to user installation\nERROR: No matching distribution found for x\n", "", true},
		{"npm, through tail", false, "npm error code ENOTFOUND\nnpm error syscall getaddrinfo\n", "", true},
		{"curl, || true", false, "curl: (6) Could not resolve host: pypi.org\n", "", true},
		{"git, into stdout", false, "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com\n", "", true},
		{"a document on pip", false, "It prints: ERROR: No matching distribution found for x\n", "", false},
		{"a log that is read", false, "12:01 Network is unreachable\n", "", false},
		{"another failure", true, "", "ValueError: no such hostel", false},
		{"nothing", true, "", "", false},
	} {
		if got := networkNote(c.failed, c.stdout, c.stderr); (got != "") != c.want {
			t.Errorf("%s: got %q, want a note: %v", c.name, got, c.want)
		}
	}
}

func TestReadOnlyNote(t *testing.T) {
	volumes := []engine.Mount{{Guest: "/data/in/", ReadOnly: true}, {Guest: "/out"}}
	for stderr, want := range map[string]string{
		"PermissionError: [Errno 13] Permission denied: '/data/in/x'":            "/data/in",
		"touch: cannot touch '/data/in/x': Permission denied":                    "/data/in",
		"Error: EACCES: permission denied, open '/data/in/x'":                    "/data/in",
		"sh: 1: cannot create /data/in: Permission denied":                       "/data/in",
		"touch: cannot touch '/data/inner/x': Permission denied":                 "",
		"touch: cannot touch '/out/x': Permission denied":                        "",
		"/data/in/x was read\ntouch: cannot touch '/etc/x': Permission denied\n": "",
		"": "",
	} {
		got := readOnlyNote(volumes, stderr)
		if (got == "") != (want == "") || !strings.Contains(got, want) || want != "" && !strings.Contains(got, "read-only") {
			t.Errorf("%q: got %q, want %q in it", stderr, got, want)
		}
	}
}

// TestMemoryNotes: whoever runs out of memory learns that it was memory, and what
// the next larger flavor is.
func TestMemoryNotes(t *testing.T) {
	f := newFixture(t, nil)
	for flavor, want := range map[Flavor]string{FlavorSmall: "'medium' (2048 MB)", FlavorMedium: "'large' (4096 MB)", FlavorLarge: "the largest flavor"} {
		s := f.sessionOf(t, "", SessionOptions{ID: string(flavor), Flavor: flavor})
		heap := newCollector(s.env.cfg(), nil)
		heap.Output(protocol.Stderr, []byte("FATAL ERROR: Reached heap limit Allocation failed - "+heapExhausted+"\n"))
		for name, notes := range map[string][]string{
			"kernel":      s.runResult(s.kernel(Python), &protocol.RunResult{Lost: "oom"}, newCollector(s.env.cfg(), nil), 0).Notes,
			"MemoryError": s.runResult(s.kernel(Python), &protocol.RunResult{Error: &protocol.RunError{Name: "_ArrayMemoryError"}}, newCollector(s.env.cfg(), nil), 0).Notes,
			"command":     s.execResult(&protocol.ExecResult{Code: 137, Signal: "KILL", Stopped: "oom"}, newCollector(s.env.cfg(), nil), 0).Notes,
			"node":        s.execResult(&protocol.ExecResult{Code: 134, Signal: "ABRT"}, heap, 0).Notes,
		} {
			text := strings.Join(notes, " ")
			if !strings.Contains(text, want) || !strings.Contains(text, "memory") || flavor != FlavorSmall && strings.Contains(text, "'medium' (2048") {
				t.Errorf("%s in flavor %s: got %q, want %q in it", name, flavor, notes, want)
			}
		}
	}
}

// TestHints_NetworkNoteInFullOncePerBox: a box explains its first failure for want of
// a network in full, and names the cause of each further one.
func TestHints_NetworkNoteInFullOncePerBox(t *testing.T) {
	f := newFixture(t, nil)
	const code = "raise OSError('[Errno -3] Temporary failure in name resolution')"
	for _, id := range []string{"a", "b"} {
		s := f.session(t, "", id)
		if res := run(t, s, code); len(res.Notes) != 1 || res.Notes[0] != noNetwork {
			t.Errorf("box %s: got the notes %q, want that there is no network", id, res.Notes)
		}
		if res := run(t, s, code); len(res.Notes) != 1 || res.Notes[0] != noNetworkAgain {
			t.Errorf("box %s, again: got the notes %q, want the short one", id, res.Notes)
		}
	}
}
