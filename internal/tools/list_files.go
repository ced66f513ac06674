package tools

import (
	"context"
	"time"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

var listFiles = define(info{
	name:        "list_files",
	title:       "List files",
	description: "List a directory in the sandbox of a context or session, the home directory if no path is given; depth lists below it too. At most 1000 entries.",
	set:         Files, family: fileErrors, readOnly: true, idempotent: true,
}, func(ctx context.Context, c *Call, in listFilesIn) (listFilesOut, error) {
	s, notes, done, err := c.reader(ctx, in.ContextID, in.SessionID)
	if err != nil {
		return listFilesOut{}, err
	}
	defer done()
	if in.Path == "" {
		in.Path = "."
	}
	res, err := s.List(ctx, sandbox.ListRequest{Path: in.Path, Depth: in.Depth})
	if err != nil {
		return listFilesOut{}, err
	}
	out := listFilesOut{Entries: []fileItem{}, Truncated: res.Truncated}
	out.Notes = notes
	for _, f := range res.Entries {
		out.Entries = append(out.Entries, fileItem{
			Name: f.Name, Path: f.Path, Type: f.Type, Size: f.Size, Mode: octal(f.Mode),
			Modified: clock(time.Unix(0, f.Modified)), Target: f.Target,
		})
	}
	return out, nil
})

type listFilesIn struct {
	ContextID string `json:"context_id,omitempty" jsonschema:"context to look into, by id or unique name; or pass session_id"`
	SessionID string `json:"session_id,omitempty" jsonschema:"session to look into"`
	Path      string `json:"path,omitempty" jsonschema:"directory to list, absolute or below the home directory" max:"4096"`
	Depth     int    `json:"depth,omitempty" jsonschema:"how many levels to list" min:"1" max:"16" default:"1"`
}

type listFilesOut struct {
	Entries   []fileItem `json:"entries" jsonschema:"what is there, by path"`
	Truncated bool       `json:"truncated,omitempty" jsonschema:"whether there is more"`
	Notes     []string   `json:"notes,omitempty" jsonschema:"what else there is to know"`
}

type fileItem struct {
	Name     string `json:"name" jsonschema:"last part of the path"`
	Path     string `json:"path" jsonschema:"absolute path in the sandbox"`
	Type     string `json:"type" jsonschema:"file, directory, symlink or other"`
	Size     int64  `json:"size" jsonschema:"bytes"`
	Mode     string `json:"mode" jsonschema:"permission bits in octal"`
	Modified string `json:"modified" jsonschema:"when it was last changed, UTC"`
	Target   string `json:"target,omitempty" jsonschema:"where a symbolic link points"`
}
