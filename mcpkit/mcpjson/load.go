package mcpjson

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Options say what to read and how strictly. The zero value looks for the
// configuration of the current directory.
type Options struct {
	// Root is the directory that the configuration is for; empty means the
	// current one. Files below it are read without leaving it.
	Root string

	// Path is the file to read, relative to Root; empty looks for .mcp.json and
	// then mcp.json. One that is named must exist.
	Path string

	// Required makes it an error that nothing was found.
	Required bool

	// Dialect is that of the file; Auto tells it from its name and keys.
	Dialect Dialect

	// AllowOutside lets Path, and the file that it refers to, lie outside of
	// Root.
	AllowOutside bool

	// AllowLogOutside lets the logs of servers lie outside of Root.
	AllowLogOutside bool

	// Import leaves out servers that are wrong, with a warning, instead of
	// refusing the file: right for files that are other clients' first.
	Import bool
}

// ErrNotFound says that there is no configuration where one was required.
var ErrNotFound = errors.New("there is no configuration")

// discovered are the files that are looked for in Root, in this order.
var discovered = []string{".mcp.json", "mcp.json"}

// maxHops bounds how often a file may refer to another one.
const maxHops = 16

// Load reads the configuration that o names or, without a path, the first that
// is there; a Config without servers if none is. Errors are *Error, possibly
// joined.
//
// Files are bounded by 4 MiB; they must be regular and UTF-8; a symbolic link
// is not followed, and directories that are links only where they stay below
// Root. Nothing is expanded and nothing else is read.
func Load(o Options) (*Config, error) {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, &Error{File: o.Root, Msg: "make the path of the root absolute", Err: err}
	}
	o.Root = root
	if o.Path != "" {
		return o.follow(o.absolute(o.Path))
	}
	for _, name := range discovered {
		path := filepath.Join(root, name)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return o.follow(path)
		}
	}
	if o.Required {
		return nil, &Error{File: root, Msg: "looked for " + strings.Join(discovered, " and "), Err: ErrNotFound}
	}
	return &Config{}, nil
}

// LoadFile reads one file, wherever it is. If o has no Root, it is the
// directory that the file is for by its name: rootOf.
func LoadFile(path string, o Options) (*Config, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, &Error{File: path, Msg: "make the path absolute", Err: err}
	}
	if o.Root == "" {
		o.Root = rootOf(abs)
	}
	o.Path, o.AllowOutside = abs, true
	return Load(o)
}

// Parse reads bytes. Relative paths in them mean the current directory, which
// is also the Dir of the servers; a file that refers to another one is refused.
func Parse(d Dialect, data []byte) (*Config, error) {
	root, err := filepath.Abs("")
	if err != nil {
		return nil, &Error{Msg: "find the current directory", Err: err}
	}
	cfg, next, err := parse(Options{Dialect: d, Root: root}, "", data)
	if next != "" {
		return nil, &Error{Field: "mcpServers", Msg: "it refers to another file, and there is none that it could be relative to"}
	}
	return cfg, err
}

func (o Options) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(o.Root, path)
}

// follow reads a file, and the one that it refers to instead of having servers.
func (o Options) follow(path string) (*Config, error) {
	var seen []os.FileInfo
	for hop := 0; ; hop++ {
		data, info, err := o.read(path)
		if err != nil {
			return nil, err
		}
		for _, s := range seen {
			if os.SameFile(s, info) {
				return nil, &Error{File: o.show(path), Field: "mcpServers", Msg: "the files refer to each other in a circle"}
			}
		}
		seen = append(seen, info)
		cfg, next, err := parse(o, o.show(path), data)
		if next == "" {
			if cfg != nil {
				cfg.Path = o.show(path)
			}
			return cfg, err
		}
		if hop == maxHops {
			return nil, &Error{File: o.show(path), Field: "mcpServers", Msg: fmt.Sprintf("more than %d files refer to one another", maxHops)}
		}
		if filepath.IsAbs(next) || strings.HasPrefix(next, "~") {
			return nil, &Error{File: o.show(path), Field: "mcpServers", Msg: "it refers to a file by an absolute path", Hint: "name it relative to this file"}
		}
		path = filepath.Join(filepath.Dir(path), filepath.FromSlash(next))
	}
}

// show is how a path is named to people: below the root without it.
func (o Options) show(path string) string {
	if rel, err := filepath.Rel(o.Root, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

// read reads one file within the bounds of o.
func (o Options) read(path string) (data []byte, info os.FileInfo, err error) {
	fail := func(msg string, err error) ([]byte, os.FileInfo, error) {
		if errors.Is(err, fs.ErrNotExist) {
			msg = "" // the file is named already
		}
		return nil, nil, &Error{File: o.show(path), Msg: msg, Err: cause(err)}
	}
	dir, name := o.Root, ""
	rel, ok := below(o.Root, path)
	switch {
	case ok:
		name = rel
	case o.AllowOutside:
		dir, name = filepath.Dir(path), filepath.Base(path)
	default:
		return nil, nil, &Error{File: path, Msg: fmt.Sprintf("the file lies outside of %s", o.Root), Hint: "allow that, or name a file below the root"}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fail("open its directory", err)
	}
	defer root.Close()
	if data, info, err = readBelow(root, name, maxFile); err != nil {
		return fail("open it", err)
	}
	return data, info, nil
}
