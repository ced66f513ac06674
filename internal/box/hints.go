package box

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// networkFailure matches what programs print when they need a network: resolvers
// and sockets as Python, Node.js, Go, Rust and Java name their errors, curl, wget, git,
// pip, npm, and package managers that a box does not have.
var networkFailure = lazyregexp.New(`Name or service not known|Temporary failure (?:in name resolution|resolving)|No address associated with hostname` +
	`|Could not resolve (?:host|proxy|')|unable to resolve host address|NameResolutionError|socket\.gaierror|UnknownHostException` +
	`|Glovebox: this box has no network|CONNECT tunnel failed, response 403|Received HTTP code 403 from proxy after CONNECT` + // the agent's proxy
	`|\bENOTFOUND\b|\bEAI_AGAIN\b|\bENETUNREACH\b|[Nn]etwork is unreachable|: no such host\b|failed to lookup address information` +
	`|No matching distribution found for|Could not find a version that satisfies the requirement` +
	`|(?m:^E: (?:Unable to locate package|Failed to fetch))` +
	`|\b(?:sudo|conda|mamba|micromamba|apk|yum|dnf|brew|snap|uv|pipx|poetry|cargo|rustup|go|gem|yarn|pnpm|bun|ping|dig|nslookup|traceroute|nc|rsync): (?:command )?not found`)

// reportedFailure matches texts that only a failed connection prints, which are
// believed in the standard output of a success: in pip install x | tail the exit code is
// that of tail, and many programs print an error and go on.
var reportedFailure = lazyregexp.New(`(?m)^(?:ERROR: No matching distribution found for |npm (?:ERR!|error) code (?:ENOTFOUND|EAI_AGAIN)|curl: \(6\) Could not resolve host|curl: \(56\) CONNECT tunnel failed, response 403|fatal: unable to access '[^']*': Could not resolve host)` +
	`|<urlopen error \[Errno |NameResolutionError|\[Errno -[235]\] (?:Name or service not known|Temporary failure in name resolution|No address associated)` +
	`|getaddrinfo (?:ENOTFOUND|EAI_AGAIN)\b`)

// noNetwork is the note about the missing network, with what to ask the operator for, and
// noNetworkAgain that for further failures in the same box.
const (
	noNetwork = "Boxes have no network: downloads and installs from a package index fail, and so does every retry. " +
		"Use what is installed (python -m pip list, npm ls -g), upload the files (pip install ./x.whl works), or ask the operator of this server for a library or a network (%s)."
	noNetworkAgain = "Boxes have no network: retries fail as well."
)

// noNetworkByLimit returns the note in a box whose limits leave it no network.
func (b *Box) noNetworkByLimit() string {
	why := "the policy allows nothing of what it is limited to, " + describeLimits(b.limits)
	for _, limit := range b.limits {
		switch {
		case len(limit.Allow) > 0:
		case limit.Of == snapshot.OfTemplate:
			why = "its template has none"
		default:
			why = "it was made without one (network: []); a new one without that argument has what the policy allows"
		}
	}
	return fmt.Sprintf("This %s has no network, since %s. Retries fail as well.", b.key.kind, why)
}

// limitedNetwork is the note about a failure that no refusal explains, such as that of a
// connection to an address without a name.
const limitedNetwork = "Network: %s; everything else is refused. Programs reach hosts by name, over TCP."

// maxSource bounds the part of code in an outcome, in bytes: code may have megabytes, and
// expressions need microseconds for a byte.
const maxSource = 32 << 10

// sourceOf returns the part of code, or of a command, for an outcome.
func sourceOf(code string) string { return code[:min(len(code), maxSource)] }

// An outcome is what hints are derived from. The guest may have written all of it but
// source; the texts are bounded already.
type hintInput struct {
	source         string // of sourceOf
	failed         bool
	exitCode       int // of a command
	stdout, stderr string
	// calls is the language of code that may call tools of the user's servers: python or
	// javascript, or "shell" for a command; "" if it may not.
	toolLanguage string
}

// networkFailed reports whether the outcome failed because there is no network. Of a
// success, standard output counts only where it cannot be a text that was read.
func (o hintInput) networkFailed() bool {
	switch {
	case networkFailure().MatchString(o.stderr), o.failed && networkFailure().MatchString(o.stdout), reportedFailure().MatchString(o.stdout):
		return true
	case strings.Contains(o.stdout, "fetch failed"), strings.Contains(o.stderr, "fetch failed"), // of Node.js, without the cause
		strings.Contains(o.stderr, "Couldn't connect to server"): // of curl, for an address
		return remoteURL(o.source)
	}
	// curl -s and wget -q leave nothing of a failure but the exit code.
	quiet := (o.exitCode == 6 || o.exitCode == 56) && strings.Contains(o.source, "curl ") || o.exitCode == 4 && strings.Contains(o.source, "wget ")
	return quiet && strings.TrimSpace(o.stderr) == "" && remoteURL(o.source)
}

