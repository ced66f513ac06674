package box

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxStored bounds the entries that are read of an archive; a backup has fewer.
	maxStored = 200_000
	// maxStoredPath bounds the names and link targets that are shown, in bytes: a guest
	// can nest files deeper than any call could name them.
	maxStoredPath = 4096
	// maxStoredNames bounds the bytes of all names and link targets that are held of
	// an archive while a call reads it.
	maxStoredNames = 16 << 20
	// maxListed is how many entries List returns at most, as in a living box.
	maxListed = 1000
)

// StoredFiles is the home directory of a hibernated box, as it is on disk. The caller
// closes it. Its methods may not be called concurrently.
type StoredFiles struct {
	Info  homeInfo
	Why   string // the memory of the box cannot be restored; a clause
	waits bool   // for its image: until then no box has these files

	home  string
	f     *os.File
	files map[string]storedFile // by path below home; "" is home itself
}

type storedFile struct {
	protocol.FileInfo
	at int64 // of the content in the archive
}

// StoredFiles returns the files of an owner's box that is hibernated and whose memory
// this server cannot restore, without making anything of the box. It is nil if
// there is no such box, if it lives, or if it can be woken as usual.
//
// Errors: CodeGone if its files were not stored.
func (m *Manager) StoredFiles(owner Owner, kind Kind, id string) (*StoredFiles, error) {
	const op = "read stored files"
	k := key{owner, kind, id}
	if m.reg.find(k) || !m.hibernates() {
		return nil, nil
	}
	found, err := m.records.hibernated(op, owner, kind)
	if err != nil {
		return nil, err
	}
	r, err := findRecord(found, k)
	if err != nil || r == nil {
		return nil, nil // the acquiring call reports why
	}
	dir, meta, err := m.parts.Snapshots.Peek(r.ID)
	if err != nil {
		return nil, nil
	}
	cause := m.machines.restorable(dir, Interpreter(meta.Interpreter), Flavor(meta.Flavor))
	missing := isMissingImage(cause)
	if !unusable(cause) && !missing {
		return nil, nil
	}
	info, f, err := openHome(dir)
	if err != nil {
		if missing {
			return nil, nil // the acquiring call reports why
		}
		what := key{owner, kind, r.BoxID}
		return nil, &Error{
			Code: CodeGone, Op: op, Context: what.details(),
			Msg:  fmt.Sprintf("The %s %s cannot be woken: %s; and its files cannot be read: %s", kind, r.BoxID, mismatch(cause), reasonOf(err)),
			Hint: "Nothing is deleted. Run code in it to go on in a fresh box; its old state then stays as a snapshot.",
		}
	}
	st := &StoredFiles{Info: *info, Why: mismatch(cause), waits: missing, home: m.parts.Machines.Home, f: f}
	if st.files, err = readStored(f, st.home); err != nil {
		f.Close()
		return nil, &Error{Code: CodeInternal, Op: op, Msg: "The stored files cannot be read", Err: err}
	}
	return st, nil
}

// Close frees what it holds.
func (st *StoredFiles) Close() { st.f.Close() }

// Explain says where the files come from, in a sentence.
func (st *StoredFiles) Explain() string {
	next := "Running code in it starts a fresh box with these files."
	if st.waits {
		next = "Running code in it works when the operator has brought the image back."
	}
	return fmt.Sprintf("Read from what is stored of this hibernated box as of %s: its memory cannot be restored (%s). %s",
		st.Info.At.UTC().Format("2006-01-02T15:04:05Z"), st.Why, next)
}

