package server

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestCheckArguments compares headers with the arguments that they repeat.
func TestCheckArguments(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"where":{"type":"object","properties":{"zone":{"type":"integer","x-mcp-header":"Zone"}}},
		"dry":{"type":"boolean","x-mcp-header":"Dry"},"free":{"type":"string"}}}`)
	headers := headersOf(schema)
	if len(headers) != 3 || len(headersOf(map[string]any{"type": "object"})) != 0 || len(headersOf(json.RawMessage(`{"x-mcp-header"`))) != 0 {
		t.Fatalf("got %v", headers)
	}
	for _, c := range []struct {
		name      string
		arguments string
		header    map[string]string
		ok        bool
	}{
		{"all", `{"region":"eu","where":{"zone":7},"dry":true}`, map[string]string{"Region": "eu", "Zone": "7", "Dry": "true"}, true},
		{"none", `{"free":"x"}`, nil, true},
		{"no arguments", ``, nil, true},
		{"null is none", `{"region":null}`, nil, true},
		{"header of none", `{}`, map[string]string{"Region": "eu"}, false},
		{"header is missing", `{"region":"eu"}`, nil, false},
		{"another text", `{"region":"eu"}`, map[string]string{"Region": "us"}, false},
		{"base64", `{"region":" ü"}`, map[string]string{"Region": "=?base64?IMO8?="}, true},
		{"bad base64", `{"region":" ü"}`, map[string]string{"Region": "=?base64?%%?="}, false},
		{"a number in other digits", `{"where":{"zone":7}}`, map[string]string{"Zone": "7.0"}, true},
		{"a fraction", `{"where":{"zone":7.5}}`, map[string]string{"Zone": "7.5"}, false},
		{"a number that is not exact", `{"where":{"zone":9007199254740993}}`, map[string]string{"Zone": "9007199254740993"}, false},
		{"an object", `{"region":{}}`, map[string]string{"Region": "{}"}, false},
		{"no object above", `{"where":5}`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := make(http.Header)
			for name, value := range c.header {
				h.Set(headerParam+name, value)
			}
			err := checkArguments(h, headers, json.RawMessage(c.arguments))
			if (err == nil) != c.ok || err != nil && err.Code != mcp.CodeHeaderMismatch {
				t.Errorf("got %v", err)
			}
		})
	}
}
