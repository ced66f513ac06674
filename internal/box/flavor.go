package box

import (
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// The languages that kernels speak.
const (
	Python     = "python"
	JavaScript = "javascript"
)

// Interpreter is the program that runs the code of a session or context.
type Interpreter string

// The closed set of interpreters.
const (
	InterpreterPython Interpreter = "python"
	InterpreterNode   Interpreter = "node"
)

// ParseInterpreter reads an interpreter as ParseLanguage reads a language. The
// empty string stays empty: what the session has, or python.
func ParseInterpreter(s string) (Interpreter, error) {
	if strings.TrimSpace(s) == "" {
		return "", nil
	}
	return ParseLanguage(s)
}

// ParseLanguage reads a language in any case: "python", and "javascript" or the
// name of its interpreter, "node". The empty string means python.
func ParseLanguage(s string) (Interpreter, error) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "", Python, "python3", "py":
		return InterpreterPython, nil
	case JavaScript, "js", "node", "nodejs":
		return InterpreterNode, nil
	}
	return "", &Error{
		Code: CodeUnsupportedLanguage, Op: "parse language",
		Msg:     fmt.Sprintf("Unsupported language: %s. Must be 'python' or 'javascript'", clip(s, 64)),
		Context: map[string]string{"language": clip(s, 64)},
	}
}

// Language returns the language that the interpreter speaks, Python or JavaScript.
func (i Interpreter) Language() string {
	if i == InterpreterNode {
		return JavaScript
	}
	return Python
}

// Flavor is a size of box.
type Flavor string

// The closed set of flavors.
const (
	FlavorSmall  Flavor = "small"  // 1 CPU, 1024 MiB, 2 GiB of disk, 128 processes
	FlavorMedium Flavor = "medium" // 2 CPUs, 2048 MiB, 4 GiB of disk, 256 processes
	FlavorLarge  Flavor = "large"  // 4 CPUs, 4096 MiB, 8 GiB of disk, 512 processes
)

// ParseFlavor reads a flavor's name in any case. The empty string stays empty:
// what the box has, or the configured default.
func ParseFlavor(s string) (Flavor, error) {
	switch f := Flavor(strings.ToLower(strings.TrimSpace(s))); f {
	case "", FlavorSmall, FlavorMedium, FlavorLarge:
		return f, nil
	}
	return "", &Error{
		Code: CodeInvalid, Op: "parse flavor",
		Msg:     fmt.Sprintf("Unsupported flavor: %s", clip(s, 64)),
		Hint:    "Use 'small' (1 CPU, 1024 MB), 'medium' (2 CPUs, 2048 MB) or 'large' (4 CPUs, 4096 MB).",
		Context: map[string]string{"flavor": clip(s, 64)},
	}
}

// Limits returns what code in a box of the flavor may take. An unknown flavor
// has the limits of small.
func (f Flavor) Limits() engine.Limits {
	n := 1
	switch f {
	case FlavorMedium:
		n = 2
	case FlavorLarge:
		n = 4
	}
	return engine.Limits{CPUs: float64(n), MemoryMB: 1024 * n, DiskMB: 2048 * n, PIDs: 128 * n}
}

// Larger returns the next larger flavor; ok is false for the largest. The empty
// flavor counts as small.
func (f Flavor) Larger() (larger Flavor, ok bool) {
	switch f {
	case FlavorLarge:
		return "", false
	case FlavorMedium:
		return FlavorLarge, true
	}
	return FlavorMedium, true
}

// clip shortens a caller's value for a message.
func clip(s string, max int) string { return truncate.Bytes(cleantext.Clean(s), max) }
