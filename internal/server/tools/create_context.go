package tools

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var createContext = define(info{
	name:  "create_context",
	title: "Create a context",
	description: "Make a new isolated context for run_code: an interpreter of its own in a sandbox of its own. " +
		"Use one for each task; nothing is shared between contexts. A unique name can be used in place of the context_id.",
	set: Contexts, family: createErrors,
}, func(ctx context.Context, c *Call, in createContextIn) (createContextOut, error) {
	interpreter, template, err := templateOf(in.Language, in.Template)
	if err != nil {
		return createContextOut{}, err
	}
	b, err := c.Boxes.CreateContext(ctx, c.Owner, box.ContextOptions{
		Name: in.Name, Language: string(interpreter), Template: template, Description: in.Description, Flavor: box.Flavor(in.Flavor), Network: in.Network,
	})
	if err != nil {
		return createContextOut{}, err
	}
	info := b.Info()
	language := "Python"
	if info.Language == box.JavaScript {
		language = "JavaScript"
	}
	return createContextOut{
		ContextID: info.ID, Name: info.Name, Language: info.Language, Description: info.Description,
		Flavor: string(info.Flavor), CreatedAt: formatTime(info.Created), Status: "active",
		Message: language + " context created successfully" + notCopied(b) + spaced(networkNote(b)), source: string(info.Source),
	}, nil
})

type createContextIn struct {
	Name        string   `json:"name" jsonschema:"what the context is for, such as data-analysis; letters, digits, space, dot, hyphen and underscore"`
	Language    string   `json:"language,omitempty" jsonschema:"language of the interpreter" oneof:"python,javascript" default:"python"`
	Template    string   `json:"template,omitempty" jsonschema:"named template to start from"`
	Flavor      string   `json:"flavor,omitempty" jsonschema:"size: 1, 2 or 4 CPUs and 1, 2 or 4 GB" oneof:"small,medium,large" default:"small"`
	Network     []string `json:"network,omitempty" jsonschema:"hosts and presets that the context may reach, of those in the description of run_code; [] none" online:"true"`
	Description string   `json:"description,omitempty" jsonschema:"a note that lists of contexts show" max:"4096"`
}

type createContextOut struct {
	ContextID   string `json:"context_id" jsonschema:"id of the context, for run_code"`
	Name        string `json:"name" jsonschema:"its name"`
	Language    string `json:"language" jsonschema:"python or javascript"`
	Flavor      string `json:"flavor" jsonschema:"small, medium or large"`
	Description string `json:"description" jsonschema:"the note"`
	CreatedAt   string `json:"created_at" jsonschema:"when it was made, UTC"`
	Status      string `json:"status" jsonschema:"active"`
	Message     string `json:"message" jsonschema:"what happened, for people"`

	source string
}

func (o createContextOut) present() presentation {
	return presentation{asJSON: true, meta: mcp.Meta{metaSource: o.source}}
}
