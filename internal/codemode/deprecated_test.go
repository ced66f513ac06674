package codemode

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

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

// deprecation is what saysDeprecated looks for, as a regular expression, which is too slow for it.
var deprecation = regexp.MustCompile(`^[^\pL\pN]*deprecated\b|[.!?\n)]\s*[^\pL\pN]*deprecated(?:\s*[^\pL\pN\s]|\s*$|\s+use\b)`)

// TestSaysDeprecated_AnyText compares the answer with that of the expression.
func TestSaysDeprecated_AnyText(t *testing.T) {
	parts := []string{"deprecated", "deprecated", "deprecated", " ", " ", "\n", ".", "(", ")", "*", "_", "use", "y", "7", "ä", "\u00a0", "\v", "‽", "\ufffd", "²"}
	random := rand.New(rand.NewPCG(1, 2))
	said := 0
	for range 200_000 {
		var text strings.Builder
		for range random.IntN(9) {
			text.WriteString(parts[random.IntN(len(parts))])
		}
		want := deprecation.MatchString(text.String())
		if got := saysDeprecated(text.String()); got != want {
			t.Fatalf("%q: got %t, want %t", text.String(), got, want)
		}
		if want {
			said++
		}
	}
	if said < 10_000 {
		t.Errorf("%d texts say it", said)
	}
}

// TestSearch_HostileDescriptions: descriptions that repeat the word are searched in linear time.
func TestSearch_HostileDescriptions(t *testing.T) {
	took := func(text string, size int) time.Duration {
		text = strings.Repeat(text, size/len(text))
		least := time.Hour // the machine may be busy
		for range 20 {
			begun := time.Now()
			for range 30 {
				isDeprecated(Tool{Tool: &mcp.Tool{Description: text}})
			}
			least = min(least, time.Since(begun))
		}
		return least
	}
	for _, text := range []string{"a deprecated ", "deprecated", "a.deprecated items ", "a. * deprecated       x", "a deprecated.use"} {
		// In quadratic time, eight times as much takes 64 times as long.
		if long, short := took(text, maxSearched), took(text, maxSearched/8); long > 24*short {
			t.Errorf("%q: %v, and %v for an eighth", text, long, short)
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
