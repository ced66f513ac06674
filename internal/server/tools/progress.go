package tools

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

const (
	// progressEvery is the minimum time between two notifications, so that clients can
	// draw each.
	progressEvery = 250 * time.Millisecond
	// progressText bounds the output in one notification, in bytes.
	progressText = 1 << 10
)

// progress sends output to a client while a call runs. add never blocks the box; one
// goroutine sends.
type progress struct {
	ctx   context.Context
	req   *mcp.CallToolRequest
	token any
	wake  chan struct{}
	quit  chan struct{}
	ended chan struct{}

	mu   sync.Mutex
	seen int    // guarded by mu: bytes of output so far
	tail string // guarded by mu: the newest output, not sent yet
}

// startProgress returns nil if the client did not request progress.
func startProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	token := req.Params.GetProgressToken()
	if token == nil || req.Session == nil {
		return nil
	}
	p := &progress{
		ctx: ctx, req: req, token: token,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
	}
	go p.send()
	return p
}

func (p *progress) add(c box.Chunk) {
	p.mu.Lock()
	p.seen += len(c.Text)
	p.tail += c.Text
	if len(p.tail) > progressText {
		p.tail = strings.ToValidUTF8(p.tail[len(p.tail)-progressText:], "")
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *progress) send() {
	defer close(p.ended)
	for {
		select {
		case <-p.wake:
		case <-p.quit:
			return
		}
		p.mu.Lock()
		text, seen := p.tail, p.seen
		p.tail = ""
		p.mu.Unlock()
		if text != "" {
			// The result has all output, so a lost notification does no harm.
			_ = p.req.Session.NotifyProgress(p.ctx, &mcp.ProgressNotificationParams{
				ProgressToken: p.token, Progress: float64(seen), Message: text,
			})
		}
		select {
		case <-time.After(progressEvery):
		case <-p.quit:
			return
		}
	}
}

// stop ends the notifications and returns after the last one.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.quit)
	<-p.ended
}
