package mcpjson

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
)

// Errors of Resolve, wrapped in an *Error that names variable, server, field, file and
// line.
var (
	// ErrUnset reports a reference without value and default.
	ErrUnset = errors.New("no value")

	// ErrWithheld reports a reference to a source that the Resolver does not provide,
	// such as the environment for an untrusted file.
	ErrWithheld = errors.New("may not be read")
)

// Resolver provides values. The zero Resolver provides none: with it, Resolve fails for
// definitions that refer to anything outside of themselves, also to directories.
type Resolver struct {
	// Env looks up an environment variable like os.LookupEnv. Nil withholds the
	// environment and files of variables.
	Env func(name string) (value string, ok bool)

	// Inputs are the questions defined in the file. Input asks one of them, or an
	// undefined one that has only an ID. Nil withholds all.
	Inputs []Input
	Input  func(ctx context.Context, in Input) (string, error)

	// Root is the value of ${workspaceFolder} and its synonyms, usually the Dir of the
	// server; empty withholds it.
	Root string

	// Home is the value of ${userHome}; empty withholds it.
	Home string

	// Schemes provide values of all other schemes.
	Schemes map[Scheme]func(ctx context.Context, name string) (string, error)
}

// Resolved is a definition with all placeholders expanded, as a connection needs it. It
// contains secrets: do not show or log it.
type Resolved struct {
	// Server is the definition.
	Server *Server

	// Argv is the program and its arguments.
	Argv []string

	// Env is added to the environment of the program, as NAME=value, with increasing
	// precedence: from the file of variables, passed on, set. The rest of the
	// environment depends on InheritEnv of the definition; see BaseEnv.
	Env []string

	// Dir is the working directory; absolute unless the definition has no Dir.
	Dir string

	// Socket is the path of a unix socket, for TransportUnix or for HTTP over a socket.
	Socket string

	// URL and SSEURL are absolute, with scheme http or https.
	URL    string
	SSEURL string

	// Headers are the headers to send, including Authorization from BearerTokenEnv.
	Headers []Header

	OAuthClientID     string
	OAuthClientSecret string

	// Secrets are values that must not appear in logs and messages.
	Secrets []string
}

// Header is a header with its value.
type Header struct {
	Name   string
	Value  string
	Secret bool
}

