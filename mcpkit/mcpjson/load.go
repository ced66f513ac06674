package mcpjson

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Options select what to read and how strictly. The zero value finds the configuration
// of the current directory.
type Options struct {
	// Root is the directory that the configuration is for; empty means the current one.
	// Files below it are read without leaving it.
	Root string

	// Path is the file to read, relative to Root. If empty, Load tries .mcp.json and
	// then mcp.json. A named file must exist.
	Path string

	// Required makes it an error if no file is found.
	Required bool

	// Dialect is the dialect of the file; Auto detects it from the file's name and
	// keys.
	Dialect Dialect

	// AllowOutside allows Path, and the file that it includes, to be outside of Root.
	AllowOutside bool

	// AllowLogOutside allows logs of servers outside of Root.
	AllowLogOutside bool

	// Import skips invalid servers with a warning instead of refusing the file. Use it
	// for files of other clients.
	Import bool
}

// ErrNotFound reports that a required configuration was not found.
var ErrNotFound = errors.New("there is no configuration")

// discovered are the file names that Load tries, in this order.
var discovered = []string{".mcp.json", "mcp.json"}

// maxHops bounds the length of a chain of included files.
const maxHops = 16

// Load reads the configuration that o selects. If no path is given and no file is
// found, it returns a Config without servers. Errors are *Error, possibly joined.
//
// A file has at most 4 MiB, and must be regular and UTF-8. A symbolic link is not
// followed, and linked directories only if they stay below Root. Nothing is expanded
// and nothing else is read.
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

// LoadFile reads one file, anywhere. If o has no Root, the file's path determines it.
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

// Parse parses a configuration. Relative paths in it are relative to the current
// directory, which is also the Dir of the servers. A file that includes another one is
// refused.
func Parse(d Dialect, data []byte) (*Config, error) {
	root, err := filepath.Abs("")
	if err != nil {
		return nil, &Error{Msg: "find the current directory", Err: err}
	}
	cfg, next, err := parse(Options{Dialect: d, Root: root}, "", data)
	if next != "" {
		return nil, &Error{Field: "mcpServers", Msg: "it includes another file, but has no path itself"}
	}
	return cfg, err
}

func (o Options) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(o.Root, path)
}

// follow reads a file, and the one that it includes instead of having servers.
func (o Options) follow(path string) (*Config, error) {
	var seen []os.FileInfo
	for hop := 0; ; hop++ {
		data, info, err := o.read(path)
		if err != nil {
			return nil, err
		}
		for _, s := range seen {
			if os.SameFile(s, info) {
				return nil, &Error{File: o.show(path), Field: "mcpServers", Msg: "the files include each other in a cycle"}
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
			return nil, &Error{File: o.show(path), Field: "mcpServers", Msg: fmt.Sprintf("the chain of included files has more than %d files", maxHops)}
		}
		if filepath.IsAbs(next) || strings.HasPrefix(next, "~") {
			return nil, &Error{File: o.show(path), Field: "mcpServers", Msg: "it includes a file by an absolute path", Hint: "name it relative to this file"}
		}
		path = filepath.Join(filepath.Dir(path), filepath.FromSlash(next))
	}
}

// show returns a path as messages show it: relative to the root if it is below.
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
			msg = "" // the error names the file already
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
