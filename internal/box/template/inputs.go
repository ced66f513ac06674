package template

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

const (
	// format is the version of the files on disk and of the preparation of machines.
	format = 1
	// maxPreload and maxModule bound the modules to preload and their names.
	maxPreload, maxModule = 64, 128
	// keyBytes is the length of the hash in a key.
	keyBytes = 12
)

// inputs is everything that a template depends on. Its hash is the key: a changed input
// makes another template.
type inputs struct {
	Format       int               `json:"format"`
	Spec         Spec              `json:"want"`
	Engine       string            `json:"engine"`  // name and version
	Machine      string            `json:"machine"` // processor model
	Agent        string            `json:"agent"`   // SHA-256 of the executable
	AgentArgs    []string          `json:"agent_args"`
	Root         string            `json:"root"` // the key of the file system
	Interpreters map[string]string `json:"interpreters"`
	Volumes      []string          `json:"volumes"` // guest paths, with ",ro" or ",rw"
	Home         string            `json:"home"`
	UID          int               `json:"uid"`
	GID          int               `json:"gid"`
	Env          []string          `json:"env"`
	Files        []fileMark        `json:"files"` // of the interpreter and its libraries
}

// fileMark identifies the version of a file.
type fileMark struct {
	Path string `json:"path"`
	Mark string `json:"mark"` // empty: no such file
}

// inputs collects the inputs that a template would have now.
func (s *Store) inputs(w Spec) (*inputs, error) {
	k := s.cfg.Maker
	if k.Interpreters[w.Language] == "" {
		return nil, fmt.Errorf("no interpreter for %.40q: %w", w.Language, engine.ErrUnsupported)
	}
	w.Preload = slices.Clone(w.Preload)
	slices.Sort(w.Preload)
	w.Preload = slices.Compact(w.Preload)
	if len(w.Preload) > maxPreload {
		return nil, fmt.Errorf("preload %d modules, more than %d: %w", len(w.Preload), maxPreload, engine.ErrInvalid)
	}
	for _, module := range w.Preload {
		// Names of Node.js packages have more characters than those of Python modules.
		if module == "" || len(module) > maxModule || module[0] == '.' || strings.ContainsFunc(module, func(c rune) bool {
			return c <= ' ' || c > '~' || strings.ContainsRune(`'"\`, c)
		}) {
			return nil, fmt.Errorf("preload %.40q: invalid module name: %w", module, engine.ErrInvalid)
		}
	}
	agent, err := s.agentSum()
	if err != nil {
		return nil, err
	}
	info := k.Engine.Info()
	in := &inputs{
		Format: format, Spec: w, Engine: info.Name + " " + info.Version, Machine: s.machine,
		Agent: agent, AgentArgs: k.Agent.Args, Root: k.Root.Key, Interpreters: k.Interpreters,
		Volumes: volumesOf(k), Home: k.Home, UID: k.UID, GID: k.GID, Env: k.Env,
		Files: []fileMark{},
	}
	for _, path := range s.cfg.Files[w.Language] {
		in.Files = append(in.Files, fileMark{path, markOf(path)})
		for _, module := range w.Preload {
			top, _, _ := strings.Cut(module, ".")
			for _, name := range []string{top, filepath.Join(top, "__init__.py"), top + ".py"} {
				if p := filepath.Join(path, name); markOf(p) != "" {
					in.Files = append(in.Files, fileMark{p, markOf(p)})
				}
			}
		}
	}
	return in, nil
}

// volumesOf describes the volumes of a maker's machines.
func volumesOf(k *machine.Maker) []string {
	list := []string{}
	for _, v := range k.Volumes {
		mode := ",rw"
		if v.ReadOnly {
			mode = ",ro"
		}
		list = append(list, v.Guest+mode)
	}
	return list
}

// others says which of a template's inputs that come from settings differ from those of the
// store, or "".
func (s *Store) others(in *inputs) string {
	k := s.cfg.Maker
	var list []string
	switch {
	case slices.Equal(in.Volumes, volumesOf(k)):
	case len(in.Volumes) == 0:
		list = append(list, "no volumes")
	default:
		list = append(list, "volumes "+strings.Join(in.Volumes, " "))
	}
	switch {
	case !maps.Equal(in.Interpreters, k.Interpreters):
		list = append(list, "other interpreters")
	case in.Root != k.Root.Key:
		list = append(list, "another image")
	}
	if !slices.Equal(in.Env, k.Env) {
		list = append(list, "another environment")
	}
	return strings.Join(list, ", ")
}

// key returns the key of the template with these inputs.
func (in *inputs) key() string {
	b, err := json.Marshal(in)
	if err != nil {
		panic(err) // of strings and numbers: not possible
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:keyBytes])
}

// isKey reports whether name has the form of a key.
func isKey(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == keyBytes && strings.ToLower(name) == name
}

// markOf returns a string that changes with the file; for a directory, with its direct
// entries. It is empty if there is none.
func markOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if info.IsDir() {
		return fmt.Sprintf("dir %d", info.ModTime().UnixNano())
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
}

// stale returns which of a template's inputs has changed, or "". It ignores inputs that
// depend on settings, which other processes may have set differently.
func (s *Store) stale(in *inputs) string {
	k := s.cfg.Maker
	info := k.Engine.Info()
	switch {
	case in.Format != format:
		return "built by another version of Glovebox"
	case in.Engine != info.Name+" "+info.Version:
		return "built by another engine: " + in.Engine
	case in.Machine != s.machine:
		return "built on another machine"
	}
	if agent, err := s.agentSum(); err == nil && agent != in.Agent {
		return "built by another version of Glovebox"
	}
	for _, f := range in.Files {
		if markOf(f.Path) != f.Mark {
			return "changed since: " + f.Path
		}
	}
	if maps.Equal(k.Interpreters, in.Interpreters) && k.Root.Key != in.Root {
		return "the file system of boxes has changed since"
	}
	return ""
}

// agentSum is the cached digest of the agent's executable.
type agentSum struct {
	info os.FileInfo
	sum  string
}

// agentSum returns the digest of the agent's executable, and reads it again if the file
// has changed.
func (s *Store) agentSum() (string, error) {
	path := s.cfg.Maker.Agent.Path
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find the agent: %w", err)
	}
	s.mu.Lock()
	have := s.agent
	s.mu.Unlock()
	if have.info != nil && os.SameFile(have.info, info) && have.info.Size() == info.Size() && have.info.ModTime().Equal(info.ModTime()) {
		return have.sum, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = agentSum{info, sum}
	return sum, nil
}

// processor returns the host's processor model and features, as far as Linux reports
// them: programs select code by them when they start.
func processor() string {
	name := runtime.GOOS + "/" + runtime.GOARCH
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return name
	}
	defer f.Close()
	h := sha256.New()
	lines := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for lines.Scan() && lines.Text() != "" { // the first processor
		what, _, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(what) {
		case "vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features":
			fmt.Fprintln(h, lines.Text())
		}
	}
	return name + " " + hex.EncodeToString(h.Sum(nil)[:6])
}
