// Package recipe reads recipes of templates from glovebox.toml, checks them, and plans
// their steps. Each step has a key, a hash of everything that its result depends on, so
// that a build can start from the last step that it has done before.
//
// A recipe is code that somebody may have got from elsewhere. Its commands run in a box,
// and what it copies into the box is confined to the directory of its file.
package recipe

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// FileName is the name of a file with recipes.
const FileName = "glovebox.toml"

// Toolchain is the default of Recipe.From: the interpreters of this machine.
const Toolchain = "toolchain"

// The languages of the interpreter that a template starts.
const (
	Python     = "python"
	JavaScript = "javascript"
)

// Limits of a recipe.
const (
	maxName        = 63
	maxDescription = 512
	maxFrom        = 512
	maxItems       = 64       // of copy, run and preload
	maxHosts       = 64       // of net
	maxLimit       = 32       // of network, as of the argument of the tools
	maxCommand     = 32 << 10 // bytes
	maxPath        = 4096
	maxModule      = 128
	maxEnv         = 64
	maxValue       = 8 << 10
)

// Recipe describes a template.
type Recipe struct {
	Description string            `toml:"description" json:"description,omitempty" jsonschema:"One line for those who choose a template: its purpose, its libraries."`
	From        string            `toml:"from" json:"from,omitempty" jsonschema:"The file system of the box. toolchain (the default) has the interpreters and libraries of this machine. Otherwise a container image such as python:3.13-slim, as --image takes it."`
	Language    string            `toml:"language" json:"language,omitempty" jsonschema:"The interpreter that boxes start with: python (the default) or javascript."`
	Flavor      string            `toml:"flavor" json:"flavor,omitempty" jsonschema:"The size of the boxes: small (the default), medium or large."`
	Copy        []string          `toml:"copy" json:"copy,omitempty" jsonschema:"Files and directories to copy into the box before the commands run, as SOURCE or SOURCE:DEST. SOURCE is below the directory of this file. DEST is below /home/user or /tmp."`
	Run         []string          `toml:"run" json:"run,omitempty" jsonschema:"Shell commands, one after the other, in /home/user. A command that fails ends the build."`
	Preload     []string          `toml:"preload" json:"preload,omitempty" jsonschema:"Modules to import into the interpreter, so that boxes have them at once. The build fails if one is missing. Without preload, the modules of the built-in templates are imported where they are installed."`
	Net         []string          `toml:"net" json:"net,omitempty" jsonschema:"Hosts that the build may reach, within what the settings allow: presets such as pypi and npm, or host names. Without net there is no network."`
	Network     []string          `toml:"network" json:"network,omitzero" jsonschema:"Hosts that boxes of this template may reach at most, within what the settings allow their owner: presets such as pypi and npm, or host names. An empty list allows none. Without network, the settings alone decide."`
	Env         map[string]string `toml:"env" json:"env,omitempty" jsonschema:"Environment variables of the commands and of all programs in the boxes."`
}

// A FieldError is an error in one field of a recipe.
type FieldError struct {
	Field string // as in the file
	Index int    // of the element; -1: the whole field
	Err   error
}

func (f *FieldError) Error() string { return f.Field + ": " + f.Err.Error() }
func (f *FieldError) Unwrap() error { return f.Err }

// reserved lists names that mean a built-in template, a language, or none.
var reserved = []string{"python", "python3", "py", "node", "nodejs", "javascript", "js", "toolchain", "none", "null", "default"}

// CheckName returns an error unless name may be the name of a template: 1 to 63 lower-case
// letters, digits, '.', '_' and '-', beginning with a letter or digit, and not the name of
// a built-in template.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName
	for i := 0; i < len(name) && ok; i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || i > 0 && strings.IndexByte("._-", c) >= 0
	}
	switch {
	case !ok:
		return fmt.Errorf("invalid template name %.80q: a name has 1 to %d lower-case letters, digits, '.', '_' and '-', and begins with a letter or digit", name, maxName)
	case slices.Contains(reserved, name):
		return fmt.Errorf("the template name %q is reserved for what Glovebox has built in: choose another name, such as \"my-%s\"", name, name)
	}
	return nil
}

// Check returns the first error in a recipe as a *FieldError, and fills in defaults.
func (r *Recipe) Check() error {
	if f := r.check(); f != nil {
		return f
	}
	if r.From == "" {
		r.From = Toolchain
	}
	if r.Language == "" {
		r.Language = Python
	}
	if r.Flavor == "" {
		r.Flavor = "small"
	}
	return nil
}