// presets returns the presets of the network that the program probably needs, as a value of
// --network. Packages of pip and npm can be repositories of GitHub.
func (o hintInput) presets() string {
	for _, text := range []string{o.source, o.stderr, o.stdout} {
		if strings.Contains(text, "github.com") || strings.Contains(text, "githubusercontent.com") {
			return "pypi,npm,github"
		}
	}
	return "pypi,npm"
}

// remoteURL reports whether a text has a URL of HTTP whose host is not the box itself.
func remoteURL(s string) bool {
	for {
		scheme, rest, found := strings.Cut(s, "://")
		if !found {
			return false
		}
		if strings.HasSuffix(scheme, "http") || strings.HasSuffix(scheme, "https") {
			local := false
			for _, host := range []string{"localhost", "127.", "0.0.0.0", "[::1]"} {
				local = local || strings.HasPrefix(rest, host)
			}
			if !local {
				return true
			}
		}
		s = rest
	}
}

// missingModule matches the error for a Python module or a package of Node.js that is
// not there. It matches neither a submodule, whose package is there, nor a path.
var missingModule = lazyregexp.New(`(?m)^ModuleNotFoundError: No module named '(\w{1,100})'(?:$|\. Did you mean)` +
	`|^\S{0,100}python[0-9.]*: No module named (\w{1,100})$` +
	`|\bCannot find (?:module|package) '(@?\w[\w./-]{0,100})'`)

// moduleNote returns the note about a module that is not installed, "" if none is
// missing.
func (b *Box) moduleNote(stderr string, n networkState) string {
	found := missingModule().FindStringSubmatch(stderr)
	if found == nil {
		return ""
	}
	name := found[1] + found[2] + found[3]
	if b.modulesNoted.Swap(true) {
		return fmt.Sprintf("The module '%s' was not found either.", name)
	}
	if len(n.allowed) > 0 {
		if index := indexes[found[3] != ""]; !index.in(n.allowed) {
			return fmt.Sprintf("The module '%s' was not found, and the network of this box does not have %s: %s; everything else is refused. Upload it, use what is there (%s), or ask the operator of this server for %s (%s).",
				name, index.name, strings.Join(n.allowed, ", "), index.list, index.name, n.allow(index.preset))
		}
		return fmt.Sprintf("The module '%s' was not found. Network: %s; everything else is refused. Install it from there (python -m pip install, npm install), upload it, or use what is there (help('modules'), npm ls -g).",
			name, strings.Join(n.allowed, ", "))
	}
	have := "boxes have"
	if len(b.limits) > 0 {
		have = fmt.Sprintf("this %s has", b.key.kind)
	}
	return fmt.Sprintf("The module '%s' was not found, and %s no network to install it from. If it is your own, upload it or add its directory to the search path (sys.path, NODE_PATH). "+
		"Use what is there (help('modules'), npm ls -g); the operator of this server can add libraries (docs/packages.md).", name, have)
}

// A packageIndex is where the packages of a language come from.
type packageIndex struct {
	name, preset string
	part         string // of the names of its hosts, and of mirrors
	list         string // what lists the installed packages
}

// indexes has the index of JavaScript under true, and that of Python.
var indexes = map[bool]packageIndex{
	false: {"PyPI", "pypi", "pypi", "help('modules')"},
	true:  {"the npm registry", "npm", "npm", "npm ls -g"},
}

// in reports whether the box can reach the index or, as far as its name tells, a mirror.
func (p packageIndex) in(allowed []string) bool {
	return slices.ContainsFunc(allowed, func(entry string) bool { return strings.Contains(entry, p.part) })
}

// libraryNotes say of each language how code calls tools, to a program that imports the library.
var libraryNotes = map[string]string{
	"python":     "tools is not a module and needs no import: it is there in every cell, with call_tool and ToolError. Example: r = tools.SERVER.TOOL(name=value). tools.search('words') finds tools.",
	"javascript": "tools is not a module and needs no require or import: it is there in every cell, with callTool and ToolError. Example: const r = await tools.SERVER.TOOL({name: value}). await tools.search('words') finds tools.",
	"shell":      "tools is not a module, and only code of execute_code and run_code has it, without an import. Commands call glovebox-tool SERVER.TOOL name=value; glovebox-tool --search WORDS finds tools.",
}

// libraryNote returns the note about an import of the library that calls tools, "" if o has
// none.
func (o hintInput) libraryNote() string {
	found := missingModule().FindStringSubmatch(o.stderr)
	if found == nil {
		return ""
	}
	switch found[1] + found[2] + found[3] {
	case "tools", "call_tool", "callTool", "ToolError":
		return libraryNotes[o.toolLanguage]
	}
	return ""
}

