package erofs

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
)

const (
	blockBits = 12
	blockSize = 1 << blockBits

	superOffset = 1024
	superSize   = 128
	superMagic  = 0xe0f5e1e2
	// compatChecksum says that the superblock has a checksum.
	compatChecksum = 1

	inodeSize  = 64 // of the extended form
	slotBits   = 5  // the number of an inode is its offset in units of 32 bytes
	direntSize = 12

	// layoutPlain and layoutInline are the format of an inode: extended, with all content
	// in blocks, or with the rest of the content after the inode.
	layoutPlain  = 1 | 0<<1
	layoutInline = 1 | 2<<1

	// maxDepth bounds the depth of the tree.
	maxDepth = 1000
)

// node is an inode with its place in the image.
type node struct {
	*Inode
	parent *node
	names  []string // of a directory, sorted, with . and ..
	nlink  uint32
	size   int64  // of the content
	inline int64  // bytes of the content after the inode
	offset int64  // of the inode in the metadata
	block  uint32 // the first of the content outside the inode
	number uint32
}

// nid returns the number by which directories refer to the inode.
func (n *node) nid() uint64 { return uint64(n.offset) >> slotBits }

// blocks returns the number of blocks of the content outside the inode.
func (n *node) blocks() int64 { return (n.size - n.inline + blockSize - 1) >> blockBits }

// image is the plan of an image.
type image struct {
	nodes    []*node // parents before children
	byInode  map[*Inode]*node
	metadata int64 // bytes
	blocks   int64 // of the whole image
}

// Write writes an image of the tree below root, a directory. data has the contents of
// the regular files. uuid identifies the image: gVisor restores a memory snapshot only
// on an image with the same superblock, so it must differ for different contents.
// Write does not change the tree.
func Write(w io.Writer, root *Inode, data io.ReaderAt, uuid [16]byte) error {
	img := &image{byInode: make(map[*Inode]*node)}
	if !root.IsDir() {
		return fmt.Errorf("%w: the root is no directory", ErrInvalid)
	}
	if err := img.add(nil, root, 0); err != nil {
		return err
	}
	if err := img.plan(); err != nil {
		return err
	}
	out := &counter{w: bufio.NewWriterSize(w, 1<<20)}
	out.Write(img.superblock(uuid))
	for _, n := range img.nodes {
		out.pad(blockSize + n.offset)
		img.writeInode(out, n)
	}
	for _, n := range img.nodes {
		if n.blocks() == 0 {
			continue
		}
		out.pad(int64(n.block) << blockBits)
		if n.Type() != TypeRegular {
			out.Write(img.content(n)[:n.size-n.inline])
			continue
		}
		got, err := io.Copy(out, io.NewSectionReader(data, n.Offset, n.size))
		if err != nil {
			return fmt.Errorf("write image: %w", err)
		}
		if got != n.size && out.err == nil {
			return fmt.Errorf("write image: a file has %d bytes, want %d: %w", got, n.size, io.ErrUnexpectedEOF)
		}
	}
	out.pad(img.blocks << blockBits)
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fmt.Errorf("write image: %w", out.err)
	}
	return nil
}

// add adds the tree below i.
func (img *image) add(parent *node, i *Inode, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: it is deeper than %d directories", ErrInvalid, maxDepth)
	}
	if n, ok := img.byInode[i]; ok {
		if i.IsDir() {
			return fmt.Errorf("%w: a directory has two names", ErrInvalid)
		}
		n.nlink++
		return nil
	}
	if err := i.validate(); err != nil {
		return err
	}
	n := &node{Inode: i, parent: parent, nlink: 1, number: uint32(len(img.nodes) + 1)}
	img.nodes = append(img.nodes, n)
	img.byInode[i] = n
	if !i.IsDir() {
		return nil
	}
	if parent == nil {
		n.parent = n
	} else {
		parent.nlink++
	}
	n.nlink = 2
	names, err := i.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := img.add(n, i.Entries[name], depth+1); err != nil {
			return err
		}
	}
	n.names = append(names, ".", "..")
	slices.Sort(n.names)
	return nil
}