func (r *Recipe) check() *FieldError {
	whole := func(field string, err error) *FieldError { return &FieldError{field, -1, err} }
	switch {
	case len(r.Description) > maxDescription || strings.ContainsFunc(r.Description, isControl):
		return whole("description", fmt.Errorf("must be one line of at most %d bytes", maxDescription))
	case len(r.From) > maxFrom || strings.ContainsFunc(r.From, isControl) || strings.HasPrefix(r.From, "-"):
		return whole("from", fmt.Errorf("%.80q names no file system", r.From))
	case !slices.Contains([]string{"", Python, JavaScript}, r.Language):
		return whole("language", fmt.Errorf("must be %s or %s, got %.40q", Python, JavaScript, r.Language))
	case !slices.Contains([]string{"", "small", "medium", "large"}, r.Flavor):
		return whole("flavor", fmt.Errorf("must be small, medium or large, got %.40q", r.Flavor))
	}
	for _, list := range []struct {
		field string
		items []string
		limit int
		check func(string) error
	}{
		{"copy", r.Copy, maxItems, func(s string) error { _, err := ParseCopy(s); return err }},
		{"run", r.Run, maxItems, checkCommand},
		{"preload", r.Preload, maxItems, checkModule},
		{"net", r.Net, maxHosts, checkHost},
		{"network", r.Network, maxLimit, checkHost},
	} {
		if len(list.items) > list.limit {
			return whole(list.field, fmt.Errorf("has %d entries, at most %d are allowed", len(list.items), list.limit))
		}
		for i, item := range list.items {
			if err := list.check(item); err != nil {
				return &FieldError{list.field, i, err}
			}
		}
	}
	if len(r.Env) > maxEnv {
		return whole("env", fmt.Errorf("has %d variables, at most %d are allowed", len(r.Env), maxEnv))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		if err := checkVariable(name, r.Env[name]); err != nil {
			return whole("env", err)
		}
	}
	return nil
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f || c == utf8.RuneError }

func checkCommand(s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return errors.New("an empty command")
	case len(s) > maxCommand:
		return fmt.Errorf("a command of %d bytes, more than %d: put it into a script and copy that", len(s), maxCommand)
	case strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s):
		return fmt.Errorf("the command %.80q is not text", s)
	}
	return nil
}

func checkModule(s string) error {
	if s == "" || len(s) > maxModule || s[0] == '.' || strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`'"\`, c)
	}) {
		return fmt.Errorf("invalid module name %.80q", s)
	}
	return nil
}

func checkHost(s string) error {
	if s == "" || len(s) > 300 || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return fmt.Errorf("%.80q is neither a preset nor a host", s)
	}
	_, err := policy.ParseRule(strings.ToLower(s))
	return err
}

func checkVariable(name, value string) error {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return fmt.Errorf("invalid variable name %.80q", name)
		}
	}
	switch {
	case name == "" || len(name) > maxModule:
		return fmt.Errorf("invalid variable name %.80q", name)
	case breaks(name) != "":
		return fmt.Errorf("boxes set %s themselves, and another value breaks %s", name, breaks(name))
	case len(value) > maxValue || strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("the value of %s is longer than %d bytes or not text", name, maxValue)
	}
	return nil
}

// breaks says which part of a box another value of a variable would break; "" for none.
func breaks(name string) string {
	switch name {
	case "PATH":
		return "how they find their programs: put programs into ~/.local/bin, which it has"
	case "HOME", "USER", "LOGNAME":
		return "what programs know of their user, which is the same in all boxes: leave it out"
	}
	switch strings.ToUpper(name) {
	case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY":
		return "their network: allow hosts with net and network"
	}
	return ""
}

// Variables returns the recipe's environment as sorted KEY=value.
func (r *Recipe) Variables() []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		list = append(list, name+"="+r.Env[name])
	}
	return list
}

// Copy is a file or directory to copy into a box.
type Copy struct {
	Dir  string // on the host; From cannot lead out of it, not through links either
	From string // relative to Dir
	To   string // in the box; "": the name of From, in the home directory
}

// ParseCopy parses SOURCE[:DEST] of a recipe. SOURCE is a relative path that does not lead
// out of its directory. Dir of the result is empty.
func ParseCopy(s string) (Copy, error) {
	from, to, ok := cutLast(s)
	switch {
	case len(s) > maxPath || strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s):
		return Copy{}, fmt.Errorf("the path %.80q is too long or not text", s)
	case from == "" || ok && to == "":
		return Copy{}, fmt.Errorf("must be SOURCE or SOURCE:DEST, got %.80q", s)
	case !filepath.IsLocal(from):
		return Copy{}, fmt.Errorf("the source %.80q is outside of the directory of the recipe", from)
	}
	return Copy{From: filepath.Clean(from), To: to}, nil
}

// cutLast cuts s at its last colon.
func cutLast(s string) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}
