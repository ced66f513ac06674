package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// layoutVersion changes when the skeleton is made differently.
const layoutVersion = "2"

// ToolchainConfig says where to look and what to choose. The zero value of each
// field but StateDir means its default.
type ToolchainConfig struct {
	StateDir     string // where the skeleton and what was found out are kept; required
	Python, Node string // interpreters to use instead of the ones that are found
	Log          *slog.Logger
	Progress     func(string) // told what is being done when it takes time
}

// Toolchain describes the host's own programs as a root file system: /usr and
// what belongs to it, the interpreters wherever they are installed, and an /etc
// made up for the purpose. Nothing else of the host is in it: no home directory,
// no account, no configuration, no socket.
//
// Python is the first on PATH that has numpy and pandas, else the first on PATH;
// JavaScript is the first node on PATH.
func Toolchain(ctx context.Context, cfg ToolchainConfig) (*Image, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("use the host's toolchain as image: guests run Linux, this is %s: %w", runtime.GOOS, engine.ErrUnsupported)
	}
	if cfg.StateDir == "" {
		return nil, fmt.Errorf("use the host's toolchain as image: no state directory: %w", engine.ErrInvalid)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	state, err := filepath.Abs(filepath.Join(cfg.StateDir, "images"))
	if err == nil {
		err = os.MkdirAll(state, 0o700)
	}
	if err == nil {
		err = owned.Dir(state)
	}
	if err == nil {
		state, err = filepath.EvalSymlinks(state)
	}
	if err != nil {
		return nil, fmt.Errorf("make image directory: %w", err)
	}
	img := &Image{Interpreters: make(map[string]Interpreter)}
	found, err := find(ctx, FindOptions{
		Python: cfg.Python, Node: cfg.Node, Progress: cfg.Progress,
		Cache: filepath.Join(state, "interpreters.json"),
		Refused: func(_ string, why error) {
			img.warn("Interpreters on PATH were not used, because root would run another user's code: %v. To use one nevertheless, name it with --python or --node.", why)
		},
	})
	if err != nil {
		return nil, err
	}
	var chosen []answer
	for _, a := range found {
		if _, have := img.Interpreters[a.Language]; have {
			continue
		}
		img.Interpreters[a.Language] = a.Interpreter
		chosen = append(chosen, a)
	}
	img.Notes = notes(img.Interpreters, found)
	for _, a := range chosen {
		if err := refuse(a.Path); err != nil {
			img.warn("%s runs as root when the server starts, and in every box, but another user can change it: %v.", a.Path, err)
		}
	}

	s := newSkeleton()
	s.addSystem()
	for _, a := range chosen {
		for _, need := range a.Needs {
			s.addBind(need)
		}
	}
	key := []string{layoutVersion, s.describe()}
	for _, a := range chosen {
		key = append(key, a.Path, a.Version)
		for _, dir := range slices.Sorted(maps.Keys(a.Sites)) {
			key = append(key, fmt.Sprint(dir, a.Sites[dir]))
		}
	}
	name := hashKey(key...)
	dir := filepath.Join(state, name)
	if err := s.write(dir); err != nil {
		return nil, err
	}
	img.Root = engine.Root{Key: name, Tree: &engine.Tree{Dir: dir, Binds: s.binds}}
	cfg.Log.Debug("image of the host's toolchain", logkey.Image, name, logkey.Binds, len(s.binds))
	return img, nil
}

// warn adds a warning, unless the image has it already: one directory may hold several
// interpreters.
func (img *Image) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(img.Warnings, text) {
		img.Warnings = append(img.Warnings, text)
	}
}

// notes says what people should know about the choice.
func notes(chosen map[string]Interpreter, found []answer) []string {
	var list []string
	python, ok := chosen[Python]
	switch {
	case !ok:
		list = append(list, "No Python was found on PATH: install python3, or name one with --python.")
	case !slices.Contains(python.Libraries, "pandas"):
		list = append(list, fmt.Sprintf("%s has no pandas: for data analysis, type: %s", python.Path, python.HowToInstall("numpy", "pandas", "matplotlib")))
	}
	others := 0
	for _, a := range found {
		if a.Language == Python && a.Path != python.Path {
			others++
		}
	}
	if ok && others > 0 {
		list = append(list, fmt.Sprintf("%s was chosen among %d Pythons on PATH; --python takes another, also of a virtual environment.", python.Path, others+1))
	}
	if _, ok := chosen[JavaScript]; !ok {
		list = append(list, "No node was found on PATH: JavaScript is not available.")
	}
	return list
}

// hashKey makes a key of engine.Root out of what went into it.
func hashKey(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%q\n", p)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// exists reports whether there is something at p, links followed.
func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

// parents returns the directories above a clean absolute path, top first.
func parents(p string) []string {
	var list []string
	for d := filepath.Dir(p); d != "/" && d != "."; d = filepath.Dir(d) {
		list = append(list, d)
	}
	slices.Reverse(list)
	return list
}
