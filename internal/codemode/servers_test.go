package codemode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// The code of a failed call tells whether the tool can have run.
func TestFailedCall_codes(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want Code
		text string
	}{
		"never sent":             {t.Context(), fmt.Errorf("connect: %w", mcpkit.ErrNotSent), Unavailable, "connect: the request was not sent; the tool was not called"},
		"the connection breaks":  {t.Context(), fmt.Errorf("call: %w", io.EOF), Interrupted, "the connection to the server ended before the answer, and the tool may have run: call: EOF"},
		"the run ends":           {ended, fmt.Errorf("call: %w", io.EOF), Interrupted, "the call ended with its run; whether the tool ran is unknown"},
		"the run ends before":    {ended, fmt.Errorf("connect: %w", mcpkit.ErrNotSent), Interrupted, "the call ended with its run; the tool was not called"},
		"an error as the answer": {t.Context(), &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "broken"}, Unavailable, "broken; whether the tool ran is unknown"},
		"a large answer":         {t.Context(), &outbound.TooLargeError{Server: "s", Limit: 16 << 20}, TooLarge, "the tool ran, and its result is larger than 16 MiB and lost: ask for less, or for a page at a time"},
		"of an odd limit":        {t.Context(), fmt.Errorf("call: %w", &outbound.TooLargeError{Server: "s", Limit: 5}), TooLarge, "the tool ran, and its result is larger than 5 bytes and lost: ask for less, or for a page at a time"},
		"many values":            {t.Context(), fmt.Errorf("call: %w: more than 9", mcpkit.ErrTooManyValues), TooLarge, "the tool ran, and its result has too many JSON values (more than 9) and is lost: ask for less, or for a page at a time"},
		"a question":             {t.Context(), &gateway.UnavailableError{Reason: gateway.ReasonAsks, Text: "asks"}, NeedsInput, "asks"},
		"no memory":              {t.Context(), fmt.Errorf("call: %w", &Error{Code: TooLarge, Message: "dropped"}), TooLarge, "dropped"},
		"no answer in time":      {t.Context(), fmt.Errorf("call: %w", context.DeadlineExceeded), Timeout, "call: context deadline exceeded; whether the tool ran is unknown"},
	} {
		got := asError(c.ctx, failedCall(c.ctx, c.err))
		if got.Code != c.want || got.Message != c.text {
			t.Errorf("%s: got %s %q, want %s %q", name, got.Code, got.Message, c.want, c.text)
		}
	}
	if e := failedCall(t.Context(), io.EOF); !errors.As(e, new(*Error)) {
		t.Errorf("got %v", e)
	}
}

// TestUnavailable_identifier checks that the error for a left-out tool gives the reason, also
// by the identifier that programs write.
func TestUnavailable_identifier(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "tasks")
	r := w.Begin(Identity{})
	for _, name := range []string{"tasks.json-text", "tasks.json_text"} {
		if _, failure := w.call(t, r, name, "{}"); failure == nil || failure.Code != Unavailable || !strings.Contains(failure.Message, "it only runs as a task, which code cannot start. Use another tool.") {
			t.Errorf("%s: got %+v", name, failure)
		}
	}
	if _, failure := w.call(t, r, "tasks.json_tex", "{}"); failure == nil || failure.Code != UnknownTool {
		t.Errorf("got %+v", failure)
	}
}
