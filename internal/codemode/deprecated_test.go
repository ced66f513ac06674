package codemode

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestSearch_Deprecated: a deprecated tool comes after one that matches as well, before one that
// matches far less, and last in a search without words.
func TestSearch_Deprecated(t *testing.T) {
	titled := tool("s", "read_page", "Reads a page.", `{}`)
	titled.Title = "Read Page (Deprecated)"
	b := New(Options{Servers: catalogued{names: []string{"s"}, all: []Tool{
		tool("s", "read_file", "Read a file as text. DEPRECATED: Use read_text_file instead.", `{}`), titled,
		tool("s", "read_text_file", "Read a file as text.", `{}`), tool("s", "list", "Lists what one can read in a file.", `{}`),
	}}})
	for query, want := range map[string]string{
		"read a file": "s.read_text_file s.read_file s.read_page s.list",
		"":            "s.read_text_file s.list s.read_file s.read_page",
	} {
		found, _ := b.Search(t.Context(), query, 0, Python)
		if got := strings.Join(NamesOf(found), " "); got != want {
			t.Errorf("%q: got %s, want %s", query, got, want)
		}
	}
}

func TestIsDeprecated(t *testing.T) {
	for text, want := range map[string]bool{
		"Deprecated: use y.":               true,
		"[DEPRECATED] Reads.":              true,
		"**Deprecated** since 2.0":         true,
		"Reads. DEPRECATED: Use y.":        true,
		"Reads.\n\n(deprecated, use y)":    true,
		"Reads. Deprecated use y":          true,
		"Reads. Deprecated":                true,
		"Lists items. Deprecated items go": false,
		"Lists deprecated items.":          false,
		"Undeprecated: reads.":             false,
		"":                                 false,
	} {
		if got := isDeprecated(Tool{Tool: &mcp.Tool{Description: text}}); got != want {
			t.Errorf("%q: got %t", text, got)
		}
	}
	if !isDeprecated(Tool{Tool: &mcp.Tool{Annotations: &mcp.ToolAnnotations{Title: "Read (Deprecated)"}}}) {
		t.Error("the title of the annotations does not count")
	}
}
