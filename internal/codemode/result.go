package codemode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// resultValue returns the value of a result for a program: the structured content, else the only
// content, else a list of them. A text that is a JSON object or array is parsed; a text
// like 1.10 stays text. The images go to the result of the run.
func resultValue(res *mcp.CallToolResult) (value any, images []image, err error) {
	if len(res.InputRequests) > 0 {
		return nil, nil, &Error{Code: NeedsInput, Message: "the tool asks its user for input, which a program cannot give: call it directly"}
	}
	var values []any
	for _, c := range res.Content {
		v, img := content(c)
		if img != nil {
			images = append(images, *img)
		}
		values = append(values, v)
	}
	if res.IsError {
		return nil, nil, &Error{Code: ToolFailed, Message: failureText(res.Content)}
	}
	switch {
	case res.StructuredContent != nil:
		return res.StructuredContent, images, nil
	case len(values) == 0:
		return nil, images, nil
	case len(values) == 1:
		return values[0], images, nil
	}
	return values, images, nil
}

// imageTypes are the images that a run's result may have. A server may declare text to be
// an image of another type, and it would reach the model unseen by the program.
var imageTypes = []string{"image/png", "image/jpeg", "image/webp", "image/gif"}

// content returns the value of one content of a result.
func content(c mcp.Content) (value any, img *image) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return parsed(c.Text), nil
	case *mcp.ImageContent:
		handle := map[string]any{"type": "image", "mime_type": c.MIMEType, "bytes": len(c.Data)}
		if !slices.Contains(imageTypes, c.MIMEType) {
			handle["shown"] = false
			return handle, nil
		}
		return handle, &image{mime: c.MIMEType, data: c.Data}
	case *mcp.ResourceLink:
		return map[string]any{"type": "resource_link", "uri": c.URI, "name": c.Name, "mime_type": c.MIMEType}, nil
	case *mcp.EmbeddedResource:
		if c.Resource == nil {
			return nil, nil
		}
		r := map[string]any{"type": "resource", "uri": c.Resource.URI, "mime_type": c.Resource.MIMEType}
		if c.Resource.Blob != nil {
			r["blob"] = c.Resource.Blob
		} else {
			r["text"] = c.Resource.Text
		}
		return r, nil
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, nil
	}
	return json.RawMessage(b), nil
}

// parsed returns a text as JSON if it is an object or an array. The bytes stay as they
// are, so that large numbers keep their digits.
func parsed(text string) any {
	b := bytes.TrimSpace([]byte(text))
	if len(b) > 0 && (b[0] == '{' || b[0] == '[') && json.Valid(b) {
		return json.RawMessage(b)
	}
	return text
}

// failureText returns the text of a failed tool.
func failureText(all []mcp.Content) string {
	var b strings.Builder
	for _, c := range all {
		if t, ok := c.(*mcp.TextContent); ok && b.Len() <= maxMessage { // the rest is cut anyway
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(t.Text)
		}
	}
	if b.Len() == 0 {
		return "the tool failed and says nothing about it"
	}
	return b.String()
}

// encode returns a value as the program gets it.
func encode(value any) (json.RawMessage, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	const envelope = 64
	if len(b) > protocol.MaxCallResult-envelope {
		return nil, &Error{Code: TooLarge, Message: fmt.Sprintf("the tool ran, but its result of %d bytes is lost: it is larger than %d; ask for less, or for a page at a time", len(b), protocol.MaxCallResult-envelope)}
	}
	return b, nil
}

func sizeOfImages(images []image) (n int) {
	for _, img := range images {
		n += len(img.data)
	}
	return n
}
