package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

const (
	// maxShown bounds an image in a result. Claude accepts 5 MB of base64.
	maxShown = 3 << 20
	// maxBinary bounds a binary file that encoding auto returns as base64. A model
	// cannot use a larger one.
	maxBinary = 2 << 10
	// largeContent is the size from which content is only in the structured content of the
	// result: no model reads that much, and twice the bytes take twice the memory.
	largeContent = 256 << 10
	// largePart is the most bytes of a file of which base64 has largeContent.
	largePart = largeContent / 4 * 3
)

var downloadFile = define(info{
	name:  DownloadFile,
	title: "Download a file",
	description: "Read a file from the sandbox of a session: text as text, a picture as an image. " +
		"Long text comes in parts of 24 KB: read on with offset, or work on the file with execute_code instead of reading it. " +
		"Other files come as base64, if they are small or you ask for it.",
	set: Files, family: fileErrors, readOnly: true, idempotent: true,
}, func(ctx context.Context, c *Call, in downloadFileIn) (downloadFileOut, error) {
	out, err := c.download(ctx, in)
	if err == nil && out.Truncated && out.offset == 0 && out.Size <= maxResource && c.Links {
		out.link = fileLink(out.of, out.Path, out.Type, out.Size)
	}
	return out, err
})

func (c *Call) download(ctx context.Context, in downloadFileIn) (downloadFileOut, error) {
	r, err := c.openFiles(ctx, in.SessionID)
	if err != nil {
		return downloadFileOut{}, err
	}
	defer r.close()
	out := downloadFileOut{Type: "application/octet-stream", of: r.of, offset: int64(in.Offset), Notes: r.notes}
	read := func(limit int) ([]byte, error) {
		var buf bytes.Buffer
		f, err := r.ReadFile(ctx, box.ReadRequest{Path: expandHome(in.Path), Offset: out.offset, Limit: int64(limit)}, &buf)
		out.Path, out.Size = f.Path, f.Size
		return buf.Bytes(), explainPath(readPath, err)
	}
	data, err := read(min(in.MaxBytes, largeContent))
	reserved := int64(0)
	if more := min(int64(in.MaxBytes), out.Size-out.offset); err == nil && more > largeContent {
		reserved = base64Size(more)
		if err = c.reserveAnswer(ctx, more, reserved); err == nil {
			data, err = read(int(more))
		}
	}
	if err != nil {
		return downloadFileOut{}, err
	}
	if in.Offset == 0 {
		if kind := imageType(data); kind != "" {
			if in.Encoding == "auto" {
				return out.picture(kind, data, read)
			}
			out.Type = kind
		}
	}
	if in.Encoding == "base64" {
		out.take(data, "base64", base64.StdEncoding.EncodeToString(data))
		return out, nil
	}
	if out.offset+int64(len(data)) < out.Size {
		data = wholeRunes(data)
	}
	switch text := utf8.Valid(data); {
	case text && (in.Encoding == "utf-8" || !bytes.ContainsRune(data, 0)):
		out.Type = textType
		size := jsonSize(data)
		if in.Encoding == "auto" && len(data) > largeContent && size > 2*int64(len(data)) {
			out.take(data, "base64", base64.StdEncoding.EncodeToString(data))
			out.Notes = append(out.Notes, "The content is base64: it is text with so many control characters that JSON would take more than twice its size.")
			break
		}
		if len(data) > largeContent && size > reserved {
			if err := c.reserveAnswer(ctx, int64(len(data)), size-reserved); err != nil {
				return downloadFileOut{}, err
			}
		}
		out.take(data, "utf-8", string(data))
	case in.Encoding == "utf-8":
		e := invalid("encoding", "The file is not UTF-8 text: %s", clip(out.Path))
		e.Hint = "Use encoding base64 or auto."
		return downloadFileOut{}, e
	case in.Offset == 0 && out.Size <= maxBinary && int64(len(data)) == out.Size:
		out.take(data, "base64", base64.StdEncoding.EncodeToString(data))
		if charset := otherCharset(data); charset != "" {
			out.Notes = append(out.Notes, "The content is base64: "+readAs(charset))
		}
	default:
		out.Truncated = true
		note := "The content is not text and is left out: work on the file with execute_code, or pass encoding base64 for its bytes."
		if charset := otherCharset(data); charset != "" {
			note = "The content is left out: " + readAs(charset)
		}
		out.Notes = append(out.Notes, note)
	}
	return out, nil
}

// reserveAnswer reserves memory for an answer with so many bytes of a file, or for a part of
// it: size is its part in the encoded answer.
func (c *Call) reserveAnswer(ctx context.Context, bytes, size int64) error {
	if c.reserve == nil || c.reserve(ctx, size) {
		return nil
	}
	return &box.Error{
		Code: box.CodeLimit, Op: "download file",
		Msg:     fmt.Sprintf("%d bytes do not fit beside the answers that clients have not read yet", bytes),
		Hint:    "Read those of earlier calls, or pass a smaller max_bytes and read on with offset.",
		Context: map[string]string{"limit": "unread_answers"},
	}
}

