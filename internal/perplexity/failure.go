package perplexity

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// A Kind is a class of failures. The set is closed.
type Kind string

// The kinds.
const (
	KindArgument  Kind = "argument"  // the call's own
	KindBusy      Kind = "busy"      // too many calls at once
	KindKey       Kind = "key"       // 401 and 403
	KindLimit     Kind = "limit"     // 429
	KindRequest   Kind = "request"   // the other statuses below 500
	KindServer    Kind = "server"    // 500 and above
	KindFailed    Kind = "failed"    // the run failed, was cancelled or has no answer
	KindCut       Kind = "cut"       // the answer ended too early
	KindMalformed Kind = "malformed" // the answer is no valid one
	KindTooLarge  Kind = "too_large"
	KindTimeout   Kind = "timeout"
	KindNetwork   Kind = "network"
	KindRefused   Kind = "refused" // by the outbound policy
)

// An Error is why a call has no answer, in words for the model that called and its user.
// It never contains the key.
type Error struct {
	Kind   Kind
	Status int    // of HTTP; 0 if the failure is not that of a response
	Text   string // what went wrong
	Hint   string // what to do about it; may be empty
	Detail string // for the log of the server only, since it may name hosts of its network
}

// Error returns the text with the hint.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Text
	}
	return strings.TrimSuffix(e.Text, ".") + ". " + e.Hint
}

// errTimeout is the cause of a context that ended by the time-out of the client.
var errTimeout = errors.New("the search API did not answer in time")

// maxMessage bounds a message of the API, in characters.
const maxMessage = 500

// quote returns a message of the API on one line, masked, bounded and without hidden
// characters.
func (c *Client) quote(s string) string {
	return visible.Line(truncate.Runes(oneLine(c.mask(truncate.Bytes(s, maxErrorBody))), maxMessage))
}

// An apiError is the error object of the API. Gateways also send a string.
type apiError struct {
	Message string
	Type    string
	Code    string
}

// UnmarshalJSON implements [json.Unmarshaler].
func (e *apiError) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &e.Message) == nil {
		return nil
	}
	var fields struct {
		Message json.RawMessage `json:"message"`
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	text := func(v json.RawMessage) string {
		var s string
		if json.Unmarshal(v, &s) == nil { // also null
			return s
		}
		return string(v)
	}
	e.Message, e.Type, e.Code = text(fields.Message), text(fields.Type), text(fields.Code)
	return nil
}

// words returns the message with the code, or the type.
func (c *Client) words(e *apiError) string {
	if e == nil {
		return ""
	}
	code := e.Code
	if code == "" {
		code = e.Type
	}
	text := c.quote(e.Message)
	if code = c.quote(code); code != "" && text != "" {
		return text + " (" + code + ")"
	}
	return text + code
}

// refused returns the error for a response with a status other than 200.
func (c *Client) refused(res *http.Response, path string) *Error {
	e := &Error{Status: res.StatusCode, Text: fmt.Sprintf("Perplexity API error: %d %s", res.StatusCode, http.StatusText(res.StatusCode))}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // what arrived is enough
	if said := c.said(res.Header.Get("Content-Type"), body); said != "" {
		e.Text += ": " + said
	}
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		e.Kind, e.Hint = KindKey, "The API rejects the key of this server: its operator has to set a valid PERPLEXITY_API_KEY."
	case code == http.StatusTooManyRequests:
		e.Kind, e.Hint = KindLimit, "Try again in a minute."
		if wait, ok := resetOf(res.Header, time.Now()); ok {
			e.Hint = "The limit resets in " + wait.String() + ": try again then."
		}
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed:
		e.Kind, e.Hint = KindRequest, fmt.Sprintf("%s may not exist at this API: the operator should check PERPLEXITY_BASE_URL and PERPLEXITY_API_MODE.", path)
	case code >= 500:
		e.Kind, e.Hint = KindServer, "The API has a problem of its own: try again later."
	default:
		e.Kind = KindRequest
	}
	return e
}

// said returns the message in the body of an error.
func (c *Client) said(contentType string, body []byte) string {
	var object struct {
		Error   *apiError `json:"error"`
		Detail  any       `json:"detail"`
		Message string    `json:"message"`
	}
	if json.Unmarshal(body, &object) == nil {
		switch {
		case object.Error != nil:
			return c.words(object.Error)
		case object.Message != "":
			return c.quote(object.Message)
		case object.Detail != nil:
			return c.quote(fmt.Sprint(object.Detail))
		}
	}
	if strings.HasPrefix(contentType, "text/html") { // the page of a proxy
		return ""
	}
	return c.quote(string(body))
}

// resetHeaders are the headers that say when a limit resets, the most reliable first.
var resetHeaders = []string{"Retry-After", "X-RateLimit-Reset", "X-RateLimit-Reset-Requests", "RateLimit-Reset"}

