package box

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestLibraryNote: a program that imports the library of tools learns that it is there.
func TestLibraryNote(t *testing.T) {
	python := "Traceback (most recent call last):\nModuleNotFoundError: No module named 'tools'"
	node := "Error: Cannot find module 'tools'\nRequire stack:\n- /home/user/cell"
	for _, c := range []struct{ calls, stderr, want string }{
		{"python", python, "r = tools.SERVER.TOOL(name=value)"},
		{"python", "ModuleNotFoundError: No module named 'call_tool'", "needs no import"},
		{"javascript", node, "const r = await tools.SERVER.TOOL({name: value})"},
		{"javascript", "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'tools' imported from /x", "needs no require or import"},
		{"shell", python, "glovebox-tool SERVER.TOOL name=value"},
		{"", python, ""},
		{"python", "ModuleNotFoundError: No module named 'toolz'", ""},
		{"python", "ModuleNotFoundError: No module named 'tools.x'", ""},
	} {
		o := hintInput{failed: true, stderr: c.stderr, toolLanguage: c.calls}
		got := o.libraryNote()
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%q: %q: got %q, want %q", c.calls, c.stderr, got, c.want)
		}
	}
}

// The note on a failure without a network names the presets that the program needs.
func TestHints_NameThePresets(t *testing.T) {
	f := newFixture(t, nil)
	for name, c := range map[string]struct {
		o    hintInput
		want string
	}{
		"pip":         {hintInput{failed: true, source: "pip install polars", stderr: "ERROR: No matching distribution found for polars"}, "(--network pypi,npm)."},
		"pip and git": {hintInput{failed: true, source: "pip install git+https://github.com/a/b", stderr: "fatal: unable to access 'https://github.com/a/b/': CONNECT tunnel failed, response 403"}, "(--network pypi,npm,github)."},
		"npm and git": {hintInput{failed: true, source: "npm install a/b", stderr: "npm error command git --no-replace-objects ls-remote ssh://git@github.com/a/b.git\nCould not resolve hostname github.com: Could not resolve host"}, "(--network pypi,npm,github)."},
	} {
		if got := strings.Join(f.session(t, "bob", strings.ReplaceAll(name, " ", "-")).hints(nil, c.o, networkState{}), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestHints_SSH: the preset of a refused host does not help a program that wants SSH.
func TestHints_SSH(t *testing.T) {
	f := newFixture(t, nil)
	for i, c := range []struct {
		stderr string
		want   bool
	}{
		{"ssh: Could not resolve hostname github.com: Temporary failure in name resolution\nfatal: Could not read from remote repository.", true},
		{"ssh: connect to host github.com port 22: Connection refused\nfatal: Could not read from remote repository.", true},
		{"ssh: connect to host shell.example.com port 22: Connection refused", false},
		{"fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com", false},
	} {
		got := strings.Join(f.session(t, "bob", fmt.Sprint("ssh", i)).hints(nil, hintInput{failed: true, stderr: c.stderr}, networkState{}), "\n")
		if strings.Contains(got, "use the https URL") != c.want {
			t.Errorf("%q: got %q", c.stderr, got)
		}
	}
}

// TestHints_SSHWithoutHTTPS: the note on SSH does not send a program to HTTPS that is refused as well.
func TestHints_SSHWithoutHTTPS(t *testing.T) {
	o := hintInput{failed: true, stderr: "ssh: connect to host github.com port 22: Connection refused\nfatal: Could not read from remote repository."}
	for network, want := range map[string]bool{"": true, "npm": false, "github": true, "github.com": true, "*.githubusercontent.com": false, "gitlab.com": false} {
		var allowed []string
		if network != "" {
			allowed = []string{network}
		}
		if got := o.sshNote(allowed); (got != "") != want {
			t.Errorf("network %q: got %q", network, got)
		}
	}
}

// TestHints_SystemPackages: the note on apt-get names the read-only system, whatever the network.
func TestHints_SystemPackages(t *testing.T) {
	b := newFixture(t, nil).session(t, "bob", "x")
	for _, text := range []string{
		"E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\nE: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?",
		"Reading package lists...\nE: List directory /var/lib/apt/lists/partial is missing. - Acquire (13: Permission denied)",
		"dpkg: error: requested operation requires superuser privilege",
	} {
		for _, network := range []networkState{{}, {allowed: []string{"debian"}}} {
			got := b.hints(nil, hintInput{stdout: text, source: "apt-get install tree | tail"}, network)
			if len(got) != 1 || !strings.Contains(got[0], "read-only") {
				t.Errorf("%q with network %v: got %q", text, network.allowed, got)
			}
			if got := b.hints(nil, hintInput{stdout: text, source: "cat old.log"}, network); len(got) != 0 {
				t.Errorf("%q in a log: got %q", text, got)
			}
		}
	}
}

// One note says that a narrowed box has no network, and what narrowed it.
func TestHints_NarrowedToNothing(t *testing.T) {
	b := newFixture(t, nil).session(t, "bob", "x")
	o := hintInput{failed: true, stderr: "curl: (6) Could not resolve host: a.example"}
	for _, c := range []struct {
		limits snapshot.NetLimits
		want   string
	}{
		{snapshot.NetLimits{{Of: snapshot.OfBox}}, "This session has no network, since it was made without one (network: []); a new one without that argument has what the policy allows."},
		{snapshot.NetLimits{{Of: snapshot.OfTemplate}}, "This session has no network, since its template has none."},
		{snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{"npm"}}}, "This session has no network, since the policy allows nothing of what it is limited to, [npm]."},
	} {
		b.limits = c.limits
		if got := b.hints(nil, o, networkState{}); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%v: got %q, want %q", c.limits, got, c.want)
		}
	}
}

