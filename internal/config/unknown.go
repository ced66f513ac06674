package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// otherVariables are variables of Glovebox that are not settings.
var otherVariables = []string{FileEnv, "GLOVEBOX_TOKEN", "GLOVEBOX_BINARY", "GLOVEBOX_GUEST_ARCH", CheckedEnv, OnlyUserEnv, NestedEnv}

// CheckedEnv is the variable that a program sets after showing the warnings of
// UnknownVariables, for the processes that it starts.
const CheckedEnv = "GLOVEBOX_ENVIRONMENT_CHECKED"

// OnlyUserEnv is the variable with which a program tells the processes that it starts
// whether this is a container without other users: 0, or 1, its own process number and its
// user namespace. In another user namespace they cannot find out.
const OnlyUserEnv = "GLOVEBOX_ONLY_USER"

// NestedEnv is the variable that marks servers whose tools code calls, and the programs
// that these start. Such a server must not let code call tools, or code could call itself
// without end.
const NestedEnv = "GLOVEBOX_NESTED"

// maxUnknown bounds the number of warnings.
const maxUnknown = 20

// UnknownVariables returns a warning for each variable of environ (see os.Environ) that
// looks like a setting and is not: those that begin with GLOVEBOX_ or MSB_, and those
// that begin with MCP_ or PERPLEXITY_ and resemble a setting.
func UnknownVariables(environ []string) []string {
	known := slices.Concat(otherVariables, slices.Collect(maps.Keys(ignored)))
	for _, k := range Keys() {
		known = append(known, k.Env...)
	}
	slices.Sort(known)
	var warnings []string
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if name == CheckedEnv && value != "" {
			return nil
		}
		ours := strings.HasPrefix(name, "GLOVEBOX_") || strings.HasPrefix(name, "MSB_")
		if !ours && !strings.HasPrefix(name, "MCP_") && !strings.HasPrefix(name, "PERPLEXITY_") || strings.HasPrefix(name, "GLOVEBOX_TEST_") || slices.Contains(known, name) {
			continue
		}
		near := nearest.Of(name, known)
		switch {
		case near != "":
			warnings = append(warnings, fmt.Sprintf("unknown environment variable %s has no effect; did you mean %s?", name, near))
		case ours:
			warnings = append(warnings, fmt.Sprintf("unknown environment variable %s has no effect; glovebox settings lists the settings", name))
		}
		if len(warnings) == maxUnknown {
			return warnings
		}
	}
	return warnings
}
