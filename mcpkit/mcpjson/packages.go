package mcpjson

import (
	"slices"
	"strings"
)

// packageRunners run the package or image that their arguments name.
var packageRunners = []string{"npx", "npm", "pnpx", "pnpm", "yarn", "bunx", "bun", "deno", "uvx", "uv", "pipx", "docker", "podman", "nerdctl", "go", "cargo", "mise"}

// runnerWords are subcommands before the package.
var runnerWords = []string{"run", "exec", "x", "dlx", "tool", "create", "container", "compose"}

// runnerSwitches are flags of package runners without a value.
var runnerSwitches = []string{"-y", "--yes", "-q", "--quiet", "--silent", "-s", "--rm", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--init", "-d", "--privileged", "--offline", "--isolated", "--no-install", "--no-cache", "--bun", "-A", "--allow-all", "--"}

// MayInstall reports whether the command is a program that may download the server before
// it starts it, such as npx.
func (s *Server) MayInstall() bool {
	return slices.Contains(packageRunners, programName(s.Command.String()))
}

// packages returns the indexes of the arguments that may name the package or image that
// the definition runs. A value of an unknown flag may be the package.
func (s *Server) packages() map[int]bool {
	words := []string{s.Command.String()}
	for _, a := range s.Args {
		words = append(words, a.String())
	}
	found := make(map[int]bool)
	for i, w := range words {
		if !slices.Contains(packageRunners, programName(w)) {
			continue
		}
		for j := i + 1; j < min(len(words), i+maxAfter); j++ {
			w, before := words[j], words[j-1]
			flagged := j > i+1 && strings.HasPrefix(before, "-") && !strings.Contains(before, "=") && !slices.Contains(runnerSwitches, before)
			switch {
			case strings.HasPrefix(w, "-"):
				continue
			case flagged && (before == "-e" || before == "--env" || isSecretFlag(Literal(before))):
				continue
			case !strings.ContainsAny(w, "= ") && !strings.Contains(w, "://"):
				found[j-1] = true
			}
			if !flagged && !slices.Contains(runnerWords, w) {
				break // what follows are the arguments of the package
			}
		}
		break
	}
	return found
}
