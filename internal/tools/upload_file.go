package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

var uploadFile = define(info{
	name:  "upload_file",
	title: "Upload a file",
	description: "Write a file into the sandbox of a context or session, making missing directories. Content is text, or base64 for anything else; " +
		"at most 23 MB in one call: move more in parts and join them with execute_command. Relative paths are below the home directory.",
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
		return uploadFileOut{}, &sandbox.Error{
			Code: sandbox.CodeFileTooLarge, Op: "write file",
			Msg:  fmt.Sprintf("File too large: %d bytes, the limit of one call is %d", len(data), maxUpload),
			Hint: "Upload it in parts and join them in the sandbox with: cat part1 part2 > file",
		}
	}
	mode, err := strconv.ParseUint(strings.TrimPrefix(in.Mode, "0o"), 8, 32)
	if err != nil || mode == 0 || mode > 0o777 {
		return uploadFileOut{}, invalid("mode", "Parameter 'mode' must be permission bits in octal such as 0644, got %q", clip(in.Mode))
	}
	s, acq, err := c.box(ctx, in.ContextID, in.SessionID, true)
	if err != nil {
		return uploadFileOut{}, err
	}
	defer acq.Release()
	f, err := s.WriteFile(ctx, sandbox.WriteRequest{
		Path: in.Path, Mode: uint32(mode), Exclusive: !in.Overwrite, Parents: true,
	}, bytes.NewReader(data))
	if err != nil {
		return uploadFileOut{}, err
	}
	out := uploadFileOut{Path: f.Path, Size: f.Size, SHA256: f.SHA256, SessionCreated: in.SessionID != "" && acq.Created}
	_, out.Notes = lostState(acq, "box")
	return out, nil
})

// decodeBase64 accepts what encoders make of it: line breaks, no padding, the
// alphabet for URLs.
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
	ContextID string `json:"context_id,omitempty" jsonschema:"context to write into, by id or unique name; or pass session_id"`
	SessionID string `json:"session_id,omitempty" jsonschema:"session to write into; an unknown id makes a new session of that id"`
	Path      string `json:"path" jsonschema:"where to write, absolute or below the home directory" min:"1" max:"4096"`
	Content   string `json:"content" jsonschema:"the content, encoded as encoding says"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"how content is encoded" enum:"utf-8,base64" default:"utf-8"`
	Mode      string `json:"mode,omitempty" jsonschema:"permission bits in octal" default:"0644"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"whether to replace a file that is there" default:"true"`
}

type uploadFileOut struct {
	Path           string   `json:"path" jsonschema:"absolute path in the sandbox"`
	Size           int64    `json:"size" jsonschema:"bytes written"`
	SHA256         string   `json:"sha256" jsonschema:"hash of the content, hexadecimal"`
	SessionCreated bool     `json:"session_created,omitempty" jsonschema:"whether this call made the session"`
	Notes          []string `json:"notes,omitempty" jsonschema:"what else there is to know"`
}
