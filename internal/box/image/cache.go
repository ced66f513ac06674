package image

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

// cacheVersion changes when answers mean something else.
const cacheVersion = 3

// maxCache bounds what is read of the file: maxEntries answers.
const maxCache = 8 << 20

// maxEntries bounds the cache: more interpreters than this are not on a PATH.
const maxEntries = 64

// cache remembers the answers of interpreters.
type cache struct {
	file    string // empty: remembers nothing
	changed bool
	data    cacheData
}

type cacheData struct {
	Version int                   `json:"version"`
	Answers map[string]cacheEntry `json:"answers"` // by path of the candidate
}

type cacheEntry struct {
	Mark   string `json:"mark"`
	Answer answer `json:"answer"`
}

// openCache reads the cache. A missing or unreadable one is empty, and so is one that
// another user can write.
func openCache(file string) *cache {
	c := &cache{file: file, data: cacheData{Version: cacheVersion, Answers: make(map[string]cacheEntry)}}
	if file == "" {
		return c
	}
	b, err := owned.ReadFile(file, maxCache)
	if err != nil {
		return c
	}
	var data cacheData
	if json.Unmarshal(b, &data) == nil && data.Version == cacheVersion && data.Answers != nil {
		c.data = data
	}
	return c
}

// get returns the answer of file if neither it nor its libraries have changed.
func (c *cache) get(file, mark string) (answer, bool) {
	entry, ok := c.data.Answers[file]
	if !ok || entry.Mark != mark {
		return answer{}, false
	}
	if _, err := os.Stat(entry.Answer.Path); err != nil || entry.Answer.check() != nil {
		return answer{}, false
	}
	for dir, when := range entry.Answer.Sites {
		info, err := os.Stat(dir)
		if err != nil || info.ModTime().UnixNano() != when {
			return answer{}, false
		}
	}
	return entry.Answer, true
}

func (c *cache) put(file, mark string, a answer) {
	if len(c.data.Answers) >= maxEntries {
		clear(c.data.Answers)
	}
	c.data.Answers[file] = cacheEntry{mark, a}
	c.changed = true
}

// save writes the cache if it has changed.
func (c *cache) save() error {
	if c.file == "" || !c.changed {
		return nil
	}
	b, err := json.MarshalIndent(c.data, "", "\t")
	if err != nil {
		return err
	}
	return replaceFile(c.file, b)
}

// markOf changes when the interpreter that file leads to may have changed. Shims
// of version managers also depend on what their manager is set to.
func markOf(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	mark := fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	root := os.Getenv("PYENV_ROOT")
	if home, err := os.UserHomeDir(); root == "" && err == nil {
		root = filepath.Join(home, ".pyenv")
	}
	if info, err := os.Stat(filepath.Join(root, "version")); err == nil && isWithin(file, root) {
		mark += " " + info.ModTime().Format(time.RFC3339Nano) + " " + os.Getenv("PYENV_VERSION")
	}
	return mark, nil
}
