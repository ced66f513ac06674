// Package remote describes images that this machine does not have, because boxes run on
// other machines: a machine of the image says which interpreters are inside.
package remote

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/statefile"
)

const (
	// oldestPython is the minor version of the oldest Python 3 that the kernel supports.
	oldestPython = 8
	// maxAnswer bounds what an interpreter says about itself.
	maxAnswer = 16 << 10
	// askTimeout bounds one question. Python takes a tenth of a second to start, and
	// seconds on a busy node.
	askTimeout = time.Minute
	// closeTimeout bounds the end of the machine, which takes seconds.
	closeTimeout = time.Minute
)

// dirs are where images have interpreters. An image's PATH is unknown here.
var dirs = []string{"/usr/local/bin", "/opt/venv/bin", "/opt/conda/bin", "/usr/bin", "/bin"}

// Config says how to describe an image.
type Config struct {
	// Maker makes machines of the image. Its Interpreters and Env are not used.
	Maker *machine.Maker
	// Limits are those of the machine that is asked.
	Limits engine.Limits
	// StateDir keeps the answer: an image is its digest and never changes.
	StateDir string
	// Place identifies where the machines run, such as a cluster: with the same digest, nodes
	// of another one may run another platform of the image. It may be any text.
	Place string
	// Progress, unless nil, is called before a machine is made.
	Progress func(step string)
}

// known is the document that keeps an answer.
type known struct {
	Question     string              `json:"question"` // that was asked, as questionID returns it
	Interpreters []image.Interpreter `json:"interpreters"`
}

func (c Config) kept() *statefile.File[known] {
	place := sha256.Sum256([]byte(c.Place))
	name := fmt.Sprintf("remote-%s-%.16x.json", c.Maker.Root.Key, place[:8])
	return &statefile.File[known]{Path: filepath.Join(c.StateDir, "images", name), Version: 1}
}

// Open describes the image of the maker's root. It makes a machine unless StateDir has the
// answer. Errors: those of machine.Maker.Boot, of the agent connection and of the file.
func Open(ctx context.Context, cfg Config) (*image.Image, error) {
	root := cfg.Maker.Root
	kept := cfg.kept()
	k, err := kept.Read()
	if err != nil {
		return nil, fmt.Errorf("read what is known of image %s: %w", root.Image.Name, err)
	}
	if k.Question != questionID() {
		if cfg.Progress != nil {
			cfg.Progress("starting a box of " + root.Image.Name + " to look for interpreters; later starts reuse the result")
		}
		if k.Interpreters, err = ask(ctx, cfg); err != nil {
			return nil, fmt.Errorf("look into image %s: %w", root.Image.Name, err)
		}
		k.Question = questionID()
		if err := kept.Update(ctx, func(d *known) error { *d = k; return nil }); err != nil {
			return nil, fmt.Errorf("note what is in image %s: %w", root.Image.Name, err)
		}
	}
	img := &image.Image{Root: root, Interpreters: make(map[string]image.Interpreter)}
	for _, i := range k.Interpreters {
		img.Interpreters[i.Language] = i
	}
	switch _, python := img.Interpreters[image.Python]; {
	case len(img.Interpreters) == 0:
		img.Notes = []string{"The image has neither Python nor Node.js: boxes run commands only."}
	case !python:
		img.Notes = []string{"The image has no Python."}
	case len(img.Interpreters) == 1:
		img.Notes = []string{"The image has no Node.js: JavaScript is not available."}
	}
	return img, nil
}

// ask makes a machine and asks it.
func ask(ctx context.Context, cfg Config) (found []image.Interpreter, err error) {
	maker := cfg.Maker.WithImage(cfg.Maker.Root, nil)
	m, err := maker.Boot(ctx, "image-"+uuid.NewString(), cfg.Limits)
	if err != nil {
		return nil, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, m.Close(ending))
	}()
	for _, program := range []struct {
		name  string
		args  []string
		parse func(path, answer string) (image.Interpreter, bool)
	}{{"python3", []string{"-I", "-c", pythonQuestion()}, parsePython}, {"node", []string{"--version"}, parseNode}} {
		for _, dir := range dirs {
			path := dir + "/" + program.name
			answer, err := run(ctx, m.Agent, append([]string{path}, program.args...))
			if err != nil {
				return nil, err
			}
			if i, ok := program.parse(path, answer); ok {
				found = append(found, i)
				break
			}
		}
	}
	return found, nil
}

// output keeps the beginning of the standard output of a command.
type output struct{ b []byte }

func (o *output) Output(ch protocol.Channel, p []byte) {
	if ch == protocol.Stdout {
		o.b = append(o.b, p[:min(len(p), maxAnswer-len(o.b))]...)
	}
}
func (o *output) Display(protocol.Display) {}

// run returns the standard output of a program; "" if it fails or there is none. It is an
// error if the program does not end in time or the agent cannot tell.
func run(ctx context.Context, agent *client.Conn, argv []string) (string, error) {
	var out output
	res, err := agent.Exec(ctx, protocol.Exec{Argv: argv, Dir: "/", TimeoutMS: askTimeout.Milliseconds(), Capture: protocol.Capture{Head: maxAnswer}}, nil, &out)
	switch {
	case err != nil:
		return "", err
	case res.Stopped != "": // a busy node, say; the answer is kept for good
		return "", fmt.Errorf("ask %s for its version: stopped: %s", argv[0], res.Stopped)
	case res.Code != 0: // such as that of a path that does not exist
		return "", nil
	}
	return string(out.b), nil
}

// answer is what a Python says about itself.
type answer struct {
	Minor     int      `json:"minor"`
	Version   string   `json:"version"`
	Prefix    string   `json:"prefix"`
	Libraries []string `json:"libraries"`
}

// questionID identifies what this version of Glovebox asks images.
func questionID() string {
	return fmt.Sprintf("%.16x", sha256.Sum256([]byte(pythonQuestion())))
}

// pythonQuestion is the program that prints an answer. It looks for modules without
// importing them.
func pythonQuestion() string {
	return `import json,sys
from importlib.machinery import PathFinder
print(json.dumps(dict(minor=sys.version_info[1] if sys.version_info[0]==3 else 0,version="%d.%d.%d"%sys.version_info[:3],prefix=sys.prefix,` +
		`libraries=[m for m in "` + strings.Join(image.Libraries(), " ") + `".split() if PathFinder.find_spec(m)])))`
}

var (
	version = lazyregexp.New(`^[0-9]{1,4}(\.[0-9]{1,6}){0,2}$`)
	prefix  = lazyregexp.New(`^/[A-Za-z0-9._/-]{0,200}$`)
)

// parsePython takes from an answer what is expected of one; the image may say anything.
func parsePython(path, text string) (image.Interpreter, bool) {
	var a answer
	if json.Unmarshal([]byte(text), &a) != nil || a.Minor < oldestPython || !version().MatchString(a.Version) || !prefix().MatchString(a.Prefix) {
		return image.Interpreter{}, false
	}
	i := image.Interpreter{Language: image.Python, Path: path, Version: a.Version, Prefix: a.Prefix}
	for _, lib := range image.Libraries() {
		if slices.Contains(a.Libraries, lib) {
			i.Libraries = append(i.Libraries, lib)
		}
	}
	return i, true
}

func parseNode(path, text string) (image.Interpreter, bool) {
	v, ok := strings.CutPrefix(strings.TrimSpace(text), "v")
	if !ok || !version().MatchString(v) {
		return image.Interpreter{}, false
	}
	return image.Interpreter{Language: image.JavaScript, Path: path, Version: v, Prefix: filepath.Dir(filepath.Dir(path))}, true
}
