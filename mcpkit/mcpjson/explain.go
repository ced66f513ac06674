package mcpjson

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
)

// Field is one field of a definition, ready to be shown.
type Field struct {
	// Path names the field: "command", "args[0]", "headers.Authorization".
	Path string

	// Value is the unexpanded value, with references as ${scheme:name} and possible
	// secrets as Masked, followed by their length. It is untrusted text.
	Value string

	// Masked reports that a part of Value is masked.
	Masked bool

	// Origin tells where the field was written; zero if not in a file.
	Origin Origin
}

// Masked replaces secrets in values to show.
const Masked = redact.Masked

// Explain returns all fields of the definition with their origins, in the order of
// Server's fields. It expands nothing.
//
// It masks literal values of headers and of the OAuth client secret. Elsewhere it masks only
// what has the form of a credential, and nothing in the command and in the name of the package
// or image that it runs, so that a definition cannot hide what it runs. A password with spaces,
// or with characters that a shell interprets, is therefore shown.
func (s *Server) Explain() []Field {
	x := &explanation{s: s}
	x.add("transport", string(s.Transport))
	x.add("title", s.Title)
	x.add("description", s.Description)
	x.plain("command", s.Command)
	packages := s.packages()
	for i, a := range s.Args {
		if packages[i] {
			x.plain(indexed("args", i), a)
			continue
		}
		use := redact.Argument
		if i > 0 && isSecretFlag(s.Args[i-1]) {
			use = redact.FlagValue
		}
		x.text(indexed("args", i), a, use)
	}
	for _, p := range s.Env {
		use := redact.Argument
		if redact.IsSecretName(p.Name) {
			use = redact.Variable
		}
		x.text("env."+p.Name, p.Value, use)
	}
	x.list("passEnv", s.PassEnv)
	x.flag("inheritEnv", s.InheritEnv)
	x.plain("envFile", s.EnvFile)
	x.plain("cwd", s.Cwd)
	if l := s.StdoutLog; l != nil {
		x.add("stdoutLog", l.Path+", parts of "+strconv.FormatInt(l.MaxBytesPerPart, 10)+" bytes, at most "+strconv.Itoa(l.MaxParts))
	}
	x.plain("socket", s.Socket)
	x.text("url", s.URL, redact.Address)
	x.text("sseUrl", s.SSEURL, redact.Address)
	x.flag("sseFallback", s.SSEFallback)
	for _, p := range s.Headers {
		use := redact.Argument
		if p.Secret || slices.Contains(sensitiveHeaders, strings.ToLower(p.Name)) {
			use = redact.Credential
		}
		x.text("headers."+p.Name, p.Value, use)
	}
	x.add("bearerTokenEnv", s.BearerTokenEnv)
	if o := s.OAuth; o != nil {
		x.flag("oauth.disabled", o.Disabled)
		x.text("oauth.clientId", o.ClientID, redact.Argument)
		x.text("oauth.clientSecret", o.ClientSecret, redact.Credential)
		x.list("oauth.scopes", o.Scopes)
		x.add("oauth.redirectUri", o.RedirectURL)
		if o.CallbackPort != 0 {
			x.add("oauth.callbackPort", strconv.Itoa(o.CallbackPort))
		}
		x.add("oauth.metadataUrl", o.MetadataURL)
		x.add("oauth.clientMetadataUrl", o.ClientMetadataURL)
		x.add("oauth.resource", o.Resource)
		if o.ClientCredentials {
			x.add("oauth.grantType", grantClient)
		}
	}
	x.duration("timeouts.connect", s.Timeouts.Connect)
	x.duration("timeouts.request", s.Timeouts.Request)
	x.flag("disabled", s.Disabled)
	x.flag("required", s.Required)
	x.list("tools.allow", s.Tools.Allow)
	x.list("tools.deny", s.Tools.Deny)
	for i, r := range s.Roots {
		x.fields = append(x.fields, Field{Path: indexed("roots", i), Value: r.URI, Origin: s.Origins["roots"]})
	}
	for _, e := range s.Extra {
		// An unknown member may be a secret.
		x.fields = append(x.fields, Field{Path: "extra." + e.Key, Value: Masked, Masked: true, Origin: s.Origins["extra."+e.Key]})
	}
	return x.fields
}

type explanation struct {
	s      *Server
	fields []Field
}

func (x *explanation) add(path, value string) {
	if value != "" {
		x.fields = append(x.fields, Field{Path: path, Value: value, Origin: x.s.Origins[path]})
	}
}

func (x *explanation) flag(path string, on bool) {
	if _, written := x.s.Origins[path]; on || written {
		x.add(path, strconv.FormatBool(on))
	}
}

func (x *explanation) duration(path string, d time.Duration) {
	if d != 0 {
		x.add(path, d.String())
	}
}

func (x *explanation) list(path string, list []string) {
	if list != nil {
		x.add(path, "["+strings.Join(list, ", ")+"]")
	}
}

func (x *explanation) text(path string, t Text, use redact.Use) {
	if len(t) == 0 && x.s.Origins[path].Key == "" {
		return
	}
	shown := t.mask(use)
	x.fields = append(x.fields, Field{Path: path, Value: shown, Masked: shown != t.String(), Origin: x.s.Origins[path]})
}

// plain adds a field in which nothing is masked.
func (x *explanation) plain(path string, t Text) {
	if len(t) == 0 && x.s.Origins[path].Key == "" {
		return
	}
	x.fields = append(x.fields, Field{Path: path, Value: t.String(), Origin: x.s.Origins[path]})
}

// mask returns a text with its secrets masked. A word such as "Bearer " before a
// credential stays.
func (t Text) mask(use redact.Use) string {
	shown := make(Text, len(t))
	for i, p := range t {
		switch {
		case len(p.Sources) > 0:
			p.Sources = slices.Clone(p.Sources)
			for j, src := range p.Sources {
				if src.Scheme == SchemeValue {
					p.Sources[j].Name = redact.Literal(use, src.Name)
				}
			}
		case use == redact.Credential:
			scheme, rest, found := strings.Cut(p.Literal, " ")
			if !found || !isScheme(scheme) {
				scheme, rest = "", p.Literal
			} else {
				scheme += " "
			}
			p.Literal = scheme + redact.Literal(use, rest)
		default:
			p.Literal = redact.Literal(use, p.Literal)
		}
		shown[i] = p
	}
	return shown.String()
}

// isScheme recognizes the scheme before the credentials of a header.
func isScheme(s string) bool {
	switch strings.ToLower(s) {
	case "bearer", "basic", "token":
		return true
	}
	return false
}

// isSecretFlag reports whether the argument after this one is a secret.
func isSecretFlag(t Text) bool {
	s, ok := t.Literal()
	return ok && redact.IsSecretFlag(s)
}
