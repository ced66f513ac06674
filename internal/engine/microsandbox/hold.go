//go:build linux

package microsandbox

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// The directory of a guest has a file whose name names its holder: "held-HOLDER", or
// "detached". Renaming that file transfers the guest, so that one of several engines gets it. The file's content is the guest's id.
const (
	heldPrefix = "held-"
	detached   = "detached"
	// shareName is the directory that the guest sees.
	shareName = "share"
	// maxHolders bounds the entries of a guest's directory: there are two.
	maxHolders = 16
)

var holderPattern = lazyregexp.New(`^[0-9a-f]{16}$`)

// guestDir is the directory of a guest's files on the host.
func guestDir(dir, name string) string { return filepath.Join(dir, name) }

// makeGuestDir makes the directory of a guest that the holder holds.
func makeGuestDir(dir, name, holder, id string) error {
	if err := os.Mkdir(guestDir(dir, name), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(guestDir(dir, name), shareName), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(guestDir(dir, name), heldPrefix+holder), []byte(id), 0o600)
}

// holding tells who holds a guest.
type holding struct {
	file   string    // the name of the file that tells it
	holder string    // "": the guest is detached
	since  time.Time // when the file got its name or later
	id     string    // of the guest
}

// errUnheld means that nobody holds a guest: it is being made, or the process that made it
// was killed then.
var errUnheld = errors.New("no holder")

// holdingOf returns who holds a guest. Errors: fs.ErrNotExist, errUnheld, others of the
// file system.
func holdingOf(dir, name string) (holding, error) {
	f, err := os.Open(guestDir(dir, name))
	if err != nil {
		return holding{}, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxHolders)
	if err != nil && !errors.Is(err, io.EOF) {
		return holding{}, err
	}
	for _, file := range names {
		holder, held := strings.CutPrefix(file, heldPrefix)
		if file == detached {
			holder = ""
		} else if !held || !holderPattern().MatchString(holder) {
			continue
		}
		return readHolding(filepath.Join(guestDir(dir, name), file), holder)
	}
	return holding{}, errUnheld
}

// maxID bounds the id of a guest, as engine.CheckID does.
const maxID = 64

func readHolding(path, holder string) (holding, error) {
	f, err := os.Open(path)
	if err != nil {
		return holding{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return holding{}, err
	}
	id, err := io.ReadAll(io.LimitReader(f, maxID+1))
	if err == nil {
		err = engine.CheckID(string(id))
	}
	return holding{file: filepath.Base(path), holder: holder, since: info.ModTime(), id: string(id)}, err
}

// takeHold makes the holder hold a guest that had a holding; "" detaches it. It fails with
// fs.ErrNotExist if somebody else was faster.
func takeHold(dir, name string, had holding, holder string) error {
	file := detached
	if holder != "" {
		file = heldPrefix + holder
	}
	path := filepath.Join(guestDir(dir, name), file)
	if err := os.Rename(filepath.Join(guestDir(dir, name), had.file), path); err != nil {
		return err
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
