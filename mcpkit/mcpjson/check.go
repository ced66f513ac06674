package mcpjson

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// maxName bounds the names of servers, which become parts of tool names.
const maxName = 128

// maxServers bounds a configuration. Real ones have dozens of servers.
const maxServers = 1000

// server reads one definition. It returns nil, and adds to errs, if the definition is
// invalid.
func (r *reader) server(m member) *Server {
	r.errs = nil
	r.s = &Server{Name: m.name, Dir: r.opts.Root, Dialect: r.spec.dialect, File: r.doc.file, Origins: make(map[string]Origin)}
	r.at = strings.Join(append(slices.Clone(r.spec.root), m.name), ".")
	r.set = make(map[string]string)
	r.word, r.argv, r.args = nil, nil, nil

	r.checkName(m)
	known := r.spec.fields.names()
	r.members(m.value, "", known, func(name string, v *node) bool {
		f, ok := r.spec.fields[name]
		switch {
		case f != nil && !r.absent(v):
			f.read(r, name, v)
		case f == nil && !r.spec.strict:
			keep(r, name, v)
		}
		return ok
	})
	if len(r.errs) == 0 {
		r.argumentsOf()
		r.transport(m.value)
	}
	if len(r.errs) == 0 {
		r.checkFields(m.value)
	}
	s := r.s
	r.s = nil
	if len(r.errs) > 0 {
		return nil
	}
	return s
}

func (r *reader) checkName(m member) {
	n := &node{offset: m.offset}
	switch name := m.name; {
	case strings.TrimSpace(name) == "":
		r.fail(n, "", "a server has no name")
	case len(name) > maxName:
		r.fail(n, "", "the name has %d bytes, more than %d", len(name), maxName)
	case r.spec.names != nil && !r.spec.names().MatchString(name):
		r.fail(n, "", "the name may consist of letters, digits, '_' and '-' only")
	case strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }):
		r.fail(n, "", "the name contains unprintable characters")
	case name != strings.TrimSpace(name):
		r.fail(n, "", "the name begins or ends with a space")
	}
}

// argumentsOf combines the program and its arguments, in whichever form they were
// written.
func (r *reader) argumentsOf() {
	key := r.set["command"]
	if r.argv != nil {
		all := r.texts(r.argv, key, key)
		for i := range all {
			field := indexed("args", i-1)
			if i == 0 {
				field = "command"
			}
			r.s.Origins[field] = r.s.Origins[indexed(key, i)]
		}
		for i := range all {
			delete(r.s.Origins, indexed(key, i))
		}
		if len(all) > 0 {
			r.s.Command, r.s.Args = all[0], all[1:]
		}
		if len(r.s.Args) == 0 {
			r.s.Args = nil
		}
	}
	if r.args == nil {
		return
	}
	before := len(r.s.Args)
	rest := r.texts(r.args, "args", "args")
	if before == 0 {
		r.s.Args = rest
		return
	}
	places := make(map[string]Origin)
	for i := range rest {
		places[indexed("args", before+i)] = r.s.Origins[indexed("args", i)]
	}
	// Arguments in the command come first and have no origin of their own.
	for i := range min(before, len(rest)) {
		line, column := r.doc.place(r.argv.elems[i+1].offset)
		places[indexed("args", i)] = Origin{File: r.doc.file, Line: line, Column: column, Key: r.at + "." + indexed(key, i+1)}
	}
	maps.Copy(r.s.Origins, places)
	r.s.Args = append(r.s.Args, rest...)
}

// transport determines the transport of the server.
func (r *reader) transport(n *node) {
	s := r.s
	has := func(field string) bool { _, ok := r.set[field]; return ok }
	said, named := meaning{}, r.word != nil
	if named {
		var ok bool
		if said, ok = r.spec.words[r.word.text]; !ok && !r.spec.strict {
			said, ok = transportWords[r.word.text]
		}
		if !ok {
			words := r.words()
			e := r.fail(r.word, r.set["transport"], "found %q, want one of %s", clip(r.word.text), strings.Join(words, ", "))
			if near := nearest.Of(r.word.text, words); near != "" {
				e.Hint = fmt.Sprintf("did you mean %q?", near)
			}
			return
		}
	}
	ways := 0
	for _, field := range []string{"command", "url", "socket"} {
		if has(field) {
			ways++
		}
	}
	switch {
	case ways == 0:
		r.fail(n, "", "it has neither %q nor an address to connect to", r.wordFor("command"))
		return
	case ways > 1 && !named:
		r.fail(n, "", "it has both a command and an address").Hint = "remove one of them"
		return
	case r.spec.strict && !named:
		r.fail(n, "transport", "it is missing").Hint = "allowed are " + strings.Join(r.words(), ", ")
		return
	}
	if !named {
		switch {
		case has("command"):
			said.transport = TransportStdio
		case has("socket"):
			said.transport = TransportUnix
		default:
			said = meaning{r.spec.bareURL, r.spec.fallback}
			if r.set["url"] == "httpUrl" {
				said = meaning{TransportHTTP, false}
			}
		}
		s.Origins["transport"] = Origin{File: s.File, Key: r.at, Note: "not said; follows from the other fields"}
	}
	s.Transport, s.SSEFallback = said.transport, said.fallback
	need := map[Transport]string{TransportStdio: "command", TransportUnix: "socket"}[s.Transport]
	if need == "" {
		need = "url"
	}
	if !has(need) {
		r.fail(n, r.wordFor(need), "it is missing, and %s needs it", s.Transport)
	}
}

