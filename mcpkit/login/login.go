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
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Options configures [Logins]. The zero value of a field means its default.
type Options struct {
	// Store stores clients and tokens; nil stores them in memory.
	Store *Store

	// Authorize shows the user the page at url, and returns the response that the
	// authorization server redirects the browser with: see
	// [ParseAuthorizationResponse]. It is called for one login of a server at a time.
	// Its context is that of [Handler.Login], or of the request that needs the login,
	// whose time limits are short for a person. Nil means that there is no user to ask.
	Authorize func(ctx context.Context, server, url string) (AuthorizationResponse, error)
	// RedirectURL is the address to which the browser is redirected, for servers whose
	// definition has none.
	RedirectURL string

	// ClientName is the name under which clients are registered; the default is
	// "mcpkit".
	ClientName string
	// ClientMetadataURL is the address of a client ID metadata document, for servers
	// whose definition has none.
	ClientMetadataURL string

	// Log receives problems that do not fail a request; nil discards them.
	Log *slog.Logger
}

// Logins creates the handlers of servers. Its methods may be called concurrently.
type Logins struct {
	opts Options
	log  *slog.Logger
	now  func() time.Time
}

// New returns Logins. It has no side effects.
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

// A Server is a server to log in to. Only Name and URL are required.
type Server struct {
	Name string // for errors
	URL  string // of the endpoint; tokens are sent to its origin only

	ClientID     string // of a client that is already registered; otherwise one is registered
	ClientSecret string
	// Key authenticates the client in place of a secret (private_key_jwt): an
	// *ecdsa.PrivateKey, *rsa.PrivateKey or ed25519.PrivateKey.
	Key crypto.Signer
	// Issuer is the issuer that registered ClientID; if empty, ClientID is used for any
	// issuer that the server names.
	Issuer string
	// ClientCredentials logs in as the client itself, without a user.
	ClientCredentials bool

	Scopes            []string // instead of those that the server asks for
	RedirectURL       string   // instead of Options.RedirectURL
	MetadataURL       string   // of the authorization server's metadata, instead of discovery
	ClientMetadataURL string   // instead of Options.ClientMetadataURL
	Resource          string   // the resource indicator, instead of the one in the server's metadata
}

// ServerFor returns the server of a definition.
func ServerFor(r *mcpjson.Resolved) Server {
	s := Server{Name: r.Server.Name, URL: r.URL, ClientID: r.OAuthClientID, ClientSecret: r.OAuthClientSecret}
	if o := r.Server.OAuth; o != nil {
		s.Scopes, s.RedirectURL, s.MetadataURL = o.Scopes, o.RedirectURL, o.MetadataURL
		s.ClientMetadataURL, s.Resource, s.ClientCredentials = o.ClientMetadataURL, o.Resource, o.ClientCredentials
	}
	return s
}

// parsedURL returns the URL as requests use it.
func (s *Server) parsedURL() (*url.URL, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, errors.New("invalid URL") // the cause quotes it, with possible secrets
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return nil, errors.New("the URL is not http or https")
	}
	u.User, u.Fragment = nil, ""
	return u, nil
}

// key identifies the stored login: the same for all names of one endpoint and client.
func (s *Server) key() string {
	target := s.URL
	if u, err := s.parsedURL(); err == nil {
		target = u.String()
	}
	b, err := json.Marshal([]any{target, s.Issuer, s.ClientID, s.ClientCredentials, s.MetadataURL, s.Resource})
	if err != nil {
		panic(err) // cannot happen: strings and a bool
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Handler returns the handler for a server. It applies the policy; nil is for servers
// that the user trusts. The caller closes it.
func (l *Logins) Handler(s Server, p *outbound.Policy) (*Handler, error) {
	u, err := s.parsedURL()
	if err == nil && s.ClientCredentials && (s.ClientID == "" || s.ClientSecret == "" && s.Key == nil) {
		err = errors.New("a login as the client itself needs a client id, and a secret or key")
	}
	if err != nil {
		return nil, fmt.Errorf("log in to mcp server %q: %w", s.Name, err)
	}
	return newHandler(l, s, u, p), nil
}

// OAuth is [Logins.Handler] for a definition, in the form of mcpkit.Options.OAuth.
func (l *Logins) OAuth(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
	return l.Handler(ServerFor(r), p)
}

// ErrRequired matches every [*RequiredError] in [errors.Is].
var ErrRequired = errors.New("not logged in")

// RequiredError reports that the user has to log in to a server, and why.
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

// Unwrap returns ErrRequired and the cause.
func (e *RequiredError) Unwrap() []error {
	if e.Cause != nil {
		return []error{ErrRequired, e.Cause}
	}
	return []error{ErrRequired}
}

// maxText bounds the text of a server that errors quote.
const maxText = 200

// quote returns a server's text in a form that is safe to show: on one line, bounded,
// without control characters, and with hidden characters escaped.
func quote(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	return truncate.Bytes(visible.Line(strings.Join(strings.Fields(text), " ")), maxText)
}
