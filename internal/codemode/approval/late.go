package approval

import (
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/plural"
)

// maxLateResult bounds a result that waits for a client that is late: the results of all
// runs that may wait take at most 100 MiB.
const maxLateResult = 1 << 20

// boundLate returns what a late client gets of a result: without its images if it is too
// large with them.
func boundLate(res *mcp.CallToolResult) *mcp.CallToolResult {
	if res == nil {
		return nil
	}
	structured, _ := res.StructuredContent.(json.RawMessage)
	rest, dropped := len(structured), 0
	late := *res
	late.Content = nil
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			rest += len(c.Text)
			late.Content = append(late.Content, c)
		case *mcp.ImageContent:
			dropped += len(c.Data)
		default:
			late.Content = append(late.Content, c) // a link
		}
	}
	switch {
	case rest+dropped <= maxLateResult:
		return res
	case rest > maxLateResult:
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(
			"The program has ended. Its result of %s was dropped, because the client came back late and such a result may have %d. Files in the box are kept.", plural.N(rest+dropped, "byte"), maxLateResult)}}}
	}
	late.Content = append(late.Content, &mcp.TextContent{Text: fmt.Sprintf(
		"The images of the result, %s, were dropped, because the client came back late and such a result may have %d. Files in the box are kept.", plural.N(dropped, "byte"), maxLateResult)})
	return &late
}
