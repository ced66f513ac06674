package box

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
)

// networkFailure matches what programs print when they need a network: resolvers
// and sockets as Python, Node.js, Go and Rust name their errors, curl, wget, git,
// apt, pip, npm.
var networkFailure = regexp.MustCompile(`Name or service not known|Temporary failure in name resolution|No address associated with hostname` +
	`|Could not resolve (?:host|proxy|')|unable to resolve host address|NameResolutionError|socket\.gaierror` +
	`|\bENOTFOUND\b|\bEAI_AGAIN\b|\bENETUNREACH\b|[Nn]etwork is unreachable|: no such host\b|failed to lookup address information` +
	`|No matching distribution found for|Could not find a version that satisfies the requirement`)

// installFailure matches lines that only a failed download prints, which are
// believed in the output of a command that succeeded: in pip install x | tail the
// exit code is that of tail.
var installFailure = regexp.MustCompile(`(?m)^(?:ERROR: No matching distribution found for |npm (?:ERR!|error) code (?:ENOTFOUND|EAI_AGAIN)|curl: \(6\) Could not resolve host|fatal: unable to access '[^']*': Could not resolve host)`)

const noNetwork = "Boxes have no network: downloads and installs from a package index fail, and so does every retry. " +
	"Use what is installed (python -m pip list, npm ls -g), upload the files, or ask the operator of this server to install a library."

// noNetworkAgain is the note for further failures in the same box.
const noNetworkAgain = "Boxes have no network: retries fail as well."

// networkNote returns the note about the missing network if a failure for want of
// it is in stderr or stdout, else "". Of a success, stdout counts only where it
// cannot be a text that was read. Both are bounded already.
func networkNote(failed bool, stdout, stderr string) string {
	if networkFailure.MatchString(stderr) || failed && networkFailure.MatchString(stdout) || installFailure.MatchString(stdout) {
		return noNetwork
	}
	return ""
}

// readOnlyNote returns a note that names the read-only volume in which stderr says
// that permission was denied, else "". In some volumes the guest's kernel looks at
// permissions first, and programs do not learn that nobody may write.
func readOnlyNote(volumes []engine.Mount, stderr string) string {
	for line := range strings.Lines(stderr) {
		if !strings.Contains(line, "ermission denied") && !strings.Contains(line, "EACCES") {
			continue
		}
		for _, v := range volumes {
			if v.ReadOnly && mentions(line, v.Guest) {
				return fmt.Sprintf("The volume %s is read-only: write below the home directory or /tmp instead.", v.Guest)
			}
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

// hints appends the notes about limits of the box that explain a failure. The note
// about the network is longer than many outputs, so a box gives it in full only once.
func (b *Box) hints(notes []string, failed bool, stdout, stderr string) []string {
	network := networkNote(failed, stdout, stderr)
	if network != "" && b.networkNoted.Swap(true) {
		network = noNetworkAgain
	}
	for _, note := range []string{network, readOnlyNote(b.env.parts.Machines.Volumes, stderr)} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// heapExhausted is what Node.js says when it ends for want of memory.
const heapExhausted = "JavaScript heap out of memory"

// more says what to do when the memory of the flavor is too small.
func (f Flavor) more() string {
	larger, ok := f.Larger()
	if !ok {
		return "That is the largest flavor: work on less data at a time."
	}
	return fmt.Sprintf("Work on less data at a time, or in a new box of flavor '%s' (%d MB).", larger, larger.Limits().MemoryMB)
}
