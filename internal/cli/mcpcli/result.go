package mcpcli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"os"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// json writes v as JSON, with characters escaped that could control a terminal.
func (a *app) json(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	if err == nil {
		_, err = a.Out.Write(visible.JSON(b.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// result shows the result of a call. Files are saved in the directory save, with names
// from name, or noted.
func (a *app) result(res *mcp.CallToolResult, name, save string) error {
	files := &files{a: a, dir: save, name: fileName(name)}
	if a.flags.output == "json" {
		if save != "" {
			for _, c := range res.Content {
				if err := files.content(c, true); err != nil {
					return err
				}
			}
		}
		return a.json(res)
	}
	shown := false
	if content := largeContent(res); content != "" {
		a.text(content)
	}
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			shown = true
			a.text(text.Text)
			continue
		}
		shown = true
		if err := files.content(c, false); err != nil {
			return err
		}
	}
	if !shown && res.StructuredContent != nil {
		return a.json(res.StructuredContent)
	}
	return nil
}

// largeContent returns the member content of the structured content, if the text has only a
// note in its place: servers do not repeat a large file as text.
func largeContent(res *mcp.CallToolResult) string {
	const (
		large = 64 << 10
		note  = 8 << 10
	)
	structured, _ := res.StructuredContent.(map[string]any)
	content, _ := structured["content"].(string)
	if len(content) < large {
		return ""
	}
	size := 0
	for _, c := range res.Content {
		text, ok := c.(*mcp.TextContent)
		if !ok {
			if _, link := c.(*mcp.ResourceLink); !link {
				return ""
			}
			continue
		}
		size += len(text.Text)
	}
	if size > note {
		return ""
	}
	return content
}

// text writes text; at a terminal, with control and hidden characters escaped.
func (a *app) text(s string) {
	if isTerminal(a.Out) {
		s = visible.Text(s)
	}
	fmt.Fprint(a.Out, s)
	if !strings.HasSuffix(s, "\n") {
		fmt.Fprintln(a.Out)
	}
}

// maxFiles bounds the files that one result saves.
const maxFiles = 100

// files saves binary contents.
type files struct {
	a     *app
	dir   string // "" saves nothing
	name  string
	saved int
}

func (f *files) content(c mcp.Content, quiet bool) error {
	switch c := c.(type) {
	case *mcp.ImageContent:
		return f.put("image", c.MIMEType, c.Data)
	case *mcp.AudioContent:
		return f.put("audio", c.MIMEType, c.Data)
	case *mcp.EmbeddedResource:
		if c.Resource != nil && c.Resource.Blob != nil {
			return f.put("file "+c.Resource.URI, c.Resource.MIMEType, c.Resource.Blob)
		}
		if c.Resource != nil && !quiet {
			f.a.text(c.Resource.Text)
		}
	case *mcp.ResourceLink:
		if !quiet {
			f.a.text(c.URI)
		}
	}
	return nil
}

func (f *files) put(what, kind string, data []byte) error {
	if f.dir == "" {
		f.a.note("glovebox: note: %s of type %s, %s; --save DIR saves it", what, kind, plural.N(len(data), "byte"))
		return nil
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for f.saved++; f.saved <= maxFiles; f.saved++ {
		name := fmt.Sprintf("%s-%d%s", f.name, f.saved, extension(kind))
		out, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = out.Write(data)
		if err := errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("save %s: %w", what, err)
		}
		f.a.note("glovebox: saved %s/%s", f.dir, name)
		return nil
	}
	return fmt.Errorf("save %s: %d files with this name exist in %s", what, maxFiles, f.dir)
}

// extension returns the file name extension of a MIME type, independent of this
// machine's tables.
func extension(kind string) string {
	kind, _, _ = mime.ParseMediaType(kind)
	known := map[string]string{
		"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg",
		"audio/wav": ".wav", "audio/mpeg": ".mp3", "audio/ogg": ".ogg", "application/pdf": ".pdf", "text/plain": ".txt",
		"application/json": ".json",
	}
	if ext, ok := known[kind]; ok {
		return ext
	}
	return ".bin"
}

// fileName makes a file name from untrusted text.
func fileName(name string) string {
	const most = 80
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, name)
	return strings.TrimLeft(name[:min(len(name), most)], "-")
}
