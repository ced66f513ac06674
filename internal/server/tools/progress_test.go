package tools

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// TestProgress_sayUntil checks that a call that waits is reported at once and then often enough
// for clients that end a request after a minute without progress, with growing progress, and
// that a call that says nothing is reported as often.
func TestProgress_sayUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent []*mcp.ProgressNotificationParams
		p := newProgress(t.Context(), "token", func(_ context.Context, n *mcp.ProgressNotificationParams) error {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, n)
			return nil
		})
		p.add(box.Chunk{Text: "out"})
		time.Sleep(time.Second)
		end := p.sayUntil("waiting")
		time.Sleep(time.Minute + time.Second)
		end()
		time.Sleep(time.Minute)
		p.stop()
		var got []string
		for _, n := range sent {
			got = append(got, n.Message)
		}
		want := slices.Concat([]string{"out"}, slices.Repeat([]string{"waiting"}, 5), slices.Repeat([]string{running}, 4))
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for i, n := range sent[1:] {
			if n.Progress <= sent[i].Progress {
				t.Errorf("the progress %v follows %v", n.Progress, sent[i].Progress)
			}
		}
		var none *progress
		none.say("x")
		none.sayUntil("x")()
	})
}
