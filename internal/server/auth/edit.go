package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

// fileHeader is the comment at the top of a new file of tokens.
const fileHeader = `# Tokens that clients of Glovebox bear. Only hashes are here: a token that is lost
# is replaced, not looked up. Read again when it changes; "glovebox token" edits it.
#
#   scopes: use (everything that tools do), read (only look), metrics (status page)
`

const (
	// editTimeout bounds the wait for a concurrent edit.
	editTimeout = 10 * time.Second
	// editPoll is how often the lock is tried again.
	editPoll = 20 * time.Millisecond
)

// AddToken appends a token to a file, which it creates with mode 0600 if needed. The
// rest of the file stays as it is. A lock serializes edits of one file, across
// processes too.
func AddToken(path string, t *Token) error {
	unlock, err := lockFile(path)
	if err != nil {
		return fmt.Errorf("add token: %w", err)
	}
	defer unlock()
	data, mode, err := editable(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte(fileHeader), nil
	}
	if err != nil {
		return fmt.Errorf("add token: %w", err)
	}
	if len(data) > 0 && !bytes.HasSuffix(data, []byte("\n")) {
		data = append(data, '\n')
	}
	if len(data) > 0 {
		data = append(data, '\n')
	}
	data = append(data, t.Entry()...)
	if _, err := ParseTokens(data); err != nil {
		return fmt.Errorf("add token: %s: %w", path, err)
	}
	return replaceFile(path, data, mode)
}

// RemoveTokens removes the matching tokens from a file and returns their number. The
// rest of the file stays as it is. A lock serializes edits of one file, across
// processes too.
func RemoveTokens(path string, match func(*Token) bool) (int, error) {
	unlock, err := lockFile(path)
	if err != nil {
		return 0, fmt.Errorf("remove token: %w", err)
	}
	defer unlock()
	data, mode, err := editable(path)
	if err != nil {
		return 0, fmt.Errorf("remove token: %w", err)
	}
	tokens, err := ParseTokens(data)
	if err != nil {
		return 0, fmt.Errorf("remove token: %s: %w", path, err)
	}
	starts := tables(data)
	if len(starts) != len(tokens) {
		return 0, fmt.Errorf("remove token: %s: its tokens are not all written as [[token]]; remove it by hand", path)
	}
	var kept []byte
	var rest []Token
	from := 0
	for i := range tokens {
		if !match(&tokens[i]) {
			rest = append(rest, tokens[i])
			continue
		}
		end := len(data)
		if i+1 < len(starts) {
			end = aboveComments(data, starts[i], starts[i+1])
		}
		kept = append(kept, data[from:starts[i]]...)
		from = end
	}
	kept = append(kept, data[from:]...)
	// The result must hold exactly the other tokens: a mistake would keep a token valid
	// or revoke a wrong one.
	now, err := ParseTokens(kept)
	if err != nil || !slices.EqualFunc(now, rest, func(a, b Token) bool { return a.same(&b) }) {
		return 0, fmt.Errorf("remove token: %s: its form is unusual; remove it by hand", path)
	}
	n := len(tokens) - len(rest)
	if n == 0 {
		return 0, nil
	}
	return n, replaceFile(path, kept, mode)
}

// editable reads a file with the server's checks and returns its mode.
func editable(path string) ([]byte, fs.FileMode, error) {
	data, info, err := readPrivate(path)
	if err != nil {
		return nil, 0o600, err
	}
	return data, info.Mode().Perm(), nil
}

// tables returns the offsets of the lines that begin [[token]] tables.
func tables(data []byte) []int {
	var p unstable.Parser
	p.Reset(data)
	var starts []int
	for p.NextExpression() {
		if e := p.Expression(); e.Kind == unstable.ArrayTable {
			if name := e.Key(); name.Next() {
				at := int(name.Node().Raw.Offset)
				starts = append(starts, bytes.LastIndexByte(data[:at], '\n')+1)
			}
		}
	}
	return starts
}

// aboveComments returns the offset where the table at next begins, with the comment
// lines directly above it, but not before the end of the table at start.
func aboveComments(data []byte, start, next int) int {
	for {
		line := bytes.LastIndexByte(data[:next-1], '\n') + 1
		if line <= start || !bytes.HasPrefix(bytes.TrimLeft(data[line:next], " \t"), []byte("#")) {
			return next
		}
		next = line
	}
}

// lockFile locks a file for an edit, through a lock file beside it. The lock file
// stays: removing it would let two processes lock different files of that name.
func lockFile(path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), editTimeout)
	defer cancel()
	lock := flock.New(target(path)+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, editPoll); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s is being edited by another process for %v", path, editTimeout)
		}
		if dir := filepath.Dir(target(path)); errors.Is(err, fs.ErrNotExist) {
			return nil, &MissingDir{Dir: dir, File: path, Err: err}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = lock.Unlock() }, nil // the kernel unlocks it when the process exits
}

// MissingDir is the error for a file of tokens whose directory does not exist.
type MissingDir struct {
	Dir, File string
	Err       error
}

func (e *MissingDir) Error() string {
	return fmt.Sprintf("lock %s: the directory %s does not exist", e.File, e.Dir)
}

// Unwrap returns the cause.
func (e *MissingDir) Unwrap() error { return e.Err }

// target resolves symbolic links, so that an edit replaces the file and not the link.
func target(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// replaceFile replaces a file atomically.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	if err := syncfile.Replace(target(path), data, mode); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return nil
}
