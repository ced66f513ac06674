package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/tailscale/hujson"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// Error reports an invalid setting. Its text names the setting as given (flag,
// variable, or file and key) and the value.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

func invalid(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// maxFile bounds the configuration file, in bytes.
const maxFile = 1 << 20

// Load reads the settings. flags may have any part of the flags that Bind adds, or be
// nil; lookup is the environment. notes are messages for the debug log. err joins one
// *Error for each invalid setting.
func Load(flags *pflag.FlagSet, lookup func(string) (string, bool)) (c *Config, notes []string, err error) {
	file, path, err := readFile(flags, lookup)
	if err != nil {
		return nil, nil, err
	}
	c = &Config{}
	var errs []error
	for _, k := range Keys() {
		name, text := k.source(flags, lookup, file, path)
		err := c.set(k, name, text)
		if k.Group == "search" {
			err = c.fromSearch(k, name, path, err)
		}
		if err != nil {
			errs = append(errs, err)
		}
		delete(file, k.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(file)) {
		errs = append(errs, unknownSetting(path, name))
	}
	for _, name := range slices.Sorted(maps.Keys(ignored)) {
		if _, ok := lookup(name); ok {
			notes = append(notes, fmt.Sprintf("%s is ignored: %s", name, ignored[name]))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, c.check())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	if c.StateDir == "" {
		if c.StateDir, err = defaultStateDir(lookup); err != nil {
			return nil, nil, err
		}
	}
	for _, v := range c.Volumes {
		if state := resolve(c.StateDir); within([]string{state}, v.Host) || within([]string{v.Host}, state) {
			return nil, nil, invalid("volume: the volume %s and the state directory %s must not contain each other: boxes must not reach the state of boxes", v.Host, c.StateDir)
		}
	}
	return c, notes, nil
}

// fromSearch notes the source of a setting of web search. It returns the error of set,
// unless that is of a variable.
func (c *Config) fromSearch(k Key, name, path string, err error) error {
	switch {
	case slices.Contains(k.Env, name):
		if err != nil {
			c.Search.Invalid = errors.Join(c.Search.Invalid, err)
			return c.set(k, k.Name, k.Default)
		}
	case name != k.Name:
		c.Search.Explicit = true
		if !k.HasFlag() {
			c.Search.SecretFile = path
		}
	}
	return err
}

// position matches where a JSON document is invalid.
var position = lazyregexp.New(`line \d+, column \d+`)

// unknownSetting is the error for an unknown key of the file.
func unknownSetting(path, name string) error {
	var names []string
	for _, k := range Keys() {
		names = append(names, k.Name)
	}
	if near := nearest.Of(name, names); near != "" {
		return invalid("%s: unknown setting %q; did you mean %q?", path, name, near)
	}
	return invalid("%s: unknown setting %q", path, name)
}

// resolve resolves the symbolic links of a path whose last elements may not exist.
func resolve(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return resolved
	}
	return filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
}

// source returns the first value of the key and the name under which it was given.
// Empty variables count as unset.
func (k Key) source(flags *pflag.FlagSet, lookup func(string) (string, bool), file map[string]string, path string) (name, text string) {
	if flags != nil {
		if f := flags.Lookup(k.Name); f != nil && f.Changed {
			return "--" + k.Name, strings.TrimSpace(f.Value.String())
		}
	}
	for _, env := range k.Env {
		if v, ok := lookup(env); ok && strings.TrimSpace(v) != "" {
			return env, strings.TrimSpace(v)
		}
	}
	if v, ok := file[k.Name]; ok {
		return path + ": " + k.Name, strings.TrimSpace(v)
	}
	return k.Name, k.Default
}

// readFile returns the settings in the configuration file, by key.
func readFile(flags *pflag.FlagSet, lookup func(string) (string, bool)) (values map[string]string, path string, err error) {
	if flags != nil && flags.Lookup("config") != nil {
		path = flags.Lookup("config").Value.String()
	}
	if path == "" {
		path, _ = lookup(FileEnv)
	}
	if path = strings.TrimSpace(path); path == "" {
		return nil, "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, "", invalid("read the configuration: %v", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, "", invalid("read the configuration: %v", err)
	}
	if len(data) > maxFile {
		return nil, "", invalid("%s: larger than %d bytes", path, maxFile)
	}
	if data, err = hujson.Standardize(data); err != nil {
		// The error may quote a secret.
		return nil, "", invalid("%s: invalid JSON at %s", path, cmp.Or(position().FindString(err.Error()), "an unknown position"))
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, "", invalid("%s: not a JSON object: %v", path, err)
	}
	values = make(map[string]string, len(raw))
	for name, v := range raw {
		text, err := fileText(v)
		if err != nil {
			return nil, "", invalid("%s: %s %v", path, name, err)
		}
		values[name] = text
	}
	return values, path, nil
}

// fileText converts a JSON value into the text that a flag would have. Lists stay JSON.
func fileText(v json.RawMessage) (string, error) {
	switch v = bytes.TrimSpace(v); v[0] {
	case '"':
		var s string
		err := json.Unmarshal(v, &s)
		return s, err
	case '{':
		return "", errors.New("must not be an object")
	case 'n':
		return "", errors.New("must not be null; leave it out instead")
	}
	return string(v), nil
}
