package login

import (
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Options configures [Logins]. The zero value of every field means its default.
type Options struct {
	// Store keeps clients and tokens; nil keeps them in memory.
	Store *Store

	// Authorize takes a person to the page at url, and returns what the page's
	// server sends the browser back with: see [ParseAuthorizationResponse]. It is called for one
	// login of a server at a time, and given up when its context ends: in
	// [Handler.Login] that of the caller, else that of the request that waits for it,
	// whose time limits are short for a person. Nil where nobody can be asked.
	Authorize func(ctx context.Context, server, url string) (AuthorizationResponse, error)
	// RedirectURL is where Authorize awaits the browser, for servers whose
	// definition does not say.
	RedirectURL string

	// ClientName is how the client calls itself; "mcpkit" without it.
	ClientName string
	// ClientMetadataURL is a client id metadata document to be known by, for
	// servers whose definition has none.
	ClientMetadataURL string

	// Log hears of what goes wrong beside requests; nil discards.
	Log *slog.Logger
}

// Logins makes the handlers of servers. Its methods may be called concurrently.
type Logins struct {
	opts Options
	log  *slog.Logger
	now  func() time.Time
}

// New returns Logins. It touches nothing.
func New(opts Options) *Logins {
	if opts.Store == nil {
		opts.Store = newMemoryStore()
	}
	if opts.ClientName == "" {
		opts.ClientName = "mcpkit"
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Logins{opts: opts, log: opts.Log, now: time.Now}
}

// A Server is one to log in to. Only Name and URL are needed.
type Server struct {
	Name string // in errors
	URL  string // of the endpoint: tokens go to its origin, and nowhere else

	ClientID     string // a client that is registered already; else one is found or registered
	ClientSecret string
	// Key authenticates the client in place of a secret (private_key_jwt): an
	// *ecdsa.PrivateKey, *rsa.PrivateKey or ed25519.PrivateKey.
	Key crypto.Signer
	// Issuer is where ClientID is registered; "" takes it for whatever issuer the
	// server names.
	Issuer string
	// ClientCredentials logs in as the client itself: no person is asked.
	ClientCredentials bool

	Scopes            []string // instead of what the server says
	RedirectURL       string   // instead of Options.RedirectURL
	MetadataURL       string   // of the authorization server, instead of discovery
	ClientMetadataURL string   // instead of Options.ClientMetadataURL
	Resource          string   // the resource indicator, instead of what the server says
}

// ServerFor is the server of a definition.
func ServerFor(r *mcpjson.Resolved) Server {
	s := Server{Name: r.Server.Name, URL: r.URL, ClientID: r.OAuthClientID, ClientSecret: r.OAuthClientSecret}
	if o := r.Server.OAuth; o != nil {
		s.Scopes, s.RedirectURL, s.MetadataURL = o.Scopes, o.RedirectURL, o.MetadataURL
		s.ClientMetadataURL, s.Resource, s.ClientCredentials = o.ClientMetadataURL, o.Resource, o.ClientCredentials
	}
	return s
}

// parsed is the URL as requests have it.
func (s *Server) parsed() (*url.URL, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, errors.New("its url is none") // the cause repeats it, with what may be secret
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return nil, errors.New("its url is not http or https")
	}
	u.User, u.Fragment = nil, ""
	return u, nil
}

// key names what is stored of a server: the same for everybody who means the same
// endpoint and the same client, whatever they call it.
func (s *Server) key() string {
	target := s.URL
	if u, err := s.parsed(); err == nil {
		target = u.String()
	}
	b, err := json.Marshal([]any{target, s.Issuer, s.ClientID, s.ClientCredentials, s.MetadataURL, s.Resource})
	if err != nil {
		panic(err) // strings and a bool
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Handler returns the handler for a server, which keeps to the policy; nil is for a
// server that the user trusts. The caller closes it.
func (l *Logins) Handler(s Server, p *outbound.Policy) (*Handler, error) {
	u, err := s.parsed()
	if err == nil && s.ClientCredentials && (s.ClientID == "" || s.ClientSecret == "" && s.Key == nil) {
		err = errors.New("a login as the client itself needs the id of a client, and its secret or key")
	}
	if err != nil {
		return nil, fmt.Errorf("log in to mcp server %q: %w", s.Name, err)
	}
	return newHandler(l, s, u, p), nil
}

// OAuth is [Logins.Handler] for a definition, as mcpkit.Options.OAuth wants it.
func (l *Logins) OAuth(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
	return l.Handler(ServerFor(r), p)
}

// ErrRequired is what every [*RequiredError] is, for [errors.Is].
var ErrRequired = errors.New("not logged in")

// RequiredError says that somebody has to log in to a server, and why.
type RequiredError struct {
	Server string
	Reason string
	Cause  error // may be nil
}

func (e *RequiredError) Error() string {
	text := fmt.Sprintf("mcp server %q wants you to log in: %s", e.Server, e.Reason)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap lets [errors.Is] find ErrRequired and the cause.
func (e *RequiredError) Unwrap() []error {
	if e.Cause != nil {
		return []error{ErrRequired, e.Cause}
	}
	return []error{ErrRequired}
}

// maxText bounds what is shown of what a server says.
const maxText = 200

// said is what a server says, as it may be shown.
func said(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	return truncate.Bytes(strings.Join(strings.Fields(text), " "), maxText)
}