// readStored lists the files in an archive that a guest made.
func readStored(r io.ReadSeeker, home string) (map[string]storedFile, error) {
	files := map[string]storedFile{"": {FileInfo: protocol.FileInfo{Path: home, Name: path.Base(home), Type: "directory", Mode: 0o755}}}
	t := tar.NewReader(r)
	held := 0
	for range maxStored {
		h, err := t.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		at, err := r.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		if len(h.Name) > maxStoredPath || len(h.Linkname) > maxStoredPath {
			continue
		}
		if held += len(h.Name) + len(h.Linkname); held > maxStoredNames {
			return nil, fmt.Errorf("read archive: the names of its files take more than %d bytes", maxStoredNames)
		}
		abs := path.Join(home, path.Clean("/"+h.Name)) // nothing leads out of home
		name := strings.TrimPrefix(abs[len(home):], "/")
		info := protocol.FileInfo{
			Path: abs, Name: path.Base(name), Size: h.Size, Mode: uint32(h.FileInfo().Mode().Perm()), Modified: h.ModTime.UnixNano(),
		}
		switch h.Typeflag {
		case tar.TypeReg:
			info.Type = "file"
		case tar.TypeDir:
			info.Type = "directory"
		case tar.TypeSymlink:
			info.Type, info.Target = "symlink", h.Linkname
		default:
			continue
		}
		if name != "" {
			files[name] = storedFile{info, at}
		}
	}
	return nil, fmt.Errorf("read archive: more than %d entries", maxStored)
}

// find returns the file of a path, which is absolute or below home.
func (st *StoredFiles) find(op, p string) (string, storedFile, error) {
	abs := path.Clean(p)
	if !path.IsAbs(p) {
		abs = path.Join(st.home, p)
	}
	fail := func(code Code, format string, args ...any) error {
		return &Error{Code: code, Op: op, Msg: fmt.Sprintf(format, args...), Context: map[string]string{"path": clip(p, 256)}}
	}
	name, ok := strings.CutPrefix(abs, st.home)
	if !ok || name != "" && name[0] != '/' {
		return "", storedFile{}, fail(CodePathNotAllowed, "%s is not below %s, and nothing else is stored of this hibernated box", clip(p, 256), st.home)
	}
	name = strings.TrimPrefix(name, "/")
	f, ok := st.files[name]
	if !ok {
		return "", storedFile{}, fail(CodeFileNotFound, "File not found: %s", clip(p, 256))
	}
	return name, f, nil
}

// List lists a directory, as Box.List does.
func (st *StoredFiles) List(_ context.Context, req ListRequest) (ListResult, error) {
	res := ListResult{Entries: []FileInfo{}}
	dir, f, err := st.find("list files", req.Path)
	if err != nil {
		return res, err
	}
	if f.Type != "directory" {
		return res, &Error{Code: CodeInvalid, Op: "list files", Msg: "Not a directory: " + clip(req.Path, 256), Context: map[string]string{"path": clip(req.Path, 256)}}
	}
	prefix := dir + "/"
	if dir == "" {
		prefix = ""
	}
	for name, f := range st.files {
		below, ok := strings.CutPrefix(name, prefix)
		if ok && below != "" && name != dir && strings.Count(below, "/") < max(req.Depth, 1) {
			res.Entries = append(res.Entries, f.FileInfo)
		}
	}
	slices.SortFunc(res.Entries, func(a, b FileInfo) int { return strings.Compare(a.Path, b.Path) })
	most := maxListed
	if req.Max > 0 {
		most = min(req.Max, maxListed)
	}
	if len(res.Entries) > most {
		res.Entries, res.Truncated = res.Entries[:most], true
	}
	return res, nil
}

// ReadFile copies a regular file, or a part of it, to w, as Box.ReadFile does.
func (st *StoredFiles) ReadFile(_ context.Context, req ReadRequest, w io.Writer) (FileInfo, error) {
	const op = "read file"
	_, f, err := st.find(op, req.Path)
	if err != nil {
		return FileInfo{}, err
	}
	if f.Type != "file" {
		e := &Error{Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Not a file: %s is a %s", clip(req.Path, 256), f.Type), Context: map[string]string{"path": clip(req.Path, 256)}}
		if f.Target != "" {
			e.Hint = "It points to " + clip(f.Target, 256) + "."
		}
		return FileInfo{}, e
	}
	offset := min(max(req.Offset, 0), f.Size)
	n := f.Size - offset
	if req.Limit > 0 {
		n = min(n, req.Limit)
	}
	if copied, err := io.Copy(w, io.NewSectionReader(st.f, f.at+offset, n)); err != nil || copied < n {
		return FileInfo{}, &Error{Code: CodeInternal, Op: op, Msg: "The stored file cannot be read", Err: errors.Join(err, io.ErrUnexpectedEOF)}
	}
	return f.FileInfo, nil
}
