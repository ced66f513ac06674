package secret

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
)

const (
	// A response that expands by more than maxRatio after freeBytes is a bomb: it would
	// keep a processor busy for little traffic.
	maxRatio  = 100
	freeBytes = 64 << 20
)

// codingError means that a response has a content coding in which values cannot be found.
// coding is empty unless it is a known one: the host chose the text.
type codingError struct{ coding string }

func (e *codingError) Error() string {
	if e.coding == "" {
		return "an unknown content coding"
	}
	return "the content coding " + e.coding
}

// otherCodings are the registered ones that decode does not know.
var otherCodings = []string{"br", "zstd", "compress", "x-compress", "dcb", "dcz", "aes128gcm", "exi", "pack200-gzip"}

// errRatio means that a response expands too much.
var errRatio = errors.New("the response expands more than a hundredfold")

// decode removes the content coding of a response. Requests ask for none, but some hosts
// compress nevertheless.
func decode(res *http.Response) error {
	coding := strings.ToLower(strings.TrimSpace(strings.Join(res.Header.Values("Content-Encoding"), ",")))
	var open func(*bufio.Reader) (io.Reader, error)
	switch coding {
	case "":
		return nil
	case "identity":
	case "gzip", "x-gzip":
		open = func(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "deflate":
		open = openDeflate
	default:
		if !slices.Contains(otherCodings, coding) {
			coding = ""
		}
		return &codingError{coding}
	}
	res.Header.Del("Content-Encoding")
	if open == nil {
		return nil
	}
	// The length and the digests are those of the encoded body.
	for _, name := range []string{"Content-Length", "Content-Md5", "Content-Digest", "Accept-Ranges"} {
		res.Header.Del(name)
	}
	res.ContentLength = -1
	if res.Body != nil && res.Body != http.NoBody {
		res.Body = &decoded{body: res.Body, open: open}
	}
	return nil
}

// openDeflate reads zlib, as the standard says, or bare deflate, as some servers do.
func openDeflate(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(r)
	}
	return flate.NewReader(r), nil
}

// decoded is a body without its coding.
type decoded struct {
	body io.ReadCloser
	open func(*bufio.Reader) (io.Reader, error)
	r    io.Reader // nil: nothing was read yet
	in   int64     // bytes read from body
	out  int64
}

// count reads from the encoded body.
type count struct{ d *decoded }

func (c count) Read(p []byte) (int, error) {
	n, err := c.d.body.Read(p)
	c.d.in += int64(n)
	return n, err
}

func (d *decoded) Read(p []byte) (int, error) {
	if d.r == nil {
		r, err := d.open(bufio.NewReaderSize(count{d}, 16<<10))
		if err != nil {
			return 0, err // io.EOF, if the body is empty
		}
		d.r = r
	}
	n, err := d.r.Read(p)
	d.out += int64(n)
	if d.out > freeBytes && d.out/maxRatio > d.in {
		return n, errRatio
	}
	return n, err
}

func (d *decoded) Close() error { return d.body.Close() }
