package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// recordFormat is the version of record.
const recordFormat = 1

// maxRecord bounds what is read of a record: some dozens of paths.
const maxRecord = 1 << 20

// record is the file that Remember writes. Other processes and versions of this
// program read it.
type record struct {
	Format       int                    `json:"format"`
	Root         recordRoot             `json:"root"`
	Interpreters map[string]Interpreter `json:"interpreters"`
	Name         string                 `json:"name,omitempty"` // that of the Image
	Digest       string                 `json:"digest,omitempty"`
}

// recordRoot is an engine.Root with a tree.
type recordRoot struct {
	Key, Dir string
	Binds    []recordBind
	// File is set if the root is the file of package oci with this key.
	File bool `json:",omitempty"`
}

// recordBind is an engine.Mount of a tree.
type recordBind struct {
	Host, Guest string
	ReadOnly    bool
}

func newRecordRoot(root engine.Root) recordRoot {
	r := recordRoot{Key: root.Key, Dir: root.Tree.Dir, File: root.Tree.File != ""}
	for _, b := range root.Tree.Binds {
		r.Binds = append(r.Binds, recordBind{b.Host, b.Guest, b.ReadOnly})
	}
	return r
}

func (r recordRoot) root() engine.Root {
	tree := &engine.Tree{Dir: r.Dir}
	for _, b := range r.Binds {
		tree.Binds = append(tree.Binds, engine.Mount{Host: b.Host, Guest: b.Guest, ReadOnly: b.ReadOnly})
	}
	return engine.Root{Key: r.Key, Tree: tree}
}

func recordPath(stateDir, key string) string {
	return filepath.Join(stateDir, "images", key+".json")
}

// Remember notes below stateDir what the image consists of, for Recall.
func (img *Image) Remember(stateDir string) error {
	path := recordPath(stateDir, img.Root.Key)
	b, err := json.MarshalIndent(record{recordFormat, newRecordRoot(img.Root), img.Interpreters, img.Name, img.Digest}, "", "\t")
	if err != nil {
		return fmt.Errorf("remember image: %w", err)
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == string(b) {
		return nil
	}
	if err := replaceFile(path, b); err != nil {
		return fmt.Errorf("remember image: %w", err)
	}
	return nil
}

// replaceFile writes a file of the state directory in place of another, and makes its directory.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return syncfile.Replace(path, data, 0o600)
}

// CheckShown returns an error if Recall would not use the image, since its directory shows more of
// the host than an image may: nothing made with it could be used later.
func (img *Image) CheckShown(stateDir string) error {
	if img.Root.Tree == nil || img.Root.Tree.File != "" {
		return nil
	}
	return checkTree(img.Root.Tree, stateDir)
}

// Recall finds an image that was remembered below stateDir by its key, whatever
// the settings and PATH are now. Its interpreter for language has to be there still;
// others that are gone are left out. Recall does not check that files are still
// the same: an engine compares those that a snapshot has open.
//
// The error is a clause about the image, for people: "it was made with node
// 20.20.2 at /opt/node/bin/node, which is not there any more". It is a *RemovedError if the
// image is a container image that can be brought back.
func Recall(stateDir, key, language string) (*Image, error) {
	if err := engine.CheckID(key); err != nil {
		return nil, fmt.Errorf("its image has no valid key: %w", err)
	}
	b, err := owned.ReadFile(recordPath(stateDir, key), maxRecord)
	if errors.Is(err, owned.ErrUnsafe) {
		return nil, fmt.Errorf("the description of its image is not safe to use: %w", err)
	}
	if err != nil {
		return nil, errors.New("it was made with another toolchain, of which this server knows nothing; if --python or --node (GLOVEBOX_PYTHON, GLOVEBOX_NODE) were set then, start the server with them again")
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r.Format != recordFormat || r.Root.Key != key {
		return nil, fmt.Errorf("it was made with another toolchain, whose description %q cannot be read", recordPath(stateDir, key))
	}
	img := &Image{Root: r.Root.root(), Name: r.Name, Digest: r.Digest, Interpreters: maps.Clone(r.Interpreters)}
	if r.Root.File {
		return img, img.recallFile(stateDir, language)
	}
	if dir := img.Root.Tree.Dir; len(img.Root.Tree.Binds) == 0 && !exists(dir) {
		return nil, &RemovedError{Key: key, Name: "dir:" + dir}
	}
	for _, i := range r.Interpreters {
		// A link may lead to where only a guest can follow.
		if _, err := os.Lstat(img.onHost(i.Path)); err == nil {
			continue
		}
		if i.Language == language {
			return nil, fmt.Errorf("it was made with %s, which is not there any more", i)
		}
		delete(img.Interpreters, i.Language)
	}
	tree := img.Root.Tree
	if !exists(tree.Dir) {
		return nil, fmt.Errorf("it was made with the image %s, which is not there any more", tree.Dir)
	}
	tree.Binds = slices.DeleteFunc(tree.Binds, func(m engine.Mount) bool { return !exists(m.Host) })
	if err := checkTree(tree, stateDir); err != nil {
		return nil, fmt.Errorf("the description of its image is not safe to use: %w", err)
	}
	return img, nil
}

// RemovedError reports a container image that is no longer on this machine.
type RemovedError struct {
	Key    string // of the image's root
	Name   string // as --image takes it; empty if it was not noted
	Digest string // as in Image; empty if it was not noted
	Pulled bool   // it was pulled into the state directory; else it is a directory
}

// Public is Error without paths of the host, for clients. An image of a registry has its name,
// one that came from a file its digest, and a directory the key of the image.
func (e *RemovedError) Public() string {
	switch {
	case !e.Pulled:
		return fmt.Sprintf("the directory of its image (key %s) is not there any more", e.shownKey())
	case e.Name != "" && !isPath(e.Name):
		return e.Error()
	case e.Digest != "":
		return fmt.Sprintf("its image with the digest %s was removed", e.shownDigest())
	}
	return fmt.Sprintf("its image (key %s) was removed", e.shownKey())
}

// PublicRemedy is Remedy without paths of the host, for clients. It refers to the log of the
// server, which has Error, where it cannot name the image.
func (e *RemovedError) PublicRemedy() string {
	switch {
	case !e.Pulled || e.Name != "" && !isPath(e.Name):
		return e.Remedy()
	case e.Digest != "":
		return fmt.Sprintf("pull the image with the digest %s again with glovebox image pull, from the file or directory that the server's log names", e.shownDigest())
	case e.Name != "":
		return "pull the same content again with glovebox image pull, from the file or directory that the server's log names"
	}
	return e.Remedy()
}

func (e *RemovedError) shownKey() string { return truncate.Bytes(e.Key, maxShownKey) }

func (e *RemovedError) shownDigest() string {
	return visible.Line(truncate.Bytes(e.Digest, maxShownDigest))
}

// isPath reports whether the name of an image leads to a file or directory of the host: it begins
// like a path, or with the prefix of one, as in docker-archive:app.tar.
func isPath(name string) bool {
	kind, _, found := strings.Cut(name, ":")
	if found && (kind == "dir" || kind == "oci" || kind == "docker-archive") {
		return true
	}
	return strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "~")
}

