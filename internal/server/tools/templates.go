package tools

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// Descriptions of the argument template.
const (
	newFromTemplate     = "named template of a new session"
	contextFromTemplate = "named template to start from"
)

// maxTemplateText bounds the description of one template in those of the tools, in bytes.
const maxTemplateText = 120

// A Template is a named template of an owner.
type Template struct {
	Name        string
	Language    string
	Description string // of its author; may be empty
}

// text describes the template in one line.
func (t Template) text() string {
	text := t.Name + " (" + t.Language
	if about := strings.TrimSpace(visible.Line(t.Description)); about != "" {
		text += ": " + truncate.Bytes(about, maxTemplateText)
	}
	return text + ")"
}

// WithTemplates returns the definition of a tool for an owner who has named templates, or def
// itself if it has no argument for one. list is not empty. def is not modified.
func WithTemplates(def *mcp.Tool, list []Template) *mcp.Tool {
	schema, ok := def.InputSchema.(json.RawMessage)
	if !ok {
		return def
	}
	var texts []string
	for _, t := range list {
		texts = append(texts, t.text())
	}
	for _, argument := range []string{newFromTemplate, contextFromTemplate} {
		before, after := quoted(argument), quoted(argument+": "+listed(texts))
		if !bytes.Contains(schema, before) {
			continue
		}
		described := *def
		described.InputSchema = json.RawMessage(bytes.Replace(schema, before, after, 1))
		return &described
	}
	return def
}

// quoted returns a text as JSON.
func quoted(text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string
	}
	return b
}
