package mcpjson

import (
	"slices"
	"strings"
)

// packageFlags are flags of package runners whose value is a package. If one of the
// first three is given, the first word that is no flag is a program of that package.
var packageFlags = []string{"-p", "--package", "--from", "--with"}

// otherFlags are flags of a package runner whose value is no package.
var otherFlags = map[string][]string{
	"npx": {"--registry"}, "uvx": {"--python", "--index-url", "--default-index"}, "docker": containerFlags, "podman": containerFlags, "nerdctl": containerFlags,
}

var containerFlags = []string{"-e", "--env", "--env-file", "-v", "--volume", "--mount", "--name", "-w", "--workdir", "--network", "-u", "--user", "-p", "--publish", "--platform", "-l", "--label", "-m", "--memory", "--cpus", "--pull"}

// subcommandWords are the words between a package runner and its flags, such as "run".
var subcommandWords = map[string]int{"npm": 1, "pnpm": 1, "yarn": 1, "pipx": 1, "docker": 1, "podman": 1, "nerdctl": 1, "uv": 2, "go": 1}

// fixesVersions reports whether every package or image that the package runner name
// gets, given the words after it, has a version that never changes: an exact version of
// npm, PyPI or Go, or the digest of an image. It returns false if a word may be a package
// or the value of an unknown flag.
func fixesVersions(name string, words []string) bool {
	named := false // by flags other than --with
	words = words[min(subcommandWords[name], len(words)):]
	for i := 0; i < len(words); i++ {
		flag, value, joined := strings.Cut(words[i], "=")
		next := ""
		if i+1 < len(words) {
			next = words[i+1]
		}
		switch {
		case !strings.HasPrefix(flag, "-"):
			return named || isFixed(words[i])
		case slices.Contains(otherFlags[name], flag):
			if !joined {
				i++
			}
		case slices.Contains(packageFlags, flag):
			if !joined {
				value = next
				i++
			}
			if !isFixed(value) {
				return false
			}
			named = named || flag != "--with"
		case !joined && !slices.Contains(runnerSwitches, flag) && !strings.HasPrefix(next, "-"):
			return isFixed(next) && !named
		}
	}
	return named
}

// isFixed reports whether the name of a package or image contains an exact version.
func isFixed(name string) bool {
	if _, digest, ok := strings.Cut(name, "@sha256:"); ok {
		return len(digest) == 64
	}
	if strings.Contains(name, "://") {
		return false
	}
	_, version, ok := strings.Cut(name, "==")
	if !ok {
		at := strings.LastIndexByte(name, '@')
		if at <= 0 {
			return false
		}
		version = strings.TrimPrefix(name[at+1:], "v")
	}
	parts := strings.SplitN(version, ".", 3)
	for i, part := range parts {
		if i == 2 {
			part = part[:len(part)-len(strings.TrimLeft(part, "0123456789"))] // 1.2.3-beta.1
		}
		if part == "" || strings.Trim(part, "0123456789") != "" {
			return false
		}
	}
	return len(parts) > 2 || ok && len(parts) == 2
}
