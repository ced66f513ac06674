package tools

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
)

const (
	// progressEvery is the minimum time between two notifications, so that clients can
	// draw each.
	progressEvery = 250 * time.Millisecond
	// progressText bounds the output in one notification, in bytes.
	progressText = 1 << 10
	// silence is the time after which a call without output says what it does. Clients that
	// end a request without progress do so after 60 seconds.
	silence = 15 * time.Second
	// running is what a call says that does not say more.
	running = "still running"
)

// progress sends output to a client while a call runs, and what the call waits for. add and say
// never block; one goroutine sends.
type progress struct {
	ctx    context.Context
	notify func(context.Context, *mcp.ProgressNotificationParams) error
	token  any
	wake   chan struct{}
	quit   chan struct{}
	ended  chan struct{}

	mu     sync.Mutex
	seen   int    // guarded by mu: bytes of output so far, and one for each note
	tail   string // guarded by mu: the newest output, not sent yet
	note   string // guarded by mu: the newest note, not sent yet
	status string // guarded by mu: the note that is sent after silence
}

// startProgress returns nil if the client did not request progress.
func startProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	token := req.Params.GetProgressToken()
	if token == nil || req.Session == nil {
		return nil
	}
	return newProgress(ctx, token, req.Session.NotifyProgress)
}

// newProgress returns a progress that sends with notify. The caller must call stop.
func newProgress(ctx context.Context, token any, notify func(context.Context, *mcp.ProgressNotificationParams) error) *progress {
	p := &progress{
		ctx: ctx, notify: notify, token: token,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
		status: running,
	}
	go p.send()
	return p
}

// follow has the progress of a call go to the request that waits for its code, and returns the
// context for the code. That is not the call's own request if the client has answered a question
// about approval by another one, which has a token of its own.
func (c *Call) follow(ctx context.Context) context.Context {
	own := c.progress
	_, moves := approval.AttendantOf(ctx)
	if own == nil && !(moves && c.byResult) {
		return ctx
	}
	code := ctx
	to := func() *progress {
		if attendant, ok := approval.AttendantOf(code); ok {
			p, _ := attendant.(*progress)
			return p
		}
		return own
	}
	c.Progress = func(ch box.Chunk) { to().add(ch) }
	return codemode.WithNotices(ctx, func(text string) { to().say(text) })
}

// say sends a note about the call, such as what it waits for. It may be called with nil, and
// after stop.
func (p *progress) say(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.seen++ // each notification must have more progress
	p.note = text
	p.mu.Unlock()
	p.signal()
}

// sayUntil sends a note now, and after each silence until end is called, so that the client
// does not assume that the call has failed.
func (p *progress) sayUntil(text string) (end func()) {
	if p == nil {
		return func() {}
	}
	status := func(text string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.status = text
	}
	status(text)
	p.say(text)
	return func() { status(running) }
}

// add sends output. It may be called with nil, and after stop.
func (p *progress) add(c box.Chunk) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.seen += len(c.Text)
	p.tail += c.Text
	if len(p.tail) > progressText {
		p.tail = strings.ToValidUTF8(p.tail[len(p.tail)-progressText:], "")
	}
	p.mu.Unlock()
	p.signal()
}

// signal wakes the goroutine that sends.
func (p *progress) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *progress) send() {
	defer close(p.ended)
	silent := time.NewTicker(silence)
	defer silent.Stop()
	for {
		select {
		case <-p.wake:
		case <-silent.C:
			p.mu.Lock()
			p.seen++
			p.note = p.status
			p.mu.Unlock()
		case <-p.quit:
			return
		}
		p.mu.Lock()
		text, seen := lines(p.tail, p.note), p.seen
		p.tail, p.note = "", ""
		p.mu.Unlock()
		if text != "" {
			// The result has all output, so a lost notification does no harm.
			_ = p.notify(p.ctx, &mcp.ProgressNotificationParams{
				ProgressToken: p.token, Progress: float64(seen), Message: text,
			})
			silent.Reset(silence)
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