// BaseEnv lists the variables that every program gets from the caller's environment:
// programs need them to be found and to find their files.
var BaseEnv = []string{"PATH", "HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "SystemRoot", "SYSTEMROOT"}

// maxValue bounds an expanded value. The kernel accepts no longer argument.
const maxValue = 128 << 10

// Resolve expands the placeholders of the definition once: expanded values are not
// expanded again. Only this step reads the environment, files of variables and other
// secrets, and only through r. The error is an *Error, or several joined.
func (s *Server) Resolve(ctx context.Context, r Resolver) (*Resolved, error) {
	e := expansion{ctx: ctx, r: r, s: s, out: &Resolved{Server: s}}
	switch s.Transport {
	case TransportStdio:
		e.process()
	case TransportUnix:
		e.out.Socket = e.path("socket", s.Socket)
	case TransportHTTP, TransportSSE:
		e.endpoint()
	default:
		e.fail("transport", &Error{Msg: fmt.Sprintf("unknown transport %q; allowed are stdio, unix, streamable-http and sse", clip(string(s.Transport)))})
	}
	if err := join(e.errs); err != nil {
		return nil, err
	}
	return e.out, nil
}

// ResolveAll resolves all servers that are not disabled. It skips those that fail, with
// a warning each, which suits files of other clients.
func (c *Config) ResolveAll(ctx context.Context, r Resolver) (ok []*Resolved, warnings []*Error) {
	r.Inputs = c.Inputs
	for _, s := range c.Servers {
		if s.Disabled {
			continue
		}
		one, err := s.Resolve(ctx, r)
		if err == nil {
			ok = append(ok, one)
			continue
		}
		w := &Error{File: s.File, Server: s.Name, Err: err}
		var first *Error
		if errors.As(err, &first) {
			w = first
		}
		left := *w
		left.Hint = strings.TrimPrefix(left.Hint+"; the server is left out", "; ")
		warnings = append(warnings, &left)
	}
	return ok, warnings
}

// expansion is the state of one Resolve.
type expansion struct {
	ctx  context.Context
	r    Resolver
	s    *Server
	out  *Resolved
	errs []*Error
}

func (e *expansion) fail(field string, err *Error) {
	o := e.s.Origins[field]
	err.File, err.Line, err.Column = o.File, o.Line, o.Column
	if err.File == "" {
		err.File = e.s.File
	}
	err.Server, err.Field = e.s.Name, field
	e.errs = append(e.errs, err)
}

func (e *expansion) process() {
	s := e.s
	e.out.Argv = []string{e.text("command", s.Command)}
	for i, a := range s.Args {
		e.out.Argv = append(e.out.Argv, e.text(indexed("args", i), a))
	}
	if len(s.EnvFile) > 0 {
		e.envFile()
	}
	for _, name := range s.PassEnv {
		if e.r.Env == nil {
			e.fail("passEnv", &Error{Msg: fmt.Sprintf("variable %q", clip(name)), Err: ErrWithheld})
		} else if v, ok := e.r.Env(name); ok {
			e.setEnv(name, v, redact.IsSecretName(name))
		}
	}
	for _, p := range s.Env {
		e.setEnv(p.Name, e.text("env."+p.Name, p.Value), p.Secret)
	}
	e.out.Dir = s.Dir
	if len(s.Cwd) > 0 {
		e.out.Dir = e.path("cwd", s.Cwd)
	}
}

func (e *expansion) setEnv(name, value string, secret bool) {
	e.out.Env = append(e.out.Env, name+"="+value)
	e.secret(value, secret)
}

func (e *expansion) envFile() {
	if e.r.Env == nil {
		e.fail("envFile", &Error{Msg: "the file of variables", Err: ErrWithheld})
		return
	}
	name := e.path("envFile", e.s.EnvFile)
	if name == "" {
		return
	}
	pairs, err := readEnvFile(name)
	if err != nil {
		e.fail("envFile", &Error{Msg: "read the file of variables", Err: err})
	}
	for _, p := range pairs {
		// Files of variables usually contain secrets.
		e.setEnv(p[0], p[1], true)
	}
}

func (e *expansion) endpoint() {
	s := e.s
	e.out.URL = e.address("url", s.URL)
	if len(s.SSEURL) > 0 {
		e.out.SSEURL = e.address("sseUrl", s.SSEURL)
	}
	for _, h := range s.Headers {
		field := "headers." + h.Name
		v := e.text(field, h.Value)
		if strings.ContainsAny(v, "\r\n\x00") {
			e.fail(field, &Error{Msg: "the value contains a line break, which is invalid in a header"})
		}
		secret := h.Secret || slices.Contains(sensitiveHeaders, strings.ToLower(h.Name))
		e.secret(v, secret)
		e.out.Headers = append(e.out.Headers, Header{Name: h.Name, Value: v, Secret: secret})
	}
	if s.BearerTokenEnv != "" {
		token := e.text("bearerTokenEnv", Ref(Source{SchemeEnv, s.BearerTokenEnv}))
		if strings.ContainsAny(token, "\r\n\x00") {
			e.fail("bearerTokenEnv", &Error{Msg: "the token contains a line break, which is invalid in a header"})
		}
		e.secret(token, true)
		e.out.Headers = append(e.out.Headers, Header{Name: "Authorization", Value: "Bearer " + token, Secret: true})
	}
	if s.OAuth != nil {
		e.out.OAuthClientID = e.text("oauth.clientId", s.OAuth.ClientID)
		e.out.OAuthClientSecret = e.text("oauth.clientSecret", s.OAuth.ClientSecret)
		e.secret(e.out.OAuthClientSecret, true)
	}
}

// address expands and checks an endpoint. An endpoint over a socket yields an ordinary
// URL and the socket.
func (e *expansion) address(field string, t Text) string {
	raw := strings.TrimSpace(e.text(field, t))
	if raw == "" {
		if len(e.errs) == 0 {
			e.fail(field, &Error{Msg: "the address is empty"})
		}
		return ""
	}
	u, err := url.Parse(raw)
	if err != nil {
		// err quotes the address, which may contain a password.
		e.fail(field, &Error{Msg: "the address is not a URL"})
		return ""
	}
	if pass, ok := u.User.Password(); ok {
		e.secret(pass, true)
	}
	for name, values := range u.Query() {
		for _, v := range values {
			e.secret(v, redact.IsSecretName(name))
		}
	}
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			e.fail(field, &Error{Msg: "the address has no host"})
		}
		return raw
	case "unix", "pipe":
		e.out.Socket = u.Path
		if u.Scheme == "pipe" {
			e.out.Socket = filepath.FromSlash(u.Host + u.Path)
		}
		if u.Path == "" {
			e.fail(field, &Error{Msg: fmt.Sprintf("the address begins with %s:// and has no path", u.Scheme)})
		}
		return "http://localhost/" + strings.TrimPrefix(u.Fragment, "/")
	}
	e.fail(field, &Error{Msg: fmt.Sprintf("the address begins with %q; allowed are http, https, unix and pipe", clip(u.Scheme))})
	return ""
}