// wordFor returns the dialect's name of a field.
func (r *reader) wordFor(field string) string {
	own := map[string]string{"command": "argv", "socket": "unix_path"}
	if w, ok := own[field]; ok && (r.spec.strict || field == "socket") {
		return w
	}
	return field
}

// words returns the transports that the dialect can name.
func (r *reader) words() []string {
	if r.spec.strict {
		return slices.Sorted(maps.Keys(r.spec.words))
	}
	return slices.Sorted(maps.Keys(transportWords))
}

// belongs checks fields that only some transports have.
var belongs = map[string][]Transport{
	"command": {TransportStdio}, "args": {TransportStdio}, "env": {TransportStdio}, "passEnv": {TransportStdio},
	"inheritEnv": {TransportStdio}, "envFile": {TransportStdio}, "cwd": {TransportStdio}, "stdoutLog": {TransportStdio},
	"socket": {TransportUnix},
	"url":    {TransportHTTP, TransportSSE}, "sseUrl": {TransportHTTP}, "headers": {TransportHTTP, TransportSSE},
	"bearerTokenEnv": {TransportHTTP, TransportSSE}, "oauth": {TransportHTTP, TransportSSE},
}

func (r *reader) checkFields(n *node) {
	s := r.s
	for _, field := range slices.Sorted(maps.Keys(r.set)) {
		top, _, _ := strings.Cut(field, ".")
		if of := belongs[top]; of == nil || slices.Contains(of, s.Transport) {
			continue
		}
		key := r.set[field]
		at := n.get(strings.SplitN(key, ".", 2)[0])
		if at == nil {
			at = n
		}
		if r.spec.strict || top == "command" || top == "url" || top == "socket" {
			r.fail(at, key, "it does not belong to a server of transport %s", s.Transport)
			continue
		}
		r.warn(at, key, "it does not belong to a server of transport %s and has no effect", s.Transport)
		s.drop(top)
	}
	if s.Transport == TransportStdio && len(s.Command) == 0 {
		r.fail(n, r.set["command"], "the command is empty")
	}
	if s.Transport == TransportUnix && len(s.Socket) == 0 {
		r.fail(n, r.set["socket"], "the path is empty")
	}
	if r.spec.strict && (s.SSEURL != nil) != (r.set["url"] == "http_url") {
		r.fail(n, "url", "there must be either url, or both sse_url and http_url")
	}
	r.checkEnv(n)
	r.checkURL(n, "url", s.URL)
	r.checkURL(n, "sseUrl", s.SSEURL)
	r.checkHeaders(n)
	r.checkDialect(n)
}

// drop clears a field that has no effect.
func (s *Server) drop(field string) {
	switch field {
	case "args":
		s.Args = nil
	case "env":
		s.Env = nil
	case "passEnv":
		s.PassEnv = nil
	case "inheritEnv":
		s.InheritEnv = false
	case "envFile":
		s.EnvFile = nil
	case "cwd":
		s.Cwd = nil
	case "stdoutLog":
		s.StdoutLog = nil
	case "sseUrl":
		s.SSEURL = nil
	case "headers":
		s.Headers = nil
	case "bearerTokenEnv":
		s.BearerTokenEnv = ""
	case "oauth":
		s.OAuth = nil
	}
	maps.DeleteFunc(s.Origins, func(path string, _ Origin) bool {
		return path == field || strings.HasPrefix(path, field+".") || strings.HasPrefix(path, field+"[")
	})
}

func (r *reader) checkEnv(n *node) {
	key := r.set["env"]
	names := slices.Clone(r.s.PassEnv)
	for _, p := range r.s.Env {
		names = append(names, p.Name)
		if r.spec.strict && len(p.Value) == 0 {
			r.fail(n.at(key, p.Name), key+"."+p.Name, "the value is empty")
		}
	}
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			r.fail(n, key, "%q is not a valid name of a variable", clip(name))
		}
	}
}