// missingAttribute matches Python's error for an attribute that an object does not have,
// usedTool what code reads of the name tools.
var (
	missingAttribute = lazyregexp.New(`(?m)^AttributeError: '\w{1,100}' object has no attribute '(\w{1,100})'`)
	usedTool         = lazyregexp.New(`(?:^|[^\w.])tools\.(\w{1,100})`)
)

const replacedTools = "Your code gave the name tools another value, which hides the library of tools. del tools brings it back; use another name for your own value."

// replacedNote returns the note about a program in Python that reads an attribute of its own
// value tools as if it were the library, "" if o is not the failure of one.
func (o hintInput) replacedNote() string {
	if o.toolLanguage != "python" || !o.failed {
		return ""
	}
	missing := missingAttribute().FindStringSubmatch(o.stderr)
	if missing == nil {
		return ""
	}
	for _, used := range usedTool().FindAllStringSubmatch(o.source, -1) {
		if used[1] == missing[1] {
			return replacedTools
		}
	}
	return ""
}

// undefinedTools matches the errors of Python, Node.js and shells for a name of the library of tools
// that is not there. Its group is "tools", which code may well have forgotten to define itself.
var undefinedTools = lazyregexp.New(`(?m)^NameError: name '(?:(tools)|call_tool|ToolError)' is not defined` +
	`|^ReferenceError: (?:(tools)|callTool|ToolError) is not defined` +
	`|\bglovebox-tool: (?:command )?not found`)

const codeModeOff = "Code cannot call tools of MCP servers here, because code mode is off: the server runs without --tools mcp.json, has no servers for this user, or the client left them out (?codemode=false)."

const toolsOfCode = "A program that a command starts has no tools: run its code with execute_code or run_code, or have it run glovebox-tool SERVER.TOOL NAME=VALUE, which prints the result."

// codeModeNote returns the note about a program that calls tools without code mode, or as a
// program that a command started, "" if o is not the failure of one.
func (o hintInput) codeModeNote() string {
	if o.toolLanguage != "" && o.toolLanguage != "shell" || !o.failed {
		return ""
	}
	// The errors of programs that a command started show the line of the code.
	found := undefinedTools().FindStringSubmatch(o.stderr)
	if found == nil || found[1]+found[2] != "" && !usedTool().MatchString(o.source) && !usedTool().MatchString(o.stderr) {
		return ""
	}
	switch {
	case o.toolLanguage == "":
		return codeModeOff
	case strings.Contains(found[0], "glovebox-tool"):
		return "" // the program has another PATH
	}
	return toolsOfCode
}

// noInput matches the errors of programs that ask their user. Those of the kernels say
// what to do.
var noInput = lazyregexp.New(`(?m)^EOFError: EOF when reading a line$|^\S+: a terminal is required to read the password|\bGetPassWarning: `)

const noInputNote = "There is no terminal, and standard input is empty. Pass the input in the command, as in printf 'first\\nsecond\\n' | python3 program.py, or write the values into the program."

// inputNote returns the note about the missing input, "" if no program asked for it.
func inputNote(stderr string) string {
	if noInput().MatchString(stderr) {
		return noInputNote
	}
	return ""
}

// deniedInstall matches the errors of apt-get and dpkg for a system that they may not change.
var deniedInstall = lazyregexp.New(`(?m)^(?:E: (?:Unable to (?:acquire|lock)|Could not (?:open lock file|get lock)|List directory /var/lib/apt/)|dpkg: error: requested operation requires superuser)`)

const readOnlySystem = "The system of a box is read-only, and its programs are not root: apt-get and dpkg cannot install here, with or without sudo. Install with pip or npm, or ask the operator for an image or a template that has the package (dpkg -x unpacks a .deb file)."

// systemNote returns the note about system packages that cannot be installed, "" if none was to be.
func (o hintInput) systemNote() string {
	tried := o.failed || strings.Contains(o.source, "apt") || strings.Contains(o.source, "dpkg") // as in apt-get install x | tail
	if tried && (deniedInstall().MatchString(o.stderr) || deniedInstall().MatchString(o.stdout)) {
		return readOnlySystem
	}
	return ""
}

// refusedSSH matches the error of ssh for a host. Its group is the host.
var refusedSSH = lazyregexp.New(`ssh: (?:Could not resolve hostname|connect to host) ([\w.-]+)`)