// TestHints_ReplacedTools: a program that hides the library of tools learns how to get it back.
func TestHints_ReplacedTools(t *testing.T) {
	b := newFixture(t, nil).session(t, "bob", "x")
	const dict = "Traceback (most recent call last):\nAttributeError: 'dict' object has no attribute "
	for _, c := range []struct {
		calls, source, stderr string
		want                  bool
	}{
		{"python", "print(tools.search('x'))", dict + "'search'", true},
		{"python", "x = 1\ntools.github.list()", dict + "'github'", true},
		{"python", "tools.keys(); tools.sort()", dict + "'sort'. Did you mean: 'pop'?", true},
		{"python", "mytools.search('x')", dict + "'search'", false},
		{"python", "my.tools.search('x')", dict + "'search'", false},
		{"python", "r = tools.fs.read(); r.text", dict + "'text'", false},
		{"python", "tools.search('x')", "ValueError: no", false},
		{"javascript", "tools.search('x')", dict + "'search'", false},
		{"", "tools.search('x')", dict + "'search'", false},
	} {
		got := b.hints(nil, hintInput{failed: true, source: c.source, stderr: c.stderr, toolLanguage: c.calls}, networkState{})
		if has := strings.Contains(strings.Join(got, "\n"), "del tools brings it back"); has != c.want {
			t.Errorf("%q: %q: got %q, want the note: %t", c.calls, c.source, got, c.want)
		}
	}
}

// TestHints_CodeModeOff: a program that calls tools on a server without code mode learns that, and
// one that has forgotten a variable of its own does not hear of it.
func TestHints_CodeModeOff(t *testing.T) {
	b := newFixture(t, nil).session(t, "bob", "x")
	const python = "Traceback (most recent call last):\nNameError: name '%s' is not defined"
	for _, c := range []struct {
		calls, source, stderr string
		want                  bool
	}{
		{"", "r = tools.github.list()", strings.Replace(python, "%s", "tools", 1), true},
		{"", "await call_tool('a.b')", strings.Replace(python, "%s", "call_tool", 1), true},
		{"", "try:\n    f()\nexcept ToolError: pass", strings.Replace(python, "%s", "ToolError", 1) + ". Did you mean: 'OSError'?", true},
		{"", "await tools.github.list()", "Uncaught:\nReferenceError: tools is not defined\n    at x", true},
		{"", "await callTool('a.b')", "ReferenceError: callTool is not defined", true},
		{"", "glovebox-tool a.b", "sh: 1: glovebox-tool: not found", true},
		{"", "for t in tools: print(t)", strings.Replace(python, "%s", "tools", 1), false},
		{"", "print(my.tools.list())", strings.Replace(python, "%s", "tools", 1), false},
		{"", "toolz.x", strings.Replace(python, "%s", "toolz", 1), false},
		{"python", "tools.github.list()", strings.Replace(python, "%s", "tools", 1), false},
	} {
		got := b.hints(nil, hintInput{failed: true, source: c.source, stderr: c.stderr, toolLanguage: c.calls}, networkState{})
		if has := strings.Contains(strings.Join(got, "\n"), "code mode is off: the server runs without --tools mcp.json"); has != c.want {
			t.Errorf("%q: %q: got %q, want the note: %t", c.calls, c.source, got, c.want)
		}
	}
}

