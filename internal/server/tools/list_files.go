package tools

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

var listFiles = define(info{
	name:        "list_files",
	title:       "List files",
	description: "List a directory in the sandbox of a session, the home directory if no path is given; depth lists below it too.",
	set:         Files, family: fileErrors, readOnly: true, idempotent: true,
}, func(ctx context.Context, c *Call, in listFilesIn) (listFilesOut, error) {
	r, err := c.openFiles(ctx, in.SessionID)
	if err != nil {
		return listFilesOut{}, err
	}
	defer r.close()
	if in.Path == "" {
		in.Path = "."
	}
	res, err := r.List(ctx, box.ListRequest{Path: expandHome(in.Path), Depth: in.Depth, Max: in.MaxEntries})
	if err != nil {
		return listFilesOut{}, explainPath(listPath, err)
	}
	out := listFilesOut{Entries: []fileItem{}, Truncated: res.Truncated, Notes: r.notes, of: r.of}
	if out.Truncated {
		out.Notes = append(out.Notes, fmt.Sprintf("There are more than these %d entries: list a directory below, raise max_entries (to 1000), or use find in execute_command.", len(res.Entries)))
	}
	for _, f := range res.Entries {
		out.Entries = append(out.Entries, fileItem{
			Name: f.Name, Path: f.Path, Type: f.Type, Size: f.Size, Mode: octal(f.Mode),
			Modified: formatTime(time.Unix(0, f.Modified)), Target: f.Target,
		})
	}
	return out, nil
})

type listFilesIn struct {
	SessionID  string `json:"session_id" jsonschema:"session to look into" min:"1" alias:"context_id"`
	Path       string `json:"path,omitempty" jsonschema:"directory to list" max:"4096"`
	Depth      int    `json:"depth,omitempty" jsonschema:"levels to list" min:"1" max:"16" default:"1"`
	MaxEntries int    `json:"max_entries,omitempty" jsonschema:"the most entries to list" min:"1" max:"1000" default:"100"`
}

type listFilesOut struct {
	Entries   []fileItem `json:"entries" jsonschema:"what is there, by path"`
	Truncated bool       `json:"truncated,omitempty" jsonschema:"whether there is more"`
	Notes     []string   `json:"notes,omitempty" jsonschema:"what else there is to know"`

	of boxRef
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

// present writes a line for each entry, like ls: a listing as JSON takes a model
// five times as many tokens.
func (o listFilesOut) present() presentation {
	var text strings.Builder
	for _, f := range o.Entries {
		text.WriteString(quoteName(f.Path))
		switch f.Type {
		case "directory":
			text.WriteString("/")
		case "symlink":
			text.WriteString(" -> " + quoteName(f.Target))
		case "file":
			text.WriteString("  " + plural.N(f.Size, "byte"))
		default:
			text.WriteString("  " + quoteName(f.Type))
		}
		fmt.Fprintf(&text, "  %s\n", f.Modified)
	}
	p := presentation{text: text.String(), notes: o.Notes}
	switch n := len(o.Entries); {
	case n == 0:
		p.status.add("empty directory")
	case o.Truncated:
		p.status.add("the first %d entries", n)
	case n == 1:
		p.status.add("1 entry")
	default:
		p.status.add("%d entries", n)
	}
	p.status.addBox(o.of, false)
	return p
}
