package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/crc32c"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// Beside a snapshot of a box's memory, its files are stored once more in a form
// that every version of Glovebox can read and that depends on no image: a tar
// archive of the home directory.
const (
	homeFormat = 1
	homeTar    = "home.tar"
	homeIndex  = "home.json" // homeInfo; written last
	newSuffix  = ".new"      // of an archive that is being written
	// homeTimeout bounds the archiving of one home directory: some 10,000 files a
	// second, and a box that is too busy to answer.
	homeTimeout = 20 * time.Second
	// homeSlack is what the headers of an archive with the most entries take.
	homeSlack = 256 << 20
	// maxHomeInfo bounds how much of homeIndex is read.
	maxHomeInfo = 64 << 10
)

// homeInfo describes an archive of a home directory.
type homeInfo struct {
	Format   int       `json:"format"`
	At       time.Time `json:"at"`    // when it was made
	Bytes    int64     `json:"bytes"` // of the archive
	Sum      string    `json:"sum"`   // of the archive
	Mark     string    `json:"mark"`  // protocol.BackupResult.Mark
	Files    int       `json:"files"`
	Omitted  int       `json:"omitted,omitempty"`
	Examples []string  `json:"examples,omitempty"`
	// Only says that there is no memory beside the archive, and why.
	Only string `json:"only,omitempty"`
}

// errNoHome says that no files are stored beside a snapshot.
var errNoHome = errors.New("its files were not stored apart from its memory")

// saveHome stores the files of a box in dir, which may have an earlier archive: what has not
// changed since stays, and so does all of it if the files cannot be had now.
func (recs *records) saveHome(ctx context.Context, b *Box, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, homeTimeout, fmt.Errorf("no answer within %v", homeTimeout))
	defer cancel()
	ask := protocol.Backup{MaxBytes: int64(b.flavor.Limits().DiskMB) << 20}
	for _, v := range recs.parts.Machines.Volumes {
		ask.Exclude = append(ask.Exclude, v.Guest)
	}
	before, err := readHomeInfo(dir)
	if err == nil {
		ask.Unless = before.Mark
	}
	at := time.Now().UTC().Truncate(time.Second)
	file := filepath.Join(dir, homeTar+newSuffix)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &summed{w: f, sum: crc32c.New(), left: ask.MaxBytes + homeSlack}
	res, err := b.machine.Agent.Backup(ctx, ask, w)
	if remote, ok := errors.AsType[*protocol.Error](err); ok && remote.Code == protocol.CodeInvalid && w.n == 0 && len(ask.Exclude) == 0 {
		// The agent is of an earlier version, which knows archives only.
		err = b.machine.Agent.Archive(ctx, ".", w)
	}
	if err == nil && res.Unchanged && before == nil { // user code may have taken over the agent
		err = errors.New("the agent reports no change since an archive that does not exist")
	}
	if err == nil && res.Unchanged {
		if err := os.Remove(file); err != nil {
			return err
		}
		before.At = at
		return writeHomeInfo(dir, before)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	if err := os.Rename(file, filepath.Join(dir, homeTar)); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return writeHomeInfo(dir, &homeInfo{
		Format: homeFormat, At: at, Bytes: w.n, Sum: crc32c.Text(w.sum), Mark: clip(res.Mark, 64),
		Files: res.Files, Omitted: res.Omitted, Examples: examples(res.Examples),
	})
}

// keepHome gives dir the archive that prev has, if it has one.
func (recs *records) keepHome(b *Box, prev, dir string) {
	info, err := readHomeInfo(prev)
	if errors.Is(err, errNoHome) {
		return
	}
	if err == nil {
		info.Only = "" // dir has memory
		err = linkHome(prev, dir, info)
	}
	if err != nil {
		recs.log.Warn("earlier files of the box not kept", logkey.Guest, b.guestID, logkey.Error, err)
	}
}

// examples bounds what a guest says of the files that it left out.
func examples(names []string) []string {
	var list []string
	for _, n := range names[:min(len(names), 5)] {
		list = append(list, strings.ReplaceAll(clip(n, 100), "\n", "?")) // for one line of text
	}
	return list
}

// summed writes and sums at most left bytes.
type summed struct {
	w    io.Writer
	sum  hash.Hash32
	n    int64
	left int64
}

func (s *summed) Write(p []byte) (int, error) {
	if int64(len(p)) > s.left {
		return 0, errors.New("the archive of the files is larger than the box's disk")
	}
	n, err := s.w.Write(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	s.left -= int64(n)
	return n, err
}

// linkHome gives dir, which has no archive, the one that prev has.
func linkHome(prev, dir string, info *homeInfo) error {
	if err := os.Link(filepath.Join(prev, homeTar), filepath.Join(dir, homeTar)); err != nil {
		return err
	}
	return writeHomeInfo(dir, info)
}

// writeHomeInfo makes the archive in dir valid, and syncs its names. A description that is there
// is replaced, not changed: another directory may have it too.
func writeHomeInfo(dir string, info *homeInfo) error {
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, homeIndex)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readHomeInfo describes the archive in dir, without checking its content. The
// error is errNoHome if there is none.
func readHomeInfo(dir string) (*homeInfo, error) {
	if dir == "" {
		return nil, errNoHome
	}
	f, err := owned.Open(filepath.Join(dir, homeIndex))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoHome
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHomeInfo))
	if err != nil {
		return nil, err
	}
	info := new(homeInfo)
	if err := json.Unmarshal(b, info); err != nil {
		return nil, fmt.Errorf("read %s: %w", homeIndex, err)
	}
	if info.Format != homeFormat {
		return nil, fmt.Errorf("its files have the format %d, this program reads %d", info.Format, homeFormat)
	}
	return info, nil
}

// openHome opens the archive in dir once its checksum is right. The caller closes
// the file.
func openHome(dir string) (*homeInfo, *os.File, error) {
	info, err := readHomeInfo(dir)
	if err != nil {
		return nil, nil, err
	}
	f, err := owned.Open(filepath.Join(dir, homeTar))
	if err != nil {
		return nil, nil, err
	}
	sum := crc32c.New()
	n, err := io.Copy(sum, f)
	if err == nil && (n != info.Bytes || crc32c.Text(sum) != info.Sum) {
		err = errors.New("the archive of its files is damaged")
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return info, f, nil
}
