package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"github.com/pelletier/go-toml/v2/unstable"
)

// fileHeader begins a file that we make.
const fileHeader = `# Tokens that clients of Glovebox bear. Only hashes are here: a token that is lost
# is replaced, not looked up. Read again when it changes; "glovebox token" edits it.
#
#   scopes: use (everything that tools do), read (only look), metrics (status page)
`

const (
	// editTimeout bounds the wait for another edit, which reads and writes a small
	// file.
	editTimeout = 10 * time.Second
	// editPoll is how often it is looked whether the other is done.
	editPoll = 20 * time.Millisecond
)

// AddToken writes a token to the end of a file, which is made if there is none
// (mode 0600). What was in it stays as it is. Edits of one file take turns, also
// those of other processes.
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

// RemoveTokens removes the tokens that match from a file and returns how many
// there were. Everything else in the file stays as it is. Edits of one file take
// turns, also those of other processes.
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
	// What is left must be exactly the others: no text is worth a token that stays
	// in force, or one that goes by mistake.
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

// editable reads a file as the server would, and says which mode it has.
func editable(path string) ([]byte, fs.FileMode, error) {
	data, info, err := readPrivate(path)
	if err != nil {
		return nil, 0o600, err
	}
	return data, info.Mode().Perm(), nil
}

// tables returns where the lines of the [[token]] tables begin.
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

// aboveComments returns where what belongs to the table at next begins: with the
// lines of comments right above it, but after the table at start.
func aboveComments(data []byte, start, next int) int {
	for {
		line := bytes.LastIndexByte(data[:next-1], '\n') + 1
		if line <= start || !bytes.HasPrefix(bytes.TrimLeft(data[line:next], " \t"), []byte("#")) {
			return next
		}
		next = line
	}
}

// lockFile waits for its turn to edit a file, by a lock on a file beside it, which
// stays: who removed it would let two at the file.
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
	return func() { _ = lock.Unlock() }, nil // the end of the process does it, too
}

// MissingDir reports that the directory of a file of tokens does not exist.
type MissingDir struct {
	Dir, File string
	Err       error
}

func (e *MissingDir) Error() string {
	return fmt.Sprintf("lock %s: the directory %s does not exist", e.File, e.Dir)
}

// Unwrap returns the cause.
func (e *MissingDir) Unwrap() error { return e.Err }

// target is the file that a link leads to, so that it is what is replaced.
func target(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// replaceFile puts data in the place of a file at once.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	path = target(path)
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return nil
}
