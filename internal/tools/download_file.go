package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

// maxShown is the largest picture that is shown besides being returned.
const maxShown = 4 << 20

var downloadFile = define(info{
	name:  "download_file",
	title: "Download a file",
	description: "Read a file from the sandbox of a context or session. Text comes as text, anything else as base64, pictures also as images. " +
		"Longer files are cut after max_bytes with truncated true; read on with offset. Relative paths are below the home directory.",
	set: Files, family: fileErrors, readOnly: true, idempotent: true,
}, func(ctx context.Context, c *Call, in downloadFileIn) (downloadFileOut, error) {
	s, notes, done, err := c.reader(ctx, in.ContextID, in.SessionID)
	if err != nil {
		return downloadFileOut{}, err
	}
	defer done()
	var buf bytes.Buffer
	f, err := s.ReadFile(ctx, sandbox.ReadRequest{Path: in.Path, Offset: int64(in.Offset), Limit: int64(in.MaxBytes)}, &buf)
	if err != nil {
		return downloadFileOut{}, err
	}
	data := buf.Bytes()
	out := downloadFileOut{Path: f.Path, Size: f.Size, Encoding: in.Encoding}
	out.Notes = notes
	whole := in.Offset == 0 && int64(len(data)) >= f.Size
	if !whole && in.Encoding != "base64" {
		data = wholeRunes(data)
	}
	out.Truncated = int64(in.Offset)+int64(len(data)) < f.Size
	text := utf8.Valid(data) && !bytes.ContainsRune(data, 0)
	switch {
	case in.Encoding == "auto" && text, in.Encoding == "utf-8" && utf8.Valid(data):
		out.Encoding, out.Content = "utf-8", string(data)
	case in.Encoding == "utf-8":
		e := invalid("encoding", "The file is not UTF-8 text: %s", clip(f.Path))
		e.Hint = "Use encoding base64 or auto."
		return downloadFileOut{}, e
	default:
		data = buf.Bytes()
		out.Truncated = int64(in.Offset)+int64(len(data)) < f.Size
		out.Encoding, out.Content = "base64", base64.StdEncoding.EncodeToString(data)
	}
	if kind := imageType(data); whole && kind != "" && len(data) <= maxShown {
		out.images = []sandbox.Image{{MIME: kind, Data: data}}
	}
	return out, nil
})

// wholeRunes cuts a character that the end of data splits.
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
	ContextID string `json:"context_id,omitempty" jsonschema:"context to read from, by id or unique name; or pass session_id"`
	SessionID string `json:"session_id,omitempty" jsonschema:"session to read from"`
	Path      string `json:"path" jsonschema:"file to read, absolute or below the home directory" min:"1" max:"4096"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"utf-8 or base64; auto is utf-8 for text and base64 for anything else" enum:"auto,utf-8,base64" default:"auto"`
	MaxBytes  int    `json:"max_bytes,omitempty" jsonschema:"the most bytes to read" min:"1" max:"16777216" default:"1048576"`
	Offset    int    `json:"offset,omitempty" jsonschema:"byte to begin at" min:"0" default:"0"`
}

type downloadFileOut struct {
	Path      string   `json:"path" jsonschema:"absolute path in the sandbox"`
	Size      int64    `json:"size" jsonschema:"bytes of the whole file"`
	Encoding  string   `json:"encoding" jsonschema:"how content is encoded: utf-8 or base64"`
	Content   string   `json:"content" jsonschema:"the content, or its beginning"`
	Truncated bool     `json:"truncated" jsonschema:"whether the file goes on after the content"`
	Notes     []string `json:"notes,omitempty" jsonschema:"what else there is to know"`

	images []sandbox.Image
}

func (o downloadFileOut) present() presentation { return presentation{asJSON: true, images: o.images} }
