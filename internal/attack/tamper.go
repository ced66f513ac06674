//go:build linux

package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// files returns the regular files of a snapshot, the largest first.
func files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	var list []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			path := filepath.Join(dir, e.Name())
			sizes[path] = info.Size()
			list = append(list, path)
		}
	}
	if len(list) < 2 {
		return nil, fmt.Errorf("%d files are too few", len(list))
	}
	slices.SortFunc(list, func(a, b string) int { return int(sizes[b] - sizes[a]) })
	return list, nil
}

// largest returns the largest file of a snapshot.
func largest(dir string) (string, error) {
	list, err := files(dir)
	if err != nil {
		return "", err
	}
	return list[0], nil
}

// manifestOf returns the file of a snapshot that is JSON.
func manifestOf(dir string) (string, error) {
	list, err := files(dir)
	if err != nil {
		return "", err
	}
	for _, path := range list {
		if b, err := os.ReadFile(path); err == nil && len(b) < 1<<20 && json.Valid(bytes.TrimSpace(manifestBody(b))) {
			return path, nil
		}
	}
	return "", errors.New("the snapshot has no manifest")
}

// manifestBody returns the JSON object in a manifest, which may have a checksum
// beside it.
func manifestBody(b []byte) []byte {
	first, last := bytes.IndexByte(b, '{'), bytes.LastIndexByte(b, '}')
	if first < 0 || last < first {
		return nil
	}
	return b[first : last+1]
}

func editManifest(dir string, f func([]byte) []byte) error {
	path, err := manifestOf(dir)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, f(b), 0o600)
}

func removeManifest(_ *trial, dir string) error {
	path, err := manifestOf(dir)
	if err != nil {
		return err
	}
	return os.Remove(path)
}

func truncateLargest(_ *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, info.Size()/2)
}

func flipBit(_ *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	return change(path, func(b []byte) { b[len(b)/2] ^= 1 })
}

// change changes the content of a file in place.
func change(path string, f func([]byte)) error {
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		return errors.Join(err, fmt.Errorf("read %q: %d bytes", path, len(b)))
	}
	f(b)
	return os.WriteFile(path, b, 0o600)
}

// sumOf is the checksum of a snapshot's files.
func sumOf(b []byte) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// ownSum is the checksum of a manifest, at its end.
var ownSum = regexp.MustCompile(`"sum":"crc32c:[0-9a-f]{8}"}\n$`)

// reseal gives a manifest the right checksum of its own.
func reseal(b []byte) []byte {
	open := bytes.TrimSuffix(ownSum.ReplaceAll(b, []byte(`"sum":""}`)), []byte("\n"))
	return ownSum.ReplaceAll(b, []byte(`"sum":"`+sumOf(open)+"\"}\n"))
}

// version is a member of a manifest that the version of the engine determines.
var version = regexp.MustCompile(`"(gvisor|version)":"[^"]*"`)

// replaceVersions makes the snapshot one of another version, with right checksums.
func replaceVersions(_ *trial, dir string) error {
	return editManifest(dir, func(b []byte) []byte {
		return reseal(version.ReplaceAll(b, []byte(`"$1":"v0.0.1"`)))
	})
}

func linkToSecret(t *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(path), os.Symlink(t.bait.file(), path))
}

func hardLink(t *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(path), os.Link(t.bait.file(), path))
}

func fifo(_ *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
}

func directory(_ *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
}

func extend(_ *trial, dir string) error {
	path, err := largest(dir)
	if err != nil {
		return err
	}
	err = os.Truncate(path, 1<<40)
	if errors.Is(err, unix.EFBIG) || errors.Is(err, unix.EINVAL) {
		return skip("the file system does not hold sparse files of a terabyte")
	}
	return err
}