// plan gives each inode and each content its place: the superblock has the first block,
// then come the inodes, then the contents.
func (img *image) plan() error {
	at := int64(1 << slotBits) // number 0 is no inode
	for _, n := range img.nodes {
		switch n.Type() {
		case TypeRegular:
			n.size = n.Size
		case TypeSymlink:
			n.size = int64(len(n.Target))
		case TypeDir:
			n.size = direntsSize(n.names)
		}
		if rest := n.size % blockSize; n.Type() != TypeRegular && inodeSize+rest <= blockSize {
			n.inline = rest
		}
		// Neither an inode nor what follows it crosses a block.
		if at%blockSize+inodeSize+n.inline > blockSize {
			at = (at + blockSize - 1) &^ (blockSize - 1)
		}
		n.offset = at
		at = (at + inodeSize + n.inline + 1<<slotBits - 1) &^ (1<<slotBits - 1)
	}
	img.metadata = at
	img.blocks = 1 + (at+blockSize-1)>>blockBits
	for _, n := range img.nodes {
		n.block = uint32(img.blocks)
		if img.blocks += n.blocks(); img.blocks > math.MaxUint32 {
			return fmt.Errorf("%w: it has more than 2^32 blocks", ErrInvalid)
		}
	}
	return nil
}

// superblock returns the first block.
func (img *image) superblock(uuid [16]byte) []byte {
	b := make([]byte, blockSize)
	s := b[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(s[0:], superMagic)
	le.PutUint32(s[8:], compatChecksum)
	s[12] = blockBits
	le.PutUint16(s[14:], uint16(img.nodes[0].nid()))
	le.PutUint64(s[16:], uint64(len(img.nodes)))
	le.PutUint32(s[36:], uint32(img.blocks))
	le.PutUint32(s[40:], 1) // the block of the inodes
	copy(s[48:64], uuid[:])
	le.PutUint32(s[4:], ^crc32.Checksum(s, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func (img *image) writeInode(out *counter, n *node) {
	var b [inodeSize]byte
	le := binary.LittleEndian
	format := uint16(layoutPlain)
	if n.inline > 0 {
		format = layoutInline
	}
	le.PutUint16(b[0:], format)
	le.PutUint16(b[4:], n.Mode)
	le.PutUint64(b[8:], uint64(n.size))
	if n.Type() != TypeFIFO { // there it would be a device number
		le.PutUint32(b[16:], n.block)
	}
	le.PutUint32(b[20:], n.number)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], n.MTime)
	le.PutUint32(b[44:], n.nlink)
	out.Write(b[:])
	if n.inline > 0 {
		out.Write(img.content(n)[n.size-n.inline:])
	}
}

// content returns the content of a directory or a symbolic link.
func (img *image) content(n *node) []byte {
	if n.Type() == TypeSymlink {
		return []byte(n.Target)
	}
	b := make([]byte, 0, n.size)
	for names := n.names; len(names) > 0; {
		count, _ := fill(names)
		// All blocks but the last are full.
		b = append(b, make([]byte, (blockSize-len(b)%blockSize)%blockSize)...)
		at := count * direntSize
		for _, name := range names[:count] {
			to := img.target(n, name)
			b = binary.LittleEndian.AppendUint64(b, to.nid())
			b = binary.LittleEndian.AppendUint16(b, uint16(at))
			b = append(b, fileType(to.Type()), 0)
			at += len(name)
		}
		for _, name := range names[:count] {
			b = append(b, name...)
		}
		names = names[count:]
	}
	return b
}

// target returns what a name of directory n leads to.
func (img *image) target(n *node, name string) *node {
	switch name {
	case ".":
		return n
	case "..":
		return n.parent
	}
	return img.byInode[n.Entries[name]]
}

// fill returns how many of the names fit into a block of a directory and how many bytes
// they take there.
func fill(names []string) (count, size int) {
	for _, name := range names {
		if size+direntSize+len(name) > blockSize {
			break
		}
		count, size = count+1, size+direntSize+len(name)
	}
	return count, size
}

// direntsSize returns the size of a directory with the given names.
func direntsSize(names []string) int64 {
	total := int64(0)
	for {
		count, size := fill(names)
		if count == len(names) {
			return total + int64(size)
		}
		total += blockSize
		names = names[count:]
	}
}

func fileType(mode uint16) byte {
	switch mode {
	case TypeRegular:
		return 1
	case TypeDir:
		return 2
	case TypeFIFO:
		return 5
	case TypeSymlink:
		return 7
	}
	return 0
}

// counter counts what is written and keeps the first error.
type counter struct {
	w   *bufio.Writer
	n   int64
	err error
}

func (c *counter) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	var n int
	n, c.err = c.w.Write(b)
	c.n += int64(n)
	return n, c.err
}

// zeros is what pad writes.
var zeros [blockSize]byte

// pad writes zeros up to an offset.
func (c *counter) pad(to int64) {
	for c.err == nil && c.n < to {
		c.Write(zeros[:min(to-c.n, blockSize)])
	}
}