// path expands a path and makes it absolute.
func (e *expansion) path(field string, t Text) string {
	p := e.text(field, t)
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(e.s.Dir, filepath.FromSlash(p))
}

// text expands one field.
func (e *expansion) text(field string, t Text) string {
	var b strings.Builder
	for _, p := range t {
		if len(p.Sources) == 0 {
			b.WriteString(p.Literal)
		} else {
			b.WriteString(e.ref(field, p.Sources))
		}
		if b.Len() > maxValue {
			e.fail(field, &Error{Msg: fmt.Sprintf("the value has more than %d bytes when expanded", maxValue)})
			return ""
		}
	}
	if strings.Contains(b.String(), "\x00") {
		e.fail(field, &Error{Msg: "the value has a NUL when expanded"})
		return ""
	}
	return b.String()
}

// ref returns the value of the first source that has one.
func (e *expansion) ref(field string, sources []Source) string {
	set, failed := false, &Error{}
	for _, src := range sources {
		v, err := e.source(src)
		if err == nil && v != "" {
			return v
		}
		set = set || err == nil
		if err != nil && failed.Err == nil {
			failed = &Error{Msg: sourceWords(src), Err: err}
			if errors.Is(err, ErrUnset) && src.Scheme == SchemeEnv {
				failed.Msg, failed.Hint = fmt.Sprintf("environment variable %q is not set and there is no default", clip(src.Name)), "set it, or write a default"
			}
		}
		if errors.Is(err, ErrWithheld) {
			break // do not fall back after an error
		}
	}
	if set && !errors.Is(failed.Err, ErrWithheld) {
		return ""
	}
	e.fail(field, failed)
	return ""
}

func sourceWords(src Source) string {
	switch src.Scheme {
	case SchemeEnv:
		return fmt.Sprintf("environment variable %q", clip(src.Name))
	case SchemeInput:
		return fmt.Sprintf("input %q", clip(src.Name))
	}
	return fmt.Sprintf("source %q", clip(src.String()))
}

// source returns the value of one source. Errors wrap ErrUnset or ErrWithheld, or come
// from the Resolver's function.
func (e *expansion) source(src Source) (string, error) {
	switch src.Scheme {
	case SchemeValue:
		return src.Name, nil
	case SchemeDir:
		return e.dir(src.Name)
	case SchemeEnv:
		if e.r.Env == nil {
			return "", ErrWithheld
		}
		v, ok := e.r.Env(src.Name)
		if !ok {
			return "", ErrUnset
		}
		e.secret(v, redact.IsSecretName(src.Name))
		return v, nil
	case SchemeInput:
		if e.r.Input == nil {
			return "", ErrWithheld
		}
		in := Input{ID: src.Name}
		if i := slices.IndexFunc(e.r.Inputs, func(in Input) bool { return in.ID == src.Name }); i >= 0 {
			in = e.r.Inputs[i]
		}
		v, err := e.r.Input(e.ctx, in)
		e.secret(v, in.Password)
		return v, err
	}
	f := e.r.Schemes[src.Scheme]
	if f == nil {
		return "", ErrWithheld
	}
	v, err := f(e.ctx, src.Name)
	e.secret(v, true)
	return v, err
}

func (e *expansion) dir(name string) (string, error) {
	v := ""
	switch name {
	case DirRoot:
		v = e.r.Root
	case DirRootName:
		if e.r.Root != "" {
			v = filepath.Base(e.r.Root)
		}
	case DirHome:
		v = e.r.Home
	case DirSeparator:
		v = string(filepath.Separator)
	}
	if v == "" {
		return "", ErrWithheld
	}
	return v, nil
}

// minSecret is the minimum length of values that are masked in messages. Masking
// shorter ones would make messages unreadable.
const minSecret = 4

func (e *expansion) secret(v string, is bool) {
	if is && len(v) >= minSecret && !slices.Contains(e.out.Secrets, v) {
		e.out.Secrets = append(e.out.Secrets, v)
	}
}
