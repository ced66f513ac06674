// Package plainjson encodes JSON without the escapes for HTML of package json, which a reader of
// the text would see.
package plainjson

import (
	"bytes"
	"encoding/json"
)

// Marshal returns v as JSON on one line, with <, > and & as they are. Its errors are those of
// [json.Marshal].
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