// base64Size returns how many bytes n bytes take as base64.
func base64Size(n int64) int64 { return (n + 2) / 3 * 4 }

// jsonSize returns how many bytes text takes in a JSON string, without the quotes: a
// control character takes up to six.
func jsonSize(text []byte) int64 {
	n := int64(len(text))
	for _, b := range text {
		switch {
		case b == '"' || b == '\\' || b == '\n' || b == '\r' || b == '\t' || b == '\b' || b == '\f':
			n++
		case b < ' ':
			n += 5
		}
	}
	// The line separators U+2028 and U+2029 take six bytes in place of three.
	return n + 3*int64(bytes.Count(text, []byte("\u2028"))+bytes.Count(text, []byte("\u2029")))
}

// picture returns the answer for an image that begins with data.
func (o downloadFileOut) picture(kind string, data []byte, read func(limit int) ([]byte, error)) (downloadFileOut, error) {
	o.Type = kind
	if o.Size > maxShown {
		o.Truncated = true
		o.Notes = append(o.Notes, fmt.Sprintf("The picture is too large to be shown: the limit is %d bytes. Make a smaller copy with execute_code.", maxShown))
		return o, nil
	}
	if int64(len(data)) < o.Size {
		var err error
		if data, err = read(maxShown); err != nil {
			return downloadFileOut{}, err
		}
	}
	o.images = []box.Image{{MIME: kind, Data: data}}
	o.Notes = append(o.Notes, "The picture is an image of the answer; encoding base64 returns its bytes.")
	return o, nil
}

// take adds a part of the file to the answer.
func (o *downloadFileOut) take(data []byte, encoding, content string) {
	o.Encoding, o.Content, o.part = encoding, content, int64(len(data))
	if end := o.offset + o.part; end < o.Size {
		o.Truncated, o.NextOffset = true, end
	}
}

// wholeRunes cuts an incomplete character at the end of data.
func wholeRunes(data []byte) []byte {
	for n := 1; n <= min(utf8.UTFMax-1, len(data)); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return data[:len(data)-n]
			}
			break
		}
	}
	return data
}

type downloadFileIn struct {
	SessionID string `json:"session_id" jsonschema:"session to read from" min:"1" alias:"context_id"`
	Path      string `json:"path" jsonschema:"file to read" min:"1" max:"4096"`
	Offset    int    `json:"offset,omitempty" jsonschema:"byte to begin at" min:"0" default:"0"`
	MaxBytes  int    `json:"max_bytes,omitempty" jsonschema:"the most bytes to return" min:"1" max:"16777216" default:"24576"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"base64 for the bytes of any file" enum:"auto,utf-8,base64" default:"auto"`
}

type downloadFileOut struct {
	Path       string   `json:"path" jsonschema:"absolute path in the sandbox"`
	Size       int64    `json:"size" jsonschema:"bytes of the whole file"`
	Type       string   `json:"type" jsonschema:"text/plain, the type of a picture, or application/octet-stream"`
	Encoding   string   `json:"encoding,omitempty" jsonschema:"how content is encoded: utf-8 or base64; none if there is no content"`
	Content    string   `json:"content,omitempty" jsonschema:"the content from offset on; none of a picture, which is an image of the answer"`
	Truncated  bool     `json:"truncated" jsonschema:"whether the answer has not all of the file"`
	NextOffset int64    `json:"next_offset,omitempty" jsonschema:"offset to read on with"`
	Notes      []string `json:"notes,omitempty" jsonschema:"what else there is to know"`

	of           boxRef
	offset, part int64
	images       []box.Image
	link         mcp.Content // to the whole file if the answer has a part; may be nil
}

func (o downloadFileOut) present() presentation {
	p := presentation{text: o.Content, notes: o.Notes, images: o.images}
	if len(o.Content) > largeContent {
		p.text = ""
		p.notes = append(slices.Clip(p.notes), fmt.Sprintf(
			"The content is too large for text: it is in the member content of the structured content. To get it as text, read it in parts: pass max_bytes %d (or less) and offset %d, then read on with the offset that each answer names.",
			largePart, o.offset))
	}
	p.status.add("%s", quoteName(o.Path))
	switch {
	case o.NextOffset > 0:
		p.status.add("bytes %d to %d of %d", o.offset, o.NextOffset, o.Size)
		p.status.add("read on with offset %d", o.NextOffset)
	case o.offset > o.Size:
		p.status.add("offset %d is beyond the end, at byte %d", o.offset, o.Size)
	case o.offset > 0:
		p.status.add("bytes %d to %d, the end", o.offset, o.Size)
	default:
		p.status.add("%s", plural.N(o.Size, "byte"))
	}
	if o.Encoding != "utf-8" {
		p.status.add("%s", o.Type)
	}
	p.status.addBox(o.of, false)
	if o.link != nil {
		p.more = []mcp.Content{o.link}
	}
	return p
}
