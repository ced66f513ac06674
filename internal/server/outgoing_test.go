package server

import (
	"strings"
	"testing"
)

func TestOutgoing(t *testing.T) {
	for _, c := range []struct {
		in     string
		answer bool
		out    string // "" for the same
	}{
		{in: `{"jsonrpc":"2.0","id":1,"result":{}}`, answer: true},
		{in: "event: message\nid: A_1\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a,b\",\"result\":{\"method\":1}}\n\n", answer: true},
		{in: `data: {"jsonrpc":"2.0","id":1,"method":"roots/list","params":{"result":1}}`},
		{in: `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"id":1,"error":{"code":0,"message":""}}}`},
		{in: `{"jsonrpc":"2.0","id":1,"result":{"error":{"code":0,"message":""}}}`, answer: true},
		{in: "event: prime\nid: A_0\ndata: \n\n"},
		{in: ``}, {in: `{"jsonrpc":"2.0","id":`}, {in: `{"jsonrpc":"2.0","id":1,`},
		{`data: {"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"x"}}`, true, `data: {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"x"}}`},
		{in: `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"x","data":{"error":{"code":0,"a":1}}}}`, answer: true},
		// Behind an id that long nobody looks.
		{in: `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", maxHead) + `","result":{}}`},
		{in: `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", maxHead) + `","error":{"code":0,"message":"x"}}`},
	} {
		if got := isAnswer([]byte(c.in)); got != c.answer {
			t.Errorf("%s: an answer: %v", c.in, got)
		}
		want := c.out
		if want == "" {
			want = c.in
		}
		if got := string(withCode([]byte(c.in))); got != want {
			t.Errorf("%s: got %s", c.in, got)
		}
	}
}
