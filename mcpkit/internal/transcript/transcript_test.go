package transcript

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
)

func TestAddSecret_MasksLaterLines(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, "srv", nil)
	for i := range 2 * maxAdded {
		token := fmt.Sprintf("token-%d-end", i)
		w.AddSecret(token)
		w.AddSecret("")
		w.Message(stream.Noise, []byte("the token is "+token))
	}
	if bytes.Contains(b.Bytes(), []byte("-end")) || bytes.Count(b.Bytes(), []byte("the token is ••••")) != 2*maxAdded {
		t.Errorf("some tokens are not masked:\n%.500s", b.Bytes())
	}
	if len(w.added) != maxAdded {
		t.Errorf("the writer keeps %d secrets, want %d", len(w.added), maxAdded)
	}
}

// FuzzWriter checks that every line is valid JSON, whatever the message and the secret.
func FuzzWriter(f *testing.F) {
	f.Add(`{"a":"b\"c","token":"x","n":[1,"y",{}]}`, "b")
	f.Fuzz(func(t *testing.T, text, secret string) {
		var b bytes.Buffer
		NewWriter(&b, text, []string{secret}).Message(stream.Received, []byte(text))
		for l := range strings.Lines(b.String()) {
			if !json.Valid([]byte(l)) {
				t.Fatalf("%q with secret %q became %q", text, secret, l)
			}
		}
	})
}
