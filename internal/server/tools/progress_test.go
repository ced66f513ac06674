package tools

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// TestProgress_sayUntil checks that a call that waits is reported at once and then often enough
// for clients that end a request after a minute without progress, with growing progress, until
// the wait ends.
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
		if len(sent) != 6 || sent[0].Message != "out" || sent[1].Message != "waiting" {
			t.Fatalf("got %d notifications, want the output and five notes", len(sent))
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