// maxShownKey bounds what is shown of a key, in bytes: enough to tell images apart.
const maxShownKey = 12

// maxShownDigest bounds what is shown of a digest, in bytes: those of SHA-256 have 71.
const maxShownDigest = 100

// Error returns a clause without a subject for the box, for the operator.
func (e *RemovedError) Error() string {
	switch {
	case !e.Pulled:
		return fmt.Sprintf("the directory of its image %s is not there any more", visible.Line(truncate.Bytes(e.Name, maxShownName)))
	case e.Name == "":
		return "its image was removed"
	}
	return fmt.Sprintf("its image %s was removed", visible.Line(truncate.Bytes(e.Name, maxShownName)))
}

// Remedy says what the operator can do, as an imperative.
func (e *RemovedError) Remedy() string {
	switch name := visible.Line(truncate.Bytes(e.Name, maxShownName)); {
	case !e.Pulled:
		return "put the directory back"
	case e.Name == "":
		return "pull the image that it was made with again, with the same content, with glovebox image pull"
	default:
		return "pull the same content again: glovebox image pull " + name
	}
}

// maxShownName bounds a name of an image in an error, in bytes.
const maxShownName = 300

// RootFile returns the path of the root file system, an EROFS image, that package oci
// keeps under a key.
func RootFile(stateDir, key string) string {
	return filepath.Join(stateDir, "images", "roots", key+".erofs")
}

// recallFile completes an image whose root is a file. The file is found by its key alone.
func (img *Image) recallFile(stateDir, language string) error {
	file, err := filepath.Abs(RootFile(stateDir, img.Root.Key))
	if err != nil {
		return fmt.Errorf("its image cannot be found: %w", err)
	}
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &RemovedError{Key: img.Root.Key, Name: img.Name, Digest: img.Digest, Pulled: true}
	case err == nil && !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no file", file)
	case err == nil:
		err = owned.Info(file, info)
	}
	if err != nil {
		return fmt.Errorf("its image is not safe to use: %w", err)
	}
	img.Root.Tree = &engine.Tree{File: file}
	if _, ok := img.Interpreters[language]; !ok && len(img.Interpreters) > 0 {
		return fmt.Errorf("its image has no interpreter for %s", language)
	}
	return nil
}

// onHost returns where on the host a path of the image is.
func (img *Image) onHost(p string) string {
	guest, host := "", img.Root.Tree.Dir
	for _, m := range img.Root.Tree.Binds {
		if isWithin(p, m.Guest) && len(m.Guest) > len(guest) {
			guest, host = m.Guest, m.Host
		}
	}
	return filepath.Join(host, strings.TrimPrefix(p, guest))
}

// String describes an interpreter for people.
func (i Interpreter) String() string {
	name := "Python"
	if i.Language == JavaScript {
		name = "node"
	}
	return strings.TrimSpace(name+" "+i.Version) + " at " + i.Path
}

// Unrecorded returns an image that a version of this program made which kept no
// records: its own skeleton below stateDir, with what img shows of the host. That
// may be other than it was; an engine refuses snapshots that have open what differs.
func (img *Image) Unrecorded(stateDir, key string) (*Image, bool) {
	if engine.CheckID(key) != nil {
		return nil, false
	}
	dir := filepath.Join(stateDir, "images", key)
	if exists(recordPath(stateDir, key)) || checkSkeleton(dir) != nil {
		return nil, false
	}
	tree := &engine.Tree{Dir: dir}
	for _, m := range img.Root.Tree.Binds {
		within := slices.ContainsFunc(tree.Binds, func(o engine.Mount) bool { return isWithin(m.Guest, o.Guest) })
		if within || exists(filepath.Join(dir, m.Guest)) {
			tree.Binds = append(tree.Binds, m)
		}
	}
	return &Image{Root: engine.Root{Key: key, Tree: tree}, Interpreters: img.Interpreters}, true
}