// TestHints_ToolsOfPrograms: a program that a command starts has no tools, and its failure says how it
// can call them.
func TestHints_ToolsOfPrograms(t *testing.T) {
	b := newFixture(t, nil).session(t, "bob", "x")
	const python = "Traceback (most recent call last):\n  File \"/home/user/s.py\", line 1, in <module>\n    %s\nNameError: name '%s' is not defined"
	for _, c := range []struct {
		calls, stderr string
		want          bool
	}{
		{"shell", fmt.Sprintf(python, "print(tools.fs.read(path='x'))", "tools") + ". Did you mean: 'bool'?", true},
		{"shell", fmt.Sprintf(python, "await call_tool('fs.read')", "call_tool"), true},
		{"shell", "/home/user/s.js:1\nconsole.log(await tools.fs.read({}))\n^\n\nReferenceError: tools is not defined", true},
		{"shell", fmt.Sprintf(python, "for t in tools: print(t)", "tools"), false},
		{"shell", fmt.Sprintf(python, "toolz.fs.read()", "toolz"), false},
		{"shell", "sh: 1: glovebox-tool: not found", false},
		{"python", fmt.Sprintf(python, "tools.fs.read()", "tools"), false},
	} {
		got := b.hints(nil, hintInput{failed: true, source: "python3 s.py", stderr: c.stderr, toolLanguage: c.calls}, networkState{})
		if has := slices.Contains(got, toolsOfCode); has != c.want {
			t.Errorf("%q: %q: got %q, want the note: %t", c.calls, c.stderr, got, c.want)
		}
	}
}

