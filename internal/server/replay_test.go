package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestReplayIsBounded(t *testing.T) {
	p := newReplay(1000)
	ctx := t.Context()
	for _, id := range []string{"x", "y", "z"} {
		_ = p.Open(ctx, id, "")
	}
	for i := range 5000 {
		stream := fmt.Sprint("s", i/3)
		_ = p.Append(ctx, "x", stream, []byte(strings.Repeat("y", i%50)))
	}
	h := p.sessions["x"]
	if h.bytes > 1000 || len(h.events) > maxReplayEvents || len(h.next) > 2*maxReplayEvents {
		t.Errorf("kept %d bytes, %d events, %d streams", h.bytes, len(h.events), len(h.next))
	}
	if n, err := collectOf(p, ctx, "x", "s1666", -1); n != 2 || err != nil {
		t.Errorf("the newest stream: %d events, %v", n, err)
	}
	for _, stream := range []string{"s0", "never"} {
		if _, err := collectOf(p, ctx, "x", stream, 0); !errors.Is(err, mcp.ErrEventsPurged) {
			t.Errorf("stream %s: got %v", stream, err)
		}
	}
	if n, err := collectOf(p, ctx, "x", "", -1); n != 0 || err != nil {
		t.Errorf("a new stream: %d events, %v", n, err)
	}
	for range maxReplayEvents + 5 {
		_ = p.Append(ctx, "y", "a", nil)
	}
	if n, err := collectOf(p, ctx, "y", "a", 2); n != maxReplayEvents || err != nil {
		t.Errorf("what is left of a stream: %d events, %v", n, err)
	}
	if n, err := collectOf(p, ctx, "y", "a", maxReplayEvents+2); n != 2 || err != nil {
		t.Errorf("the newest events: %d, %v", n, err)
	}
	if n, err := collectOf(p, ctx, "y", "a", maxReplayEvents+4); n != 0 || err != nil {
		t.Errorf("after the last event: %d, %v", n, err)
	}
	_ = p.Append(ctx, "z", "a", make([]byte, 5000))
	if n, _ := collectOf(p, ctx, "z", "a", -1); n != 1 {
		t.Error("an answer over the limit is not kept")
	}
	for i := range 200 {
		_ = p.Open(ctx, fmt.Sprint("many", i), "")
		_ = p.Append(ctx, fmt.Sprint("many", i), "a", make([]byte, 900))
	}
	sum := 0
	for _, h := range p.sessions {
		sum += h.bytes
	}
	if sum != p.bytes || sum > 1000*replayTotal {
		t.Errorf("all keep %d bytes and count %d", sum, p.bytes)
	}
	for id := range p.sessions {
		_ = p.SessionClosed(ctx, id)
		_ = p.Append(ctx, id, "a", []byte("late"))
	}
	if len(p.sessions) != 0 || p.bytes != 0 {
		t.Errorf("closed sessions keep %d bytes", p.bytes)
	}
}

func collectOf(p *replay, ctx context.Context, session, stream string, after int) (n int, failed error) {
	for _, err := range p.After(ctx, session, stream, after) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
