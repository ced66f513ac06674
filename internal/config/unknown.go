package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// otherVariables are ours and no settings.
var otherVariables = []string{FileEnv, "GLOVEBOX_TOKEN", "GLOVEBOX_BINARY", "GLOVEBOX_GUEST_ARCH", CheckedEnv}

// CheckedEnv is a variable that a program sets when it has shown the warnings of
// UnknownVariables and starts itself again.
const CheckedEnv = "GLOVEBOX_ENVIRONMENT_CHECKED"

// maxUnknown bounds the warnings: more are a mistake of another kind.
const maxUnknown = 20

// UnknownVariables returns a warning for each variable of environ, as os.Environ
// returns it, that looks like a setting and is none: all that begin with GLOVEBOX_ or
// MSB_, and those that begin with MCP_ and are spelled almost like a setting.
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
		if !ours && !strings.HasPrefix(name, "MCP_") || strings.HasPrefix(name, "GLOVEBOX_TEST_") || slices.Contains(known, name) {
			continue
		}
		near := nearest.Of(name, known)
		switch {
		case near != "":
			warnings = append(warnings, fmt.Sprintf("unknown environment variable %s has no effect; did you mean %s?", name, near))
		case ours:
			warnings = append(warnings, fmt.Sprintf("unknown environment variable %s has no effect; glovebox settings lists those that have", name))
		}
		if len(warnings) == maxUnknown {
			return warnings
		}
	}
	return warnings
}
