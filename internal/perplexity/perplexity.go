// Package perplexity searches the web through the API of Perplexity or of a compatible
// gateway, and offers that as MCP tools: those of Perplexity's own MCP server and, as
// aliases, those of an older server.
//
// The API is not trusted: its responses are bounded, and the key is removed from its
// messages.
package perplexity

//go:generate go test -run ^TestTools_Catalog$ -update .

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// A Mode selects the API for answers. Searches use the same API in every mode.
type Mode string

// The modes.
const (
	Agent Mode = "agent" // POST /v1/agent
	Chat  Mode = "chat"  // POST /chat/completions, of gateways
	// Auto is Agent, until a gateway answers that it has no such path. Perplexity itself
	// has no other API for answers.
	Auto Mode = "auto"
)

// DefaultURL is the address of Perplexity's API.
const DefaultURL = "https://api.perplexity.ai"

const (
	// DefaultTimeout bounds a call. Research takes minutes.
	DefaultTimeout = 5 * time.Minute
	// maxBody bounds an answer that is not a stream, in bytes: 20 results of 2,048 tokens
	// take a tenth of it.
	maxBody = 4 << 20
	// maxEvent bounds one event of a stream, in bytes. The last one repeats the whole
	// answer with all search results.
	maxEvent = 4 << 20
	// maxStream bounds a stream, in bytes.
	maxStream = 32 << 20
	// maxErrorBody bounds the body of an error, in bytes.
	maxErrorBody = 64 << 10
	// cancelTimeout bounds the request that cancels a run.
	cancelTimeout = 5 * time.Second
	// chatFor is the time after which the agent API is tried again at a gateway that did
	// not have it: a single answer may be a mistake.
	chatFor = 10 * time.Minute
	// warnEvery is the minimum time between two warnings about a rejected key.
	warnEvery = time.Minute
)

// Options configures a [Client].
type Options struct {
	Key     string        // of the API; required
	BaseURL string        // [DefaultURL] if empty
	Mode    Mode          // [Auto] if empty
	Model   string        // asked in place of the tools' own, except where a call names one; may be empty
	Timeout time.Duration // of a call; [DefaultTimeout] if 0
	Proxy   string        // URL of an HTTP proxy; if empty, the environment's
	Version string        // of this program
	Log     *slog.Logger  // nil discards
}

// A Client calls the API. It may be used concurrently.
type Client struct {
	o    Options
	base *url.URL
	http *http.Client
	log  *slog.Logger
	keys *strings.Replacer // masks the key

	cache    *cache
	slots    slots
	chatTill atomic.Int64   // in mode Auto: the gateway has no agent API, until then (ns since 1970)
	rejected rate.Sometimes // limits the warnings about the key
}

// New returns a client. It connects to nothing. An error never contains the key.
func New(o Options) (*Client, error) {
	o.BaseURL, o.Mode, o.Timeout = cmp.Or(o.BaseURL, DefaultURL), cmp.Or(o.Mode, Auto), cmp.Or(o.Timeout, DefaultTimeout)
	if err := checkKey(o.Key); err != nil {
		return nil, err
	}
	base, err := url.Parse(o.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("parse the base URL of the search API: %w", err)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	client, err := newHTTPClient(base, o.Proxy)
	if err != nil {
		return nil, err
	}
	c := &Client{o: o, base: base, http: client, log: o.Log, keys: strings.NewReplacer(o.Key, "[API key]"), cache: newCache(), rejected: rate.Sometimes{Interval: warnEvery}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// minKey is the length from which a key is replaced wherever it occurs. Shorter ones are
// refused: they would occur in ordinary text.
const minKey = 8

func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("no key of the search API")
	case len(key) < minKey || len(key) > 1024:
		return fmt.Errorf("the key of the search API has %d bytes, want %d to 1024", len(key), minKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return errors.New("the key of the search API has a space, a control character or a letter beyond ASCII")
	}
	return nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// mask removes the key from a text of the API.
func (c *Client) mask(s string) string { return c.keys.Replace(s) }

// official reports whether the API is Perplexity's own.
func (c *Client) official() bool { return "https://"+c.base.Host+c.base.Path == DefaultURL }

// post sends a request and returns the response, whose status is 200. The caller closes
// the body. Other errors than those of ctx are *Error.
func (c *Client) post(ctx context.Context, path string, body any) (*http.Response, error) {
	data, err := plainjson.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request of the search API: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.String()+path, bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("make request of the search API: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.o.Key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("User-Agent", "glovebox/"+cmp.Or(c.o.Version, "dev"))
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, c.refused(res, path)
	}
	return res, nil
}

// readBody reads an answer that is not a stream.
func (c *Client) readBody(ctx context.Context, res *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, c.interrupted(ctx, err, 0)
	case len(data) > maxBody:
		return nil, tooLarge("answer", maxBody)
	}
	return data, nil
}

// within bounds a call by the time-out of the client.
func (c *Client) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.o.Timeout, errTimeout)
}

// cancel asks the API to end a run, which would go on and be billed otherwise. A failure
// does no harm: the run may have ended.
func (c *Client) cancel(ctx context.Context, id string) {
	if !runID(id) {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	res, err := c.post(ctx, agentPath+"/"+id+"/cancel", struct{}{})
	if err != nil {
		c.log.Debug("search run not cancelled", logkey.Error, err)
		return
	}
	res.Body.Close()
}

// runID reports whether an id of the API may become part of a path.
func runID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}

// report logs the outcome of a call, never what was asked or answered.
func (c *Client) report(tool string, begun time.Time, err error) {
	took := time.Since(begun).Round(time.Millisecond)
	var e *Error
	switch {
	case err == nil:
		c.log.Debug("search answered", logkey.Tool, tool, logkey.Took, took)
	case errors.As(err, &e) && e.Kind == KindKey:
		c.rejected.Do(func() {
			c.log.Warn("the search API rejects the key; replace PERPLEXITY_API_KEY", logkey.Tool, tool, logkey.Status, e.Status, logkey.Endpoint, c.base.String())
		})
	case errors.As(err, &e):
		log := c.log
		if e.Detail != "" {
			log = log.With(logkey.Detail, e.Detail)
		}
		log.Info("search failed", logkey.Tool, tool, logkey.Reason, string(e.Kind), logkey.Status, e.Status, logkey.Endpoint, c.base.String(), logkey.Took, took)
	}
}
