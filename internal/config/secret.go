package config

import (
	"maps"
	"path/filepath"
	"slices"
)

// A Secret is a section [secret.NAME] of network-file, unchecked: a value that programs in
// boxes use without reading it.
type Secret struct {
	Name    string   `toml:"-"`
	Owners  []string `toml:"owners"`  // as in the audit log, or "*"; empty: the local user
	Hosts   []string `toml:"hosts"`   // that get the value
	Headers []string `toml:"headers"` // of requests; empty: Authorization
	As      string   `toml:"as"`      // variable for the placeholder; empty: none
	Like    string   `toml:"like"`    // how the placeholder begins; empty: gbx-secret-NAME-
	File    string   `toml:"file"`    // absolute path of the file with the value
	Env     string   `toml:"env"`     // or the variable of the server with it
}

// readSecrets returns the secrets of a file, sorted by name. Their relative paths are
// relative to its directory.
func readSecrets(path string, sections map[string]*Secret) []Secret {
	var list []Secret
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		s := *sections[name]
		s.Name = name
		if s.File != "" && !filepath.IsAbs(s.File) {
			s.File = filepath.Join(filepath.Dir(path), s.File)
		}
		list = append(list, s)
	}
	return list
}

// Secrets returns the secrets of the file. The caller must not change them.
func (n *Network) Secrets() []Secret { return n.secrets }