// maxReset bounds a time until a reset that is believed.
const maxReset = 31 * 24 * time.Hour

// resetOf returns the time until a limit resets: seconds from now or since 1970, a
// duration such as 6m0s, or a date.
func resetOf(h http.Header, now time.Time) (time.Duration, bool) {
	for _, name := range resetHeaders {
		text := strings.TrimSpace(h.Get(name))
		if text == "" {
			continue
		}
		wait, err := time.ParseDuration(text)
		if n, nerr := strconv.ParseFloat(text, 64); nerr == nil {
			switch {
			case !(math.Abs(n) < 1e15):
				continue
			case n > 1e12:
				wait = time.UnixMilli(int64(n)).Sub(now)
			case n > 1e9:
				wait = time.Unix(int64(n), 0).Sub(now)
			case n <= maxReset.Seconds():
				wait = time.Duration(n * float64(time.Second))
			default:
				continue
			}
			err = nil
		}
		if err != nil {
			at, terr := http.ParseTime(text)
			if terr != nil {
				if at, terr = time.Parse(time.RFC3339, text); terr != nil {
					continue
				}
			}
			wait = at.Sub(now)
		}
		if wait < -time.Minute || wait > maxReset {
			continue
		}
		return max(wait, time.Second).Round(time.Second), true
	}
	return 0, false
}

// unreachable returns the error for a request without a response, or that of ctx.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ended := c.ended(ctx); ended != nil {
		return ended
	}
	if outside := new(url.Error); errors.As(err, &outside) {
		err = outside.Err // without the URL
	}
	if errors.Is(err, outbound.ErrRefused) && !unresolved(err) {
		return &Error{Kind: KindRefused, Text: "Refused to call the search API: " + refusalReason(err), Hint: "The operator should check PERPLEXITY_BASE_URL and the name server.", Detail: c.quote(err.Error())}
	}
	return &Error{Kind: KindNetwork, Text: "Network error while calling Perplexity API: " + networkReason(err), Hint: "Try again; the operator should check the log, the network, PERPLEXITY_BASE_URL and PERPLEXITY_PROXY.", Detail: c.quote(err.Error())}
}

// networkReason describes a network error without addresses.
func networkReason(err error) string {
	var (
		errno   syscall.Errno
		cert    *tls.CertificateVerificationError
		timeout net.Error
	)
	switch {
	case unresolved(err):
		return "the name of its host cannot be resolved"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &cert):
		return "its certificate is not valid"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no connection in time"
	}
	return "the connection failed"
}

// unresolved reports whether the name server has given no address of the host. The outbound policy
// refuses such a host, too, because it cannot check it; to the reader, nothing was refused.
func unresolved(err error) bool {
	var (
		dns     *net.DNSError
		refusal *outbound.Refusal
	)
	return errors.As(err, &dns) || errors.As(err, &refusal) && refusal.Reason == outbound.Unresolved
}

// interrupted returns the error for a body that could not be read to its end, of which a
// number of characters of the answer arrived, or the error of ctx.
func (c *Client) interrupted(ctx context.Context, err error, arrived int) error {
	if ended := c.ended(ctx); ended != nil {
		return ended
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	e := &Error{Kind: KindCut, Text: "Perplexity API error: the connection ended before the answer was complete", Hint: "Try again."}
	if arrived > 0 {
		e.Text += fmt.Sprintf(", after %d characters of it", arrived)
	}
	return e
}

// ended returns the error for a context that has ended, or nil.
func (c *Client) ended(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(context.Cause(ctx), errTimeout):
		return &Error{Kind: KindTimeout,
			Text: fmt.Sprintf("Request timeout: Perplexity API did not respond within %dms", c.o.Timeout.Milliseconds()),
			Hint: "Ask for less, or consider increasing PERPLEXITY_TIMEOUT_MS."}
	}
	return ctx.Err()
}

func tooLarge(what string, limit int) *Error {
	return &Error{Kind: KindTooLarge, Text: fmt.Sprintf("Perplexity API error: the %s is larger than %d bytes", what, limit), Hint: "Ask for less."}
}

func tooMany() *Error {
	return &Error{Kind: KindTooLarge, Text: fmt.Sprintf("Perplexity API error: the answer is too large: a list in it has more than %d elements", maxElements), Hint: "Ask for less."}
}

// malformed returns the error for an answer that cannot be decoded, or the *Error in err.
func (c *Client) malformed(what string, err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	return &Error{Kind: KindMalformed, Text: "Perplexity API error: invalid " + what + ": " + c.quote(err.Error()),
		Hint: "The operator should check that PERPLEXITY_BASE_URL is that of a compatible API."}
}
