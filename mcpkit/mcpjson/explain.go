package mcpjson

import (
	"net/url"
	"regexp"
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
	// secrets as Masked.
	Value string

	// Masked reports that a part of Value is masked.
	Masked bool

	// Origin tells where the field was written; zero if not in a file.
	Origin Origin
}

// Masked replaces secrets in values to show.
const Masked = redact.Masked

// Explain returns all fields of the definition with their origins, in the order of
// Server's fields. It expands nothing. It masks possible secrets, and the literal
// values of headers and variables whose names suggest a secret.
func (s *Server) Explain() []Field {
	x := &explanation{s: s}
	x.add("transport", string(s.Transport))
	x.add("title", s.Title)
	x.add("description", s.Description)
	x.text("command", s.Command, false)
	for i, a := range s.Args {
		x.text(indexed("args", i), a, i > 0 && isSecretFlag(s.Args[i-1]))
	}
	for _, p := range s.Env {
		x.text("env."+p.Name, p.Value, p.Secret)
	}
	x.list("passEnv", s.PassEnv)
	x.flag("inheritEnv", s.InheritEnv)
	x.text("envFile", s.EnvFile, false)
	x.text("cwd", s.Cwd, false)
	if l := s.StdoutLog; l != nil {
		x.add("stdoutLog", l.Path+", parts of "+strconv.FormatInt(l.MaxBytesPerPart, 10)+" bytes, at most "+strconv.Itoa(l.MaxParts))
	}
	x.text("socket", s.Socket, false)
	x.address("url", s.URL)
	x.address("sseUrl", s.SSEURL)
	x.flag("sseFallback", s.SSEFallback)
	for _, p := range s.Headers {
		x.text("headers."+p.Name, p.Value, p.Secret)
	}
	x.add("bearerTokenEnv", s.BearerTokenEnv)
	if o := s.OAuth; o != nil {
		x.flag("oauth.disabled", o.Disabled)
		x.text("oauth.clientId", o.ClientID, false)
		x.text("oauth.clientSecret", o.ClientSecret, true)
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

func (x *explanation) text(path string, t Text, secret bool) {
	if len(t) == 0 && x.s.Origins[path].Key == "" {
		return
	}
	f := Field{Path: path, Origin: x.s.Origins[path]}
	f.Value, f.Masked = t.mask(secret)
	x.fields = append(x.fields, f)
}

// mask returns a text with its secrets masked. If the text is secret, this includes all
// literals except a word before a reference, such as "Bearer ".
func (t Text) mask(secret bool) (s string, masked bool) {
	shown := make(Text, 0, len(t))
	for i, p := range t {
		switch {
		case len(p.Sources) > 0:
			for j, src := range p.Sources {
				if src.Scheme == SchemeValue && src.Name != "" && (secret || redact.IsKey(src.Name)) {
					p.Sources = append([]Source(nil), p.Sources...)
					p.Sources[j].Name, masked = Masked, true
				}
			}
		case secret && i+1 < len(t) && isScheme(p.Literal):
		case secret:
			word, _, found := strings.Cut(p.Literal, " ")
			p.Literal, masked = Masked, true
			if found && isScheme(word+" ") {
				p.Literal = word + " " + Masked
			}
		default:
			hidden := userInfo.ReplaceAllString(redact.MaskKeys(p.Literal), "://"+Masked+"@")
			masked = masked || hidden != p.Literal
			p.Literal = hidden
		}
		if p, ok := maskFlag(p); ok {
			shown, masked = append(shown, p), true
			continue
		}
		shown = append(shown, p)
	}
	return shown.String(), masked
}

// userInfo matches the credentials in an address, such as that of a database.
var userInfo = regexp.MustCompile(`://[^/\s@]*:[^/\s@]*@`)

// isScheme recognizes the scheme before the credentials of a header.
func isScheme(s string) bool {
	switch strings.ToLower(s) {
	case "bearer ", "basic ", "token ":
		return true
	}
	return false
}

// maskFlag masks the value in --api-key=value and in NAME=value.
func maskFlag(p Piece) (Piece, bool) {
	name, value, ok := strings.Cut(p.Literal, "=")
	if len(p.Sources) > 0 || !ok || value == "" || value == Masked || strings.ContainsAny(name, " /?&") || !redact.IsSecretName(name) {
		return p, false
	}
	return Piece{Literal: name + "=" + Masked}, true
}

// isSecretFlag reports whether the argument after this one is a secret.
func isSecretFlag(t Text) bool {
	s, ok := t.Literal()
	return ok && strings.HasPrefix(s, "-") && !strings.Contains(s, "=") && redact.IsSecretName(strings.TrimLeft(s, "-"))
}

// address returns a URL without password and without the values of parameters with
// names of secrets.
func (x *explanation) address(path string, t Text) {
	if len(t) == 0 {
		return
	}
	f := Field{Path: path, Origin: x.s.Origins[path]}
	f.Value, f.Masked = t.mask(false)
	if whole, ok := t.Literal(); ok {
		if v, hidden := maskURL(whole); hidden {
			f.Value, f.Masked = v, true
		}
	} else if strings.ContainsAny(f.Value, "@?") {
		f.Value, f.Masked = maskLoose(t), true
	}
	x.fields = append(x.fields, f)
}

// maskURL masks the secrets in a URL. An invalid URL is masked completely.
func maskURL(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil {
		return Masked, true
	}
	hidden := false
	if u.User != nil {
		raw, hidden = strings.Replace(raw, u.User.String()+"@", Masked+"@", 1), true
	}
	base, query, ok := strings.Cut(raw, "?")
	if !ok {
		return raw, hidden
	}
	query, fragment, hasFragment := strings.Cut(query, "#")
	parts := strings.Split(query, "&")
	for i, p := range parts {
		name, value, _ := strings.Cut(p, "=")
		if value != "" && (redact.IsSecretName(name) || redact.IsKey(value)) {
			parts[i], hidden = name+"="+Masked, true
		}
	}
	raw = base + "?" + strings.Join(parts, "&")
	if hasFragment {
		raw += "#" + fragment
	}
	return raw, hidden
}

// maskLoose masks the literals after the host of an address with references.
func maskLoose(t Text) string {
	shown, late := make(Text, len(t)), false
	for i, p := range t {
		if len(p.Sources) == 0 {
			if late {
				p.Literal = Masked
			} else if at := strings.IndexByte(p.Literal, '@'); at >= 0 {
				scheme, _, found := strings.Cut(p.Literal[:at], "://")
				if found {
					scheme += "://"
				} else {
					scheme = ""
				}
				p.Literal = scheme + Masked + p.Literal[at:]
			}
			if cut := strings.IndexByte(p.Literal, '?'); cut >= 0 {
				p.Literal, late = p.Literal[:cut]+"?"+Masked, true
			}
		}
		shown[i] = p
	}
	return shown.String()
}
