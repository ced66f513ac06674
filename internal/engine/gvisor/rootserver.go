//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
)

const (
	// headerSize is the size of what stands before every message of gVisor's file
	// protocol: length of what follows, kind, padding.
	headerSize = 8
	// maxRequest bounds a request. The largest that is understood lists the
	// descriptors that a sentry is done with, at most a hundred.
	maxRequest = 4 << 10
	// maxRequests bounds the requests of a sentry. It makes three: it mounts the
	// root, opens it for reading once, and says that it is done with that.
	maxRequests = 100
)

// rootServer gives a sentry the root of its guest, in place of a gofer: a
// descriptor of the assembled tree, from which the sentry opens all else itself.
//
// The sentry is not trusted. It gets the same descriptor whatever it asks: that of the
// root itself, read-only, of a mount that has nothing above it.
type rootServer struct {
	conn net.Conn
	root *os.File // the tree
	done chan struct{}
	err  error // valid after done: why the sentry did not get what it asked for
}

// serveRoot answers at conn, which it takes, until close or the end of the sentry.
func serveRoot(conn, root *os.File) (*rootServer, error) {
	c, err := net.FileConn(conn)
	conn.Close()
	if err != nil {
		return nil, fmt.Errorf("serve root: %w", err)
	}
	s := &rootServer{conn: c, root: root, done: make(chan struct{})}
	go s.run()
	return s, nil
}

// close ends the server and returns why it has refused a request, if it has.
func (s *rootServer) close() error {
	if s == nil {
		return nil
	}
	s.conn.Close()
	<-s.done
	return s.err
}

func (s *rootServer) run() {
	defer close(s.done)
	defer s.conn.Close()
	for n := 0; s.err == nil && n < maxRequests; n++ {
		kind, err := s.request()
		if err != nil {
			return // the sentry has ended, or violates the protocol
		}
		s.err = s.answer(kind)
	}
}

// request reads a request and returns its kind. The rest is ignored.
func (s *rootServer) request() (lisafs.MID, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(s.conn, header[:]); err != nil {
		return 0, err
	}
	size := binary.NativeEndian.Uint32(header[:])
	if size > maxRequest {
		return 0, errors.New("request too long")
	}
	_, err := io.CopyN(io.Discard, s.conn, int64(size))
	return lisafs.MID(binary.NativeEndian.Uint16(header[4:])), err
}

// The ids of descriptors in the protocol. The root has one, and so has the root
// opened for reading, however often.
const (
	rootID   = 1
	openedID = 2
)

func (s *rootServer) answer(kind lisafs.MID) error {
	switch kind {
	case lisafs.Mount:
		stat, err := statRoot(s.root)
		if err != nil {
			return err
		}
		resp := lisafs.MountResp{
			Root:           lisafs.Inode{ControlFD: rootID, Stat: stat},
			MaxMessageSize: primitive.Uint32(maxRequest),
			SupportedMs:    []lisafs.MID{lisafs.Mount, lisafs.OpenAt, lisafs.Close},
		}
		b := message(kind, resp.SizeBytes())
		resp.MarshalBytes(b[headerSize:])
		return s.give(b)
	case lisafs.OpenAt:
		resp := lisafs.OpenAtResp{OpenFD: openedID}
		b := message(kind, resp.SizeBytes())
		resp.MarshalBytes(b[headerSize:])
		return s.give(b)
	case lisafs.Close:
		_, err := s.conn.Write(message(kind, 0))
		return err
	}
	return fmt.Errorf("the sentry asks for %d", kind)
}

// message returns a message without its content.
func message(kind lisafs.MID, size int) []byte {
	b := make([]byte, headerSize+size)
	binary.NativeEndian.PutUint32(b, uint32(size))
	binary.NativeEndian.PutUint16(b[4:], uint16(kind))
	return b
}

// give sends a message and a descriptor of the root.
func (s *rootServer) give(b []byte) error {
	fd, err := unix.Openat(int(s.root.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root: %w", err)
	}
	defer unix.Close(fd)
	_, _, err = s.conn.(*net.UnixConn).WriteMsgUnix(b, unix.UnixRights(fd), nil)
	return err
}

func statRoot(root *os.File) (lisafs.Statx, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return lisafs.Statx{}, fmt.Errorf("stat root: %w", err)
	}
	at := func(t unix.StatxTimestamp) lisafs.StatxTimestamp {
		return lisafs.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
	}
	return lisafs.Statx{
		Mask: st.Mask, Mode: st.Mode, Nlink: st.Nlink, UID: st.Uid, GID: st.Gid,
		DevMajor: st.Dev_major, DevMinor: st.Dev_minor, RdevMajor: st.Rdev_major, RdevMinor: st.Rdev_minor,
		Ino: st.Ino, Size: st.Size, Blksize: st.Blksize, Blocks: st.Blocks,
		Atime: at(st.Atime), Btime: at(st.Btime), Mtime: at(st.Mtime), Ctime: at(st.Ctime),
	}, nil
}
