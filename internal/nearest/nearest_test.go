package nearest

import (
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	for _, test := range []struct{ word, names, want string }{
		{"serv", "serve stdio run", "serve"},
		{"stdoi", "serve stdio run", "stdio"},
		{"http_headers", "httpHeaders headers", "httpHeaders"},
		{"enviroment", "environment env", "environment"},
		{"list_context", "list_contexts create_context", "list_contexts"},
		{"headers", "httpHeaders url", ""}, {"context", "context_id code", "context_id"}, {"new_name", "name description", "name"},
		{"GLOVEBOX_SESION_TIMEOUT", "GLOVEBOX_CONTEXT_TIMEOUT MSB_SESSION_TIMEOUT GLOVEBOX_SESSION_TIMEOUT", "GLOVEBOX_SESSION_TIMEOUT"},
		// Short words: a swap, or one letter if the first is right.
		{"rnu", "run serve", "run"},
		{"sl", "ls rm", "ls"},
		{"lss", "ls rm", "ls"},
		{"rn", "run serve", "run"},
		{"rum", "run serve", "run"},
		{"mpc", "mcp run", "mcp"},
		{"ne", "new ls rm", "new"},
		// Words that are not similar are not suggested.
		{"frobnicate", "serve stdio run", ""},
		{"b", "a", ""},
		{"b", "a c", ""},
		{"ab", "ac", ""},
		{"A", "a", "a"},
		{"run", "ls", ""},
		{"rm", "ls run", ""},
		{"rn", "run ran", ""},
		{"ksh", "bash zsh", ""},
		{"box3", "box1 box2", ""},
		{"", "a", ""},
		{"---", "a", ""},
		{strings.Repeat("a", maxWord+1), strings.Repeat("a", maxWord+1), ""},
	} {
		if got := Of(test.word, strings.Fields(test.names)); got != test.want {
			t.Errorf("Of(%q, %q): got %q, want %q", test.word, test.names, got, test.want)
		}
	}
}