// TestNetworkFailed has what real programs printed in a box, and what only looks
// like it.
func TestNetworkFailed(t *testing.T) {
	for _, c := range []struct {
		name           string
		failed         bool
		stdout, stderr string
		want           bool
		source         string
		exit           int
	}{
		{"socket", true, "", "socket.gaierror: [Errno -2] Name or service not known", true, "", 0},
		{"old resolver", true, "", "socket.gaierror: [Errno -3] Temporary failure in name resolution", true, "", 0},
		{"urllib", true, "", "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", true, "", 0},
		{"requests", true, "", "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='pypi.org', port=443): Max retries exceeded with url: / (Caused by NameResolutionError(\"<urllib3.connection…", true, "", 0},
		{"address", true, "", "OSError: [Errno 101] Network is unreachable", true, "", 0},
		{"node", true, "", "TypeError: fetch failed {\n  [cause]: Error: getaddrinfo ENOTFOUND a.b", true, "", 0},
		{"node address", true, "", "Error: connect ENETUNREACH 1.1.1.1:443", true, "", 0},
		{"curl", true, "", "curl: (6) Could not resolve host: pypi.org", true, "", 0},
		{"curl, by the proxy", true, "", "curl: (56) CONNECT tunnel failed, response 403", true, "", 56},
		{"git, by the proxy", true, "", "fatal: unable to access 'https://github.com/a/b/': Received HTTP code 403 from proxy after CONNECT", true, "", 0},
		{"npm, by the proxy", true, "", "npm error 403 403 Glovebox: this box has no network - GET https://packages.example.org/x", true, "", 1},
		{"urllib, by the proxy", true, "", "<urlopen error Tunnel connection failed: 403 Glovebox: this box has no network>", true, "", 0},
		{"wget", true, "", "wget: unable to resolve host address ‘x.y’", true, "", 0},
		{"git", true, "", "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com", true, "", 0},
		{"pip", true, "", "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\nERROR: No matching distribution found for x", true, "", 0},
		{"npm", true, "", "npm ERR! code ENOTFOUND\nnpm ERR! network request to https://packages.example.org/x failed", true, "", 0},
		{"go", true, "", "dial tcp: lookup modules.example.org: no such host", true, "", 0},
		{"handled, on stderr", false, "", "warning: Could not resolve host: a", true, "", 0},
		{"into stdout", true, "curl: (6) Could not resolve host: pypi.org", "", true, "", 0},
		{"pip, through tail", false, "Defaulting to user installation\nERROR: No matching distribution found for x\n", "", true, "", 0},
		{"npm, through tail", false, "npm error code ENOTFOUND\nnpm error syscall getaddrinfo\n", "", true, "", 0},
		{"curl, || true", false, "curl: (6) Could not resolve host: pypi.org\n", "", true, "", 0},
		{"git, into stdout", false, "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com\n", "", true, "", 0},
		{"a document on pip", false, "It prints: ERROR: No matching distribution found for x\n", "", false, "", 0},
		{"a log that is read", false, "12:01 Network is unreachable\n", "", false, "", 0},
		{"apt", true, "", "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\nE: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?", false, "", 0},
		{"apt, as root", true, "", "W: Failed to fetch http://deb.example.org/debian/dists/bookworm/InRelease  Temporary failure resolving 'deb.example.org'", true, "", 0},
		{"apt, no list", true, "", "Reading package lists...\nE: Unable to locate package tree", true, "", 0},
		{"apt update", true, "", "E: List directory /var/lib/apt/lists/partial is missing. - Acquire (13: Permission denied)", false, "", 0},
		{"conda", true, "", "/bin/bash: line 1: conda: command not found", true, "", 0},
		{"conda in sh", true, "", "sh: 1: conda: not found", true, "", 0},
		{"sudo", true, "", "/bin/bash: line 1: sudo: command not found", true, "", 0},
		{"no cargo", true, "", "/bin/bash: line 1: cargo: command not found", true, "", 0},
		{"no go", true, "", "/bin/bash: line 1: go: command not found", true, "", 0},
		{"curl of an address", true, "", "curl: (7) Failed to connect to 1.1.1.1 port 443 after 9 ms: Couldn't connect to server", true, "curl https://1.1.1.1", 7},
		{"curl of the box itself", true, "", "curl: (7) Failed to connect to localhost port 80 after 0 ms: Couldn't connect to server", false, "curl http://localhost", 7},
		{"another program", true, "", "/bin/bash: line 1: condor: command not found", false, "", 0},
		{"cargo", true, "", "error: failed to get `rand`\n  [6] Could not resolve hostname (Could not resolve host: index.crates.io)", true, "", 0},
		{"cargo's client in Rust", true, "", "dns error: failed to lookup address information: Name or service not known", true, "", 0},
		{"go, without a resolver", true, "", "dial udp 1.1.1.1:53: connect: network is unreachable", true, "", 0},
		{"java", true, "", "Caused by: java.net.UnknownHostException: repo.maven.apache.org", true, "", 0},
		{"urllib, printed", false, "failed: <urlopen error [Errno -2] Name or service not known>\n", "", true, "", 0},
		{"requests, printed", false, "HTTPSConnectionPool(host='a', port=443): Max retries exceeded with url: / (Caused by NameResolutionError(\"x\"))\n", "", true, "", 0},
		{"httpx, printed", false, "[Errno -2] Name or service not known\n", "", true, "", 0},
		{"nltk", false, "[nltk_data] Error loading punkt: <urlopen error [Errno -2]\n", "", true, "", 0},
		{"fetch, printed", false, "fetch failed\n", "", true, "try { await fetch('https://example.com') } catch (e) { console.log(e.message) }", 0},
		{"fetch of the box itself", true, "", "TypeError: fetch failed\n  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3000", false, "await fetch('http://localhost:3000')", 0},
		{"axios, printed", false, "getaddrinfo ENOTFOUND example.com\n", "", true, "", 0},
		{"silent curl", true, "", "", true, "curl -s https://example.com | head", 6},
		{"silent curl, by the proxy", true, "", "", true, "curl -s https://example.com | head", 56},
		{"silent curl of the box itself", true, "", "", false, "curl -s http://localhost:8000", 7},
		{"silent wget", true, "", "", true, "wget -q -O- https://example.com", 4},
		{"silent wget of the box itself", true, "", "", false, "wget -q -O- http://127.0.0.1:1", 4},
		{"another failure", true, "", "ValueError: no such hostel", false, "", 0},
		{"nothing", true, "", "", false, "", 0},
	} {
		if got := (hintInput{source: c.source, failed: c.failed, exitCode: c.exit, stdout: c.stdout, stderr: c.stderr}).networkFailed(); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestModuleNote: a module that is not installed is named, once with what to do. A
// submodule and a path are not, which are mistakes of another kind.
func TestModuleNote(t *testing.T) {
	for stderr, want := range map[string]string{
		"Traceback (most recent call last):\nModuleNotFoundError: No module named 'polars'\n":        "polars",
		"ModuleNotFoundError: No module named 'pandsa'. Did you mean: 'pandas'?\n":                   "pandsa",
		"/usr/bin/python3: No module named pytest\n":                                                 "pytest",
		"Error: Cannot find module 'lodash'\nRequire stack:\n- /home/user/a.js\n":                    "lodash",
		"Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@scope/x.y' imported from /home/user/\n": "@scope/x.y",
		"ModuleNotFoundError: No module named 'pandas.core.x'\n":                                     "",
		"ModuleNotFoundError: No module named 'a.b'; 'a' is not a package\n":                         "",
		"Error: Cannot find module './helper'\n":                                                     "",
		"Error: Cannot find module '/home/user/x.js'\n":                                              "",
		"it says ModuleNotFoundError: No module named 'x'\n":                                         "",
		"ModuleNotFoundError: No module named '" + strings.Repeat("x", 1000) + "'\n":                 "",
	} {
		var b Box
		first, second := b.moduleNote(stderr, networkState{}), b.moduleNote(stderr, networkState{})
		if want == "" {
			if first != "" {
				t.Errorf("%.80q: got %q, want no note", stderr, first)
			}
			continue
		}
		if !strings.HasPrefix(first, "The module '"+want+"' was not found, ") || !strings.Contains(first, "docs/packages.md") {
			t.Errorf("%.80q: got %q", stderr, first)
		}
		if second != "The module '"+want+"' was not found either." {
			t.Errorf("%.80q, again: got %q", stderr, second)
		}
	}
}

// A refused write in a read-only volume gets a note that names it, and a refused reading none.
func TestHints_ReadOnly(t *testing.T) {
	volumes := []engine.Mount{{Guest: "/data/in/", ReadOnly: true}, {Guest: "/out"}}
	const python, node = "PermissionError: [Errno 13] Permission denied: '/data/in/x'", "Error: EACCES: permission denied, open '/data/in/x'"
	for _, c := range []struct {
		source, stderr string
		want           bool
	}{
		{"open('/data/in/x', 'wb')", python, true},
		{"pathlib.Path('/data/in/x').write_text('1')", python, true},
		{"open('/data/in/x').read()", python, false},
		{"open('/data/in/x', 'rb')", python, false},
		{"fs.writeFileSync('/data/in/x', '')", node, true},
		{"fs.readFileSync('/data/in/x')", node, false},
		{"make", "touch: cannot touch '/data/in/x': Permission denied", true},
		{"make", "sh: 1: cannot create /data/in: Permission denied", true},
		{"echo 1 > /data/in/x", "bash: line 1: /data/in/x: Permission denied", true},
		{"/data/in/x", "bash: line 1: /data/in/x: Permission denied", false},
		{"ls -l /data/in/x", "ls: /data/in/x: Permission denied", false},
		{"cat /data/in/x > /tmp/y", "cat: /data/in/x: Permission denied", false},
		{"cp /data/in/x /tmp", "cp: cannot open '/data/in/x' for reading: Permission denied", false},
		{"fs.readdirSync('/data/in/x')", "Error: EACCES: permission denied, scandir '/data/in/x'", false},
		{"make", "touch: cannot touch '/data/inner/x': Permission denied", false},
		{"make", "touch: cannot touch '/out/x': Permission denied", false},
		{"make", "/data/in/x was read\ntouch: cannot touch '/etc/x': Permission denied\n", false},
		{"make", "", false},
	} {
		got := readOnlyNote(volumes, hintInput{source: c.source, stderr: c.stderr})
		if (got != "") != c.want || c.want && !strings.Contains(got, "The volume /data/in/ is read-only") {
			t.Errorf("%s, %q: got %q, want a note: %v", c.source, c.stderr, got, c.want)
		}
	}
}

// TestHints_LongSource: expressions read the beginning of code only, and once for all lines that
// tell of a denied permission.
func TestHints_LongSource(t *testing.T) {
	const denied = "PermissionError: [Errno 13] Permission denied: '/data/x'\n"
	volumes := []engine.Mount{{Guest: "/data", ReadOnly: true}}
	idle := strings.Repeat("x", maxSource)
	if long := idle + "\nopen('/data/x', 'w')"; readOnlyNote(volumes, hintInput{source: long, stderr: denied}) == "" || readOnlyNote(volumes, hintInput{source: sourceOf(long), stderr: denied}) != "" {
		t.Error("the note does not depend on what sourceOf leaves of the code")
	}
	took := func(lines int) time.Duration {
		begun := time.Now()
		if note := readOnlyNote(volumes, hintInput{source: idle, stderr: strings.Repeat(denied, lines)}); note != "" {
			t.Errorf("%d lines: got the note %q, want none", lines, note)
		}
		return time.Since(begun)
	}
	if one, many := took(1), took(1000); many > 100*one {
		t.Errorf("1000 lines take %s, one takes %s", many, one)
	}

	f := newFixture(t, nil)
	b := f.session(t, "", "a")
	out := newCollector(b.env.cfg(), nil)
	res := b.runResult(b.kernel(Python), idle+"\ntools.x", &protocol.RunResult{Error: &protocol.RunError{Name: "NameError", Traceback: "NameError: name 'tools' is not defined"}}, out, 0)
	if slices.Contains(res.Notes, codeModeOff) {
		t.Errorf("got %q: the whole code is searched", res.Notes)
	}
}

// TestHints_Memory: a program that runs out of memory gets a note that says so and names
// the next larger flavor.
func TestHints_Memory(t *testing.T) {
	f := newFixture(t, nil)
	for flavor, want := range map[Flavor]string{FlavorSmall: "'medium' (2048 MB)", FlavorMedium: "'large' (4096 MB)", FlavorLarge: "the largest flavor"} {
		b := f.sessionOf(t, "", SessionOptions{ID: string(flavor), Flavor: flavor})
		heap := newCollector(b.env.cfg(), nil)
		heap.Output(protocol.Stderr, []byte("FATAL ERROR: Reached heap limit Allocation failed - "+heapExhausted+"\n"))
		for name, notes := range map[string][]string{
			"kernel":      b.runResult(b.kernel(Python), "", &protocol.RunResult{Lost: "oom"}, newCollector(b.env.cfg(), nil), 0).Notes,
			"MemoryError": b.runResult(b.kernel(Python), "", &protocol.RunResult{Error: &protocol.RunError{Name: "_ArrayMemoryError"}}, newCollector(b.env.cfg(), nil), 0).Notes,
			"command":     b.execResult("", &protocol.ExecResult{Code: 137, Signal: "KILL", Stopped: "oom"}, newCollector(b.env.cfg(), nil), 0).Notes,
			"node":        b.execResult("", &protocol.ExecResult{Code: 134, Signal: "ABRT"}, heap, 0).Notes,
		} {
			text := strings.Join(notes, " ")
			if !strings.Contains(text, want) || !strings.Contains(text, "memory") || flavor != FlavorSmall && strings.Contains(text, "'medium' (2048") {
				t.Errorf("%s in flavor %s: got %q, want %q in it", name, flavor, notes, want)
			}
		}
	}
}

// TestHints_NetworkNoteInFullOncePerBox: the first failure for lack of a network gets the
// note in full, each further one its cause.
func TestHints_NetworkNoteInFullOncePerBox(t *testing.T) {
	f := newFixture(t, nil)
	const code = "raise OSError('[Errno -3] Temporary failure in name resolution')"
	for _, id := range []string{"a", "b"} {
		b := f.session(t, "", id)
		if res := run(t, b, code); len(res.Notes) != 1 || res.Notes[0] != fmt.Sprintf(noNetwork, "--network pypi,npm") {
			t.Errorf("box %s: got the notes %q, want that there is no network", id, res.Notes)
		}
		if res := run(t, b, code); len(res.Notes) != 1 || res.Notes[0] != noNetworkAgain {
			t.Errorf("box %s, again: got the notes %q, want the short one", id, res.Notes)
		}
	}
}

// A module that is missing where the network does not have its index is no reason to try an
// installation, but to ask for the index.
func TestModuleNote_IndexIsNotAllowed(t *testing.T) {
	const python, node = "ModuleNotFoundError: No module named 'requests'", "Error: Cannot find module 'lodash'"
	for _, c := range []struct {
		stderr  string
		allowed []string
		want    string // "": install it
	}{
		{python, []string{"npm", "a.example.org"}, "The module 'requests' was not found, and the network of this box does not have PyPI: npm, a.example.org; everything else is refused. Upload it, use what is there (help('modules')), or ask the operator of this server for PyPI (--network pypi)."},
		{node, []string{"pypi"}, "ask the operator of this server for the npm registry (--network npm)."},
		{python, []string{"npm", "pypi"}, ""},
		{python, []string{"files.pythonhosted.org", "pypi.org:443"}, ""},
		{python, []string{"pypi.internal.example.org"}, ""},
		{node, []string{"npm", "pypi"}, ""},
		{node, []string{"registry.npmjs.org"}, ""},
	} {
		var b Box
		got := b.moduleNote(c.stderr, networkState{allowed: c.allowed})
		if c.want == "" && !strings.Contains(got, "Install it from there") || !strings.Contains(got, c.want) || c.want != "" && strings.Contains(got, "install") {
			t.Errorf("%s, allowed %q: got %q, want %q", c.stderr, c.allowed, got, c.want)
		}
	}
}

// While a volume is over its quota, the first result says what to do, and each refused write
// why it was refused. Other results are not longer for it.
func TestHints_OverQuota(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "bob", "x")
	freeze := func(frozen bool) {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		b.maker = b.maker.WithVolumes([]engine.Mount{{Guest: "/shared", Frozen: frozen}})
	}
	const again = "The volume /shared is still over its quota and read-only."
	refused := hintInput{failed: true, stderr: "OSError: [Errno 30] Read-only file system: '/shared/x'"}
	freeze(true)
	for i, c := range []struct {
		o    hintInput
		want string
	}{
		{hintInput{}, "until files in it are shortened or removed on the server's machine"},
		{hintInput{}, ""},
		{refused, again},
		{refused, again},
		{hintInput{stdout: "touch: cannot touch '/shared/x': Read-only file system\n"}, again}, // of a command that went on
		{hintInput{failed: true, stderr: "Error: EROFS: read-only file system, open '/shared/x'"}, again},
		{hintInput{failed: true, stderr: "ValueError"}, ""},
	} {
		got := strings.Join(b.hints(nil, c.o, networkState{}), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("result %d: got %q, want %q", i+1, got, c.want)
		}
	}
	freeze(false)
	if got := b.hints(nil, refused, networkState{}); len(got) != 0 {
		t.Errorf("within the quota: got %q, want no note", got)
	}
	for p, want := range map[string]string{"/shared/x": "/shared", "/shared": "/shared", "/shared/../shared/x": "/shared", "/sharedx": "", "x": "", "/shared/../x": ""} {
		if got := frozenAt([]engine.Mount{{Guest: "/shared", Frozen: true}, {Guest: "/", Frozen: false}}, p); got != want {
			t.Errorf("%s is in the frozen volume %q, want %q", p, got, want)
		}
	}
}