// sshNote returns the note about a host that git did not reach over SSH, "" if there is none.
func (o hintInput) sshNote(allowed []string) string {
	host := refusedSSH().FindStringSubmatch(o.stderr)
	if host == nil || !o.failed || !strings.Contains(o.stderr, "remote repository") {
		return ""
	}
	https := func(entry string) bool { // perhaps: a preset is named after its site
		suffix, wild := strings.CutPrefix(entry, "*.")
		return entry == host[1] || entry == strings.TrimSuffix(host[1], ".com") || wild && strings.HasSuffix(host[1], "."+suffix)
	}
	if len(allowed) == 0 || slices.ContainsFunc(allowed, https) {
		return "The presets of the network, such as github, allow HTTPS and not SSH: use the https URL of the repository, as in https://github.com/OWNER/REPOSITORY."
	}
	return ""
}

// These match lines about denied permissions of programs that only read, and of those that write.
// Others, such as those of Python, do not tell.
var (
	deniedRead  = lazyregexp.New(`(?i)\bfor reading|\bcan(?:not|'t) (?:open|access|stat|read)\b|, (?:scandir|opendir|l?stat|access|readlink) '|^\s*(?:ls|cat|head|tail|grep|find|less|wc|du|sort): `)
	deniedWrite = lazyregexp.New(`(?i)\bcan(?:not|'t) (?:touch|create|make|remove|delete|move|rename|overwrite|truncate)\b|, (?:mkdir|unlink|rename|rmdir|symlink|link|chmod|copyfile) '|^\s*(?:touch|tee|mkdir|rmdir|rm|mv|ln|chmod|truncate): `)
	// writes matches code and commands that write files.
	writes = lazyregexp.New(`(?i)['"][rbt]?[wax][bt]?\+?[bt]?['"]|['"]r[bt]?\+|writ|append|dump|save|\.to_\w+\(|(?:mk|rm)dir|unlink|remove|rename|copy|move|>\s*['"]?[/.$~]|\b(?:tee|cp|mv|ln|dd|tar|unzip|install|sed -i)\b`)
)

// readOnlyNote returns a note that names the read-only volume in which the program was denied
// permission to write, else "". In some volumes the guest's kernel looks at permissions
// first, and programs do not learn that writes are refused.
func readOnlyNote(volumes []engine.Mount, o hintInput) string {
	wrote := sync.OnceValue(func() bool { return writes().MatchString(o.source) }) // stderr may have thousands of lines
	for line := range strings.Lines(o.stderr) {
		if !strings.Contains(line, "ermission denied") && !strings.Contains(line, "EACCES") {
			continue
		}
		i := slices.IndexFunc(volumes, func(v engine.Mount) bool { return v.ReadOnly && mentions(line, v.Guest) })
		if i >= 0 && !deniedRead().MatchString(line) && (deniedWrite().MatchString(line) || wrote()) {
			return fmt.Sprintf("The volume %s is read-only: write below the home directory or /tmp instead.", volumes[i].Guest)
		}
	}
	return ""
}

// mentions reports whether dir, or a path below it, is in line.
func mentions(line, dir string) bool {
	dir = path.Clean(dir)
	for {
		_, after, found := strings.Cut(line, dir)
		if !found {
			return false
		}
		if after == "" || strings.IndexByte("/'\"`: \t\n’", after[0]) >= 0 {
			return true
		}
		line = after
	}
}

// hints appends the notes about limits of the box that explain a failure. The notes
// about the network and about modules are longer than many outputs, so a box gives each
// in full only once.
func (b *Box) hints(notes []string, o hintInput, n networkState) []string {
	network, module := "", o.libraryNote()
	if module == "" {
		module = b.moduleNote(o.stderr, n)
	}
	switch {
	case len(n.notes) > 0 || !o.networkFailed():
	case len(n.allowed) > 0:
		if !b.networkNoted.Swap(true) {
			network = fmt.Sprintf(limitedNetwork, strings.Join(n.allowed, ", "))
		}
	case len(b.limits) > 0:
		network = b.noNetworkByLimit()
	default:
		network = fmt.Sprintf(noNetwork, n.allow(o.presets()))
		if b.networkNoted.Swap(true) {
			network = noNetworkAgain
		}
	}
	notes = append(notes, n.notes...)
	for _, note := range []string{network, module, o.replacedNote(), o.codeModeNote(), inputNote(o.stderr), o.sshNote(n.allowed), o.systemNote(), readOnlyNote(b.volumes(), o), b.frozenNote(o)} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// heapExhausted is what Node.js says when it runs out of memory.
const heapExhausted = "JavaScript heap out of memory"

// more says what to do when the memory of the flavor is too small.
func (f Flavor) more() string {
	larger, ok := f.Larger()
	if !ok {
		return "That is the largest flavor: work on less data at a time."
	}
	return fmt.Sprintf("Work on less data at a time, or in a new box of flavor '%s' (%d MB).", larger, larger.Limits().MemoryMB)
}
