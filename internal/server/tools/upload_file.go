package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

var uploadFile = define(info{
	name:  "upload_file",
	title: "Upload a file",
	description: "Write a file into the sandbox of a session, making missing directories: text as it is, anything else as base64, at most 23 MB in a call. " +
		"Relative paths are below the home directory, /home/user. Without session_id a new session is made.",
	set: Files, family: fileErrors, destructive: true, idempotent: true,
}, func(ctx context.Context, c *Call, in uploadFileIn) (uploadFileOut, error) {
	data := []byte(in.Content)
	if in.Encoding == "base64" {
		var err error
		if data, err = decodeBase64(in.Content); err != nil {
			return uploadFileOut{}, invalid("content", "Parameter 'content' must be base64: %v", err)
		}
	}
	if len(data) > maxUpload {
		return uploadFileOut{}, &box.Error{
			Code: box.CodeFileTooLarge, Op: "write file",
			Msg:  fmt.Sprintf("File too large: %d bytes, the limit of one call is %d", len(data), maxUpload),
			Hint: "Upload it in parts and join them in the sandbox with: cat part1 part2 > file",
		}
	}
	mode, err := strconv.ParseUint(strings.TrimPrefix(in.Mode, "0o"), 8, 32)
	if err != nil || mode == 0 || mode > 0o777 {
		return uploadFileOut{}, invalid("mode", "Parameter 'mode' must be permission bits in octal such as 0644, got %q", clip(in.Mode))
	}
	b, err := c.open(ctx, openOptions{id: in.SessionID})
	if err != nil {
		return uploadFileOut{}, err
	}
	f, err := b.WriteFile(ctx, box.WriteRequest{
		Path: expandHome(in.Path), Mode: uint32(mode), Exclusive: !in.Overwrite, Parents: true,
	}, bytes.NewReader(data))
	if err != nil {
		c.stopUnnamed(ctx, b)
		return uploadFileOut{}, explainPath(writePath, err)
	}
	out := uploadFileOut{Path: f.Path, Size: f.Size, SessionID: b.ID(), SessionCreated: b.Created, box: b, sha256: f.SHA256}
	_, out.Notes = describeLoss(b.Hold, "session")
	out.Notes = append(b.notes, out.Notes...)
	return out, nil
})

// decodeBase64 accepts line breaks, missing padding and the URL alphabet.
func decodeBase64(s string) ([]byte, error) {
	s = strings.Map(func(r rune) rune {
		switch r {
		case ' ', '\t', '\r', '\n':
			return -1
		case '-':
			return '+'
		case '_':
			return '/'
		}
		return r
	}, s)
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
}

type uploadFileIn struct {
	Path      string `json:"path" jsonschema:"where to write" min:"1" max:"4096"`
	Content   string `json:"content" jsonschema:"the content, encoded as encoding says"`
	Encoding  string `json:"encoding,omitempty" enum:"utf-8,base64" default:"utf-8" jsonschema:"of content"`
	SessionID string `json:"session_id,omitempty" jsonschema:"session to write into" alias:"context_id"`
	Mode      string `json:"mode,omitempty" jsonschema:"permission bits in octal" default:"0644"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"whether to replace a file that is there" default:"true"`
}

type uploadFileOut struct {
	Path           string   `json:"path" jsonschema:"absolute path in the sandbox"`
	Size           int64    `json:"size" jsonschema:"bytes written"`
	SessionID      string   `json:"session_id" jsonschema:"session or context that the file is in"`
	SessionCreated bool     `json:"session_created,omitempty" jsonschema:"whether this call made the session"`
	Notes          []string `json:"notes,omitempty" jsonschema:"what else there is to know"`

	box    target
	sha256 string
}

func (o uploadFileOut) present() presentation {
	return presentation{
		text:   fmt.Sprintf("Wrote %s to %s", plural.N(o.Size, "byte"), quoteName(o.Path)),
		status: boxStatus(o.box, o.SessionCreated), notes: o.Notes,
		meta: mcp.Meta{metaSHA256: o.sha256},
	}
}
