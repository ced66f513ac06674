package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Kind is where an image comes from.
type Kind string

// The closed set of kinds.
const (
	KindRegistry  Kind = "docker"         // a registry, over HTTPS
	KindLayout    Kind = "oci"            // a directory or archive in the OCI layout
	KindArchive   Kind = "docker-archive" // what docker save and podman save write
	KindDirectory Kind = "dir"            // a directory with a root file system
)

// Ref names an image. The zero value names none.
type Ref struct {
	Kind Kind
	Path string // absolute; of a layout, archive or directory
	Tag  string // of a layout or archive with several images; empty: the only one
	Name string // of an image in a registry, with registry and tag or digest
}

// ParseRef parses a reference to an image. Without a prefix (docker://, oci:,
// docker-archive:, dir:) a text that begins with "/", "./", "../" or "~" is a path, and
// so is one that names an existing file or directory; the kind is found by looking at
// it. Everything else is an image of a registry. Relative paths are taken from the
// working directory. The error wraps engine.ErrInvalid.
func ParseRef(text string) (Ref, error) {
	invalid := func(format string, args ...any) (Ref, error) {
		return Ref{}, invalidRef{fmt.Errorf("image %q: "+format, append([]any{text}, args...)...)}
	}
	kind, rest, ok := strings.Cut(text, ":")
	switch {
	case ok && Kind(kind) == KindRegistry && strings.HasPrefix(rest, "//"):
		return parseName(text, strings.TrimPrefix(rest, "//"))
	case ok && (Kind(kind) == KindLayout || Kind(kind) == KindArchive || Kind(kind) == KindDirectory) && rest != "":
		r := Ref{Kind: Kind(kind), Path: rest}
		if r.Kind != KindDirectory {
			r.Path, r.Tag = splitTag(rest)
		}
		path, err := filepath.Abs(r.Path)
		if err != nil {
			return invalid("%v", err)
		}
		r.Path = path
		return r, nil
	case text == "":
		return invalid("it is empty")
	}
	info, err := os.Stat(text)
	if err != nil && !looksLikePath(text) {
		return parseName(text, text)
	}
	if err != nil {
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = at.Err // the path is that of the text
		}
		return invalid("%v", err)
	}
	path, err := filepath.Abs(text)
	if err != nil {
		return invalid("%v", err)
	}
	if !info.IsDir() {
		return Ref{Kind: KindArchive, Path: path}, nil
	}
	if _, err := os.Stat(filepath.Join(path, layoutFile)); err == nil {
		return Ref{Kind: KindLayout, Path: path}, nil
	}
	return Ref{Kind: KindDirectory, Path: path}, nil
}

func looksLikePath(text string) bool {
	for _, prefix := range []string{"/", "./", "../", "~"} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return text == "." || text == ".."
}

// splitTag splits PATH[:TAG], where both may contain colons: the path is the longest that
// exists.
func splitTag(text string) (path, tag string) {
	for at := len(text); at > 0; at = strings.LastIndexByte(text[:at], ':') {
		if _, err := os.Stat(text[:at]); err == nil {
			return text[:at], strings.TrimPrefix(text[at:], ":")
		}
	}
	return text, ""
}

func parseName(text, ref string) (Ref, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return Ref{}, invalidRef{fmt.Errorf("image %q is neither a file nor a name such as python:3.13-slim: %w", text, err)}
	}
	return Ref{Kind: KindRegistry, Name: parsed.Name()}, nil
}

// String returns the reference in the form that ParseRef reads, with absolute paths and
// full names.
func (r Ref) String() string {
	switch {
	case r.Kind == KindRegistry:
		return r.Name
	case r.Tag != "":
		return string(r.Kind) + ":" + r.Path + ":" + r.Tag
	}
	return string(r.Kind) + ":" + r.Path
}

// place returns the reference for a message, without the prefix of a file or directory: the
// prefix is a guess until the image has been read.
func (r Ref) place() string {
	if r.Kind == KindRegistry {
		return r.String()
	}
	_, place, _ := strings.Cut(r.String(), ":")
	return place
}
