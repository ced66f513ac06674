package envelope

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// FuzzScanner checks that the scanner takes a message for a response to the same request as
// the SDK does.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"x":[1,{"id":2}]}}`, `{"result":{"a":"}"},"id":"\u0031","jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","id":1,"id":2,"result":[]}`, `{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`,
		`{"jsonrpc":"2.0","ID":1,"result":0}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`, `[{"jsonrpc":"2.0","id":1}]`, `]}{`,
	} {
		f.Add([]byte(text), uint(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint) {
		var s Scanner
		n := int(cut % uint(len(b)+1))
		s.Add(b[:n])
		s.Add(b[n:])
		if len(s.envelope) > Max+1 {
			t.Fatalf("the envelope has %d bytes", len(s.envelope))
		}
		m, err := jsonrpc.DecodeMessage(b)
		if err != nil {
			return // the SDK decodes nothing
		}
		var want jsonrpc.ID
		if r, ok := m.(*jsonrpc.Response); ok {
			want = r.ID
		}
		if id, ok := s.Response(); ok && id != want || !ok && len(b) <= Max {
			t.Fatalf("got %v, %t from %q, want %v", id, ok, s.envelope, want)
		}
	})
}

// The request that a message answers is known as soon as its id has passed.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		begin string
		known bool
	}{
		{`{"jsonrpc":"2.0","id":7,"result":{"content":[{"text":"xxx`, true},
		{`{"jsonrpc":"2.0","id":7,"result":{"a":{"b":[1,2`, true},
		{`{"jsonrpc":"2.0","id":7,"result":["xx`, true},
		{`{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"xx`, true},
		{`{"jsonrpc":"2.0","result":{"x":"\"id\":7`, false},
		{`{"jsonrpc":"2.0","result":{"id":7,"x":"y`, false},
		{`{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":"`, false},
		{`{"jsonrpc":"2.0","id":7,"result":"xxx`, false},
		{`[{"jsonrpc":"2.0","id":7,"result":{"x":"`, false},
		{`xxxxxxxx`, false},
		{`{"` + strings.Repeat("x", 2*Max), false},
	} {
		var s Scanner
		s.Add([]byte(c.begin))
		id := s.Answers()
		if id.IsValid() != c.known || c.known && id.Raw() != int64(7) {
			t.Errorf("%.60s: got %v, want known %t", c.begin, id.Raw(), c.known)
		}
	}
}