// checkURL checks the parts of an address that are known before expansion.
func (r *reader) checkURL(n *node, field string, t Text) {
	key, ok := r.set[field]
	if !ok {
		return
	}
	at := n.get(key)
	whole, literal := t.Literal()
	switch {
	case len(t) == 0:
		r.fail(at, key, "the address is empty")
	case literal:
		u, err := url.Parse(strings.TrimSpace(whole))
		if err != nil || u.Scheme == "" {
			r.fail(at, key, "invalid URL").Hint = "begin it with https://"
		} else if !slices.Contains([]string{"http", "https", "unix", "pipe"}, u.Scheme) {
			r.fail(at, key, "the address begins with %q; allowed are http, https, unix and pipe", clip(u.Scheme))
		}
	}
}

// headerName matches the names of headers (RFC 9110).
var headerName = lazyregexp.New("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

func (r *reader) checkHeaders(n *node) {
	s := r.s
	seen := make(map[string]bool)
	kept := s.Headers[:0]
	for _, h := range s.Headers {
		o := s.Origins["headers."+h.Name]
		at := func(format string, args ...any) {
			e := r.fail(n, "headers."+h.Name, format, args...)
			e.Line, e.Column = o.Line, o.Column
		}
		switch {
		case !headerName().MatchString(h.Name):
			at("%q cannot be the name of a header", clip(h.Name))
		case seen[strings.ToLower(h.Name)]:
			at("the header is there twice; upper and lower case make no difference")
		case hasControl(h.Value):
			at("the value has a line break or another control character")
		}
		seen[strings.ToLower(h.Name)] = true
		if name, ok := bearerEnv(h); ok && s.BearerTokenEnv == "" {
			s.BearerTokenEnv = name
			o.Note = "the header " + h.Name
			s.Origins["bearerTokenEnv"] = o
			delete(s.Origins, "headers."+h.Name)
			continue
		}
		kept = append(kept, h)
	}
	if s.Headers = kept; len(kept) == 0 {
		s.Headers = nil
	}
	if name := s.BearerTokenEnv; name != "" {
		if variable().FindString(name) != name {
			r.fail(n, r.set["bearerTokenEnv"], "found a string that is not the name of an environment variable").Hint = "it takes the name of a variable, not the token"
		}
		for _, h := range s.Headers {
			if isAuthorization(h.Name) {
				r.fail(n, "headers."+h.Name, "there is also a variable for the token; only one of them is allowed")
			}
		}
	}
}

func hasControl(t Text) bool {
	for _, p := range t {
		if strings.ContainsFunc(p.Literal, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return true
		}
	}
	return false
}

// bearerEnv recognizes a header that BearerTokenEnv can express.
func bearerEnv(h Pair) (name string, ok bool) {
	t := h.Value
	if !isAuthorization(h.Name) || len(t) != 2 || t[0].Literal != "Bearer " || len(t[1].Sources) != 1 || t[1].Sources[0].Scheme != SchemeEnv {
		return "", false
	}
	return t[1].Sources[0].Name, true
}

// checkDialect applies the rules of a single dialect.
func (r *reader) checkDialect(n *node) {
	s := r.s
	if s.StdoutLog != nil {
		r.checkLog(n)
	}
	if r.spec.dialect != SEP {
		return
	}
	if r.word == nil {
		r.warn(n, "type", "it is missing").Hint = "the portable form wants stdio, sse or streamable-http"
	}
	if s.OAuth != nil && (s.BearerTokenEnv != "" || slices.ContainsFunc(s.Headers, func(h Pair) bool { return isAuthorization(h.Name) })) {
		r.fail(n, "oauth", "there is also an Authorization header; only one of them is allowed")
	}
	for field, limit := range map[string]int{"title": 100, "description": 500} {
		if v := n.get(field); v != nil && utf8.RuneCountInString(v.text) > limit {
			r.fail(v, field, "it has more than %d characters", limit)
		}
	}
}

// checkLog checks that the log of a server is below the root.
func (r *reader) checkLog(n *node) {
	p, v := r.s.StdoutLog.Path, n.at("stdout_log", "path")
	if v == nil {
		v = n
	}
	clean := path.Clean(strings.ReplaceAll(p, "\\", "/"))
	switch {
	case p == "":
		r.fail(v, "stdout_log.path", "it is missing or empty")
	case slices.Contains(strings.Split(strings.ReplaceAll(p, "\\", "/"), "/"), ".."):
		r.fail(v, "stdout_log.path", "it has a \"..\"").Hint = "name a path below the root"
	case (path.IsAbs(clean) || isDrive(clean)) && !r.opts.AllowLogOutside:
		r.fail(v, "stdout_log.path", "it leads out of the root").Hint = "name a path below the root, or allow logs outside of it"
	}
}

// isDrive recognizes absolute paths of Windows on every system.
func isDrive(p string) bool { return len(p) > 1 && p[1] == ':' }
