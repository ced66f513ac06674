//go:build linux

package attack

import (
	"fmt"
	"strings"
)

// Markdown returns docs/attack.md.
func Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<!-- Generated from internal/attack by "go generate ./internal/attack"; edit there. -->

# Attacks

`+"`glovebox attack`"+` runs %d attacks against this machine, with the engine and the privileges that a server started by the same user would have. Each runs in a fresh box or against a server of its own on loopback. A judge outside the box checks that

* the promise below holds,
* the host and a neighbouring box answer within a second (or as long as --answer says, or three times their time before the attacks, on a slow machine; up to 3 seconds for an attack that is run again, if the machine has become busy),
* the next command in the box works, or the box is reported dead with a reason, and destroying it takes less than five seconds,
* no process, mount, cgroup or file is left, and nothing that was planted on the host was read, written or connected to.

Attacks on memory are judged by the memory that the host has available. If another program takes memory at the same time, they are measured again, up to three times.

`+"```"+`
glovebox attack                        # all, as a table; exit code 1 if one was not held
glovebox attack --only escape          # a class, or a pattern such as 'userns/*'
glovebox attack --json                 # for programs
glovebox attack --list                 # the attacks and what they try to break
`+"```"+`

Outcomes: *held*; *broken* (the attack succeeded); *failed* (the attack could not be carried out, so nothing is known); *skipped* (this host or user cannot run it; the report gives the reason). The tests show for each class that the judge notices a successful attack: they run it against an engine without isolation or against a weakened configuration. A run that is interrupted reports the attacks that had ended, and how many had not.
`, len(All()))
	for _, c := range classes() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| attack | promise |\n|---|---|\n", c.name, c.about)
		for _, a := range c.attacks {
			fmt.Fprintf(&b, "| `%s` | %s |\n", a.Name, strings.ReplaceAll(a.Claim, "|", `\|`))
		}
	}
	return b.String()
}
