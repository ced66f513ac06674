package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// noNetwork is the end of the first sentence of Instructions for boxes without a network.
const noNetwork = ", and has no network."

// maxListText bounds a list of hosts, secrets or templates in a description, in bytes: every
// conversation pays for it.
const maxListText = 300

// A Network is what the boxes of an owner can reach, in words for models.
type Network struct {
	// Allowed are the destinations; empty: there is no network.
	Allowed []string
	// Secrets say of each variable with the placeholder of a secret where it works, as in
	// "API_TOKEN (Authorization at https://api.example.com)".
	Secrets []string
}

// text describes the network; Allowed is not empty.
func (n Network) text() string {
	text := "Network: " + listed(n.Allowed) + "; everything else is refused."
	if len(n.Secrets) > 0 {
		text += " Variables with placeholders of secrets, each replaced only in this header at this host: " + listed(n.Secrets) + "."
	}
	return text
}

// listed joins the entries that fit in maxListText, at least one, and counts the others.
func listed(entries []string) string {
	var list []string
	size := 0
	for i, entry := range entries {
		if size += len(entry) + 2; size > maxListText && i > 0 {
			list = append(list, fmt.Sprintf("%d more", len(entries)-i))
			break
		}
		list = append(list, entry)
	}
	return strings.Join(list, ", ")
}

// networked has the tools by name, for the parts of their definitions that depend on the
// network.
var networked = sync.OnceValue(func() map[string]Tool {
	tools := make(map[string]Tool)
	for _, t := range catalogue() {
		tools[t.Def.Name] = t
	}
	return tools
})

// WithNetwork returns the definition of a tool for an owner whose boxes have a network, or def
// itself if nothing in it depends on the network. n.Allowed is not empty. def is not modified.
func WithNetwork(def *mcp.Tool, n Network) *mcp.Tool {
	tool, ok := networked()[def.Name]
	if !ok || tool.offline == "" && bytes.Equal(tool.online, tool.Def.InputSchema.(json.RawMessage)) {
		return def
	}
	online := *def
	online.InputSchema = tool.online
	if tool.offline == "" {
		return &online
	}
	online.Description = strings.Replace(def.Description, tool.offline, n.text(), 1)
	if def.Annotations != nil {
		annotations, open := *def.Annotations, true
		annotations.OpenWorldHint = &open
		online.Annotations = &annotations
	}
	return &online
}

// InstructionsWithNetwork is WithNetwork for the result of [Instructions].
func InstructionsWithNetwork(instructions string, n Network) string {
	return strings.Replace(instructions, noNetwork, ". "+n.text(), 1)
}

// A networkOut reports the refused connections of a box. It has the members refused and other,
// lists of refusalOut, and more, the number of destinations that the lists omit; a list that
// would be empty is absent. Its schema says no more than that it is an object: every
// conversation pays for the schemas of all tools.
type networkOut map[string]any

type refusalOut struct {
	Host  string `json:"host"`
	Port  int    `json:"port,omitempty"` // 0: only the name was looked up
	Rule  string `json:"rule,omitempty"` // "": no rule allowed it
	Why   string `json:"why"`
	Count int    `json:"count"`
}

// networkNote tells the model what a new box can reach that is narrower than the others of
// its owner; "" if it is not.
func networkNote(b *box.Box) string {
	if len(b.Info().Limits) == 0 {
		return ""
	}
	allowed := b.Reachable()
	if len(allowed) == 0 {
		return "This " + string(b.Info().Kind) + " has no network."
	}
	return Network{Allowed: allowed}.text()
}

// withNotes returns the notes about the box of a call, and those about its result. A note
// about the box that one about the result repeats is left out, such as that of networkNote
// where the program failed because there is no network.
func withNotes(ofBox, ofResult []string) []string {
	var notes []string
	for _, note := range ofBox {
		repeated := func(other string) bool {
			return strings.Contains(strings.ToLower(other), strings.ToLower(strings.TrimSuffix(note, ".")))
		}
		if !slices.ContainsFunc(ofResult, repeated) {
			notes = append(notes, note)
		}
	}
	return append(notes, ofResult...)
}

// spaced returns a note that follows a text without a period at its end.
func spaced(note string) string {
	if note == "" {
		return ""
	}
	return " (" + strings.TrimSuffix(note, ".") + ")"
}

// newNetworkOut returns nil if no connection was refused.
func newNetworkOut(refused []box.Refusal, more int) networkOut {
	if len(refused) == 0 {
		return nil
	}
	lists := make(map[string][]refusalOut)
	for _, r := range refused {
		name := "refused"
		if r.Other {
			name = "other"
		}
		lists[name] = append(lists[name], refusalOut{Host: r.Host, Port: r.Port, Rule: r.Rule, Why: r.Why, Count: r.Count})
	}
	out := networkOut{}
	for name, list := range lists {
		out[name] = list
	}
	if more > 0 {
		out["more"] = more
	}
	return out
}
