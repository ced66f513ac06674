package approval

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestBoundLate: a result that waits for a late client has at most 1 MiB, structured content and
// texts together. Beyond that it loses its images, and then an error replaces it.
func TestBoundLate(t *testing.T) {
	result := func(structured, text, image int) *mcp.CallToolResult {
		return &mcp.CallToolResult{StructuredContent: json.RawMessage(strings.Repeat(" ", structured)), Content: []mcp.Content{
			&mcp.TextContent{Text: strings.Repeat("x", text)}, &mcp.ImageContent{Data: make([]byte, image)}}}
	}
	const half = maxLateResult / 2
	for _, c := range []struct {
		structured, text, image int
		images, failed          bool
	}{
		{half, half - 1, 1, true, false},
		{half, half, 0, true, false},
		{half, half, 1, false, false},
		{half, half - 1, 2, false, false},
		{half, half + 1, 0, false, true},
		{half + 1, half, 0, false, true},
	} {
		got := boundLate(result(c.structured, c.text, c.image))
		images := 0
		for _, part := range got.Content {
			if _, ok := part.(*mcp.ImageContent); ok {
				images++
			}
		}
		if got.IsError != c.failed || (images > 0) != c.images || (got.StructuredContent == nil) != c.failed {
			t.Errorf("%+v: an error %t, %d images", c, got.IsError, images)
		}
	}
}
