package mcpjson

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// readField reads one member of a server.
type readField func(r *reader, key string, n *node)

// fields are the members of a server that a dialect knows.
type fields map[string]readField

func (f fields) names() []string { return slices.Sorted(maps.Keys(f)) }

// with is f with some members more, or read otherwise.
func (f fields) with(more fields) fields {
	all := maps.Clone(f)
	maps.Copy(all, more)
	return all
}

// The fields below are what servers have in any dialect; a dialect takes those
// that it knows, under the names that it has for them.

func textField(field string, at func(*Server) *Text) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, field, key) {
			*at(r.s) = r.text(n, field, key)
		}
	}
}

func plainField(field string, at func(*Server) *string) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, field, key) {
			r.origin(field, key, n)
			*at(r.s) = r.string(n, key)
		}
	}
}

func boolField(field string, at func(*Server) *bool) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, field, key) {
			r.origin(field, key, n)
			*at(r.s) = r.bool(n, key)
		}
	}
}

func stringsField(field string, at func(*Server) *[]string) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, field, key) {
			*at(r.s) = r.strings(n, field, key)
		}
	}
}

func pairsField(field string, at func(*Server) *[]Pair) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, field, key) {
			*at(r.s) = append(*at(r.s), r.pairs(n, field, key)...)
		}
	}
}

func durationField(field string, unit time.Duration, at func(*Server) *time.Duration) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, field, key) {
			*at(r.s) = r.duration(n, field, key, unit)
		}
	}
}

var (
	readTitle       = plainField("title", func(s *Server) *string { return &s.Title })
	readDescription = plainField("description", func(s *Server) *string { return &s.Description })
	readEnv         = pairsField("env", func(s *Server) *[]Pair { return &s.Env })
	readEnvFileKey  = textField("envFile", func(s *Server) *Text { return &s.EnvFile })
	readCwd         = textField("cwd", func(s *Server) *Text { return &s.Cwd })
	readURL         = textField("url", func(s *Server) *Text { return &s.URL })
	readSSEURL      = textField("sseUrl", func(s *Server) *Text { return &s.SSEURL })
	readSocket      = textField("socket", func(s *Server) *Text { return &s.Socket })
	readHeaders     = pairsField("headers", func(s *Server) *[]Pair { return &s.Headers })
	readBearerEnv   = plainField("bearerTokenEnv", func(s *Server) *string { return &s.BearerTokenEnv })
	readInherit     = boolField("inheritEnv", func(s *Server) *bool { return &s.InheritEnv })
	readDisabled    = boolField("disabled", func(s *Server) *bool { return &s.Disabled })
	readRequired    = boolField("required", func(s *Server) *bool { return &s.Required })
	readAllow       = stringsField("tools.allow", func(s *Server) *[]string { return &s.Tools.Allow })
	readDeny        = stringsField("tools.deny", func(s *Server) *[]string { return &s.Tools.Deny })
	requestMillis   = durationField("timeouts.request", time.Millisecond, requestTimeout)
	requestSeconds  = durationField("timeouts.request", time.Second, requestTimeout)
	connectMillis   = durationField("timeouts.connect", time.Millisecond, connectTimeout)
	connectSeconds  = durationField("timeouts.connect", time.Second, connectTimeout)
)

func requestTimeout(s *Server) *time.Duration { return &s.Timeouts.Request }
func connectTimeout(s *Server) *time.Duration { return &s.Timeouts.Connect }

// readEnabled is readDisabled the other way round.
func readEnabled(r *reader, key string, n *node) {
	if r.once(n, "disabled", key) {
		r.origin("disabled", key, n)
		r.s.Disabled = !r.bool(n, key)
		r.note("disabled", "the opposite of "+key)
	}
}

func readType(r *reader, key string, n *node) {
	if r.once(n, "transport", key) {
		r.origin("transport", key, n)
		r.string(n, key)
		r.word = n
	}
}

// readCommand takes the program, alone or with its arguments.
func readCommand(r *reader, key string, n *node) {
	if !r.once(n, "command", key) {
		return
	}
	if n.kind == array {
		r.argv = n
		return
	}
	r.s.Command = r.text(n, "command", key)
}

func readArgs(r *reader, key string, n *node) {
	if r.once(n, "args", key) {
		r.args = n
	}
}

// readEnvHeaders takes headers whose values are names of variables.
func readEnvHeaders(r *reader, key string, n *node) {
	for _, m := range r.entries(n, key) {
		at, field := key+"."+m.name, "headers."+m.name
		name := r.string(m.value, at)
		if variable.FindString(name) != name || name == "" {
			r.fail(m.value, at, "found a string that is no name of an environment variable")
			continue
		}
		r.origin(field, at, m.value)
		r.note(field, "the value of the variable")
		if r.set["headers"] == "" {
			r.set["headers"] = key
		}
		r.s.Headers = append(r.s.Headers, Pair{Name: m.name, Value: Ref(Source{SchemeEnv, name}), Secret: isSecretName(m.name)})
	}
}

// readPassEnv takes names of variables, or objects that name one.
func readPassEnv(r *reader, key string, n *node) {
	if !r.once(n, "passEnv", key) {
		return
	}
	r.origin("passEnv", key, n)
	for i, e := range r.list(n, key) {
		name := e
		if e.kind == object && e.get("name") != nil {
			name = e.get("name")
			if from := e.get("source"); from != nil && from.text != "local" {
				r.warn(from, indexed(key, i)+".source", "only variables of this machine can be passed on")
			}
		}
		r.s.PassEnv = append(r.s.PassEnv, r.string(name, indexed(key, i)))
	}
}

// oauthFields are the words that dialects have for what OAuth holds.
var oauthFields = map[string]string{
	"clientId": "clientId", "client_id": "clientId", "CLIENT_ID": "clientId",
	"clientSecret": "clientSecret", "client_secret": "clientSecret", "CLIENT_SECRET": "clientSecret",
	"scopes": "scopes", "scope": "scopes",
	"redirectUri": "redirectUri", "redirectUrl": "redirectUri", "redirect_uri": "redirectUri",
	"callbackPort":          "callbackPort",
	"authServerMetadataUrl": "metadataUrl",
	"clientMetadataUrl":     "clientMetadataUrl",
	"resource":              "resource", "oauth_resource": "resource",
	"enabled": "enabled",
}

// login is the OAuth of the server, made when first asked for.
func (r *reader) login() *OAuth {
	if r.s.OAuth == nil {
		r.s.OAuth = &OAuth{}
	}
	return r.s.OAuth
}

// readOAuth takes an object of oauthFields, or a switch.
func readOAuth(r *reader, key string, n *node) {
	if !r.once(n, "oauth", key) {
		return
	}
	if n.kind == boolean {
		r.origin("oauth.disabled", key, n)
		r.login().Disabled = n.text == "false"
		return
	}
	r.login()
	r.members(n, key, slices.Sorted(maps.Keys(oauthFields)), func(name string, v *node) bool {
		what, ok := oauthFields[name]
		if ok && !r.absent(v) {
			r.oauthField(what, key+"."+name, v)
		}
		if !ok {
			r.s.OAuth.Extra = extra(r.s.OAuth.Extra, name, v)
		}
		return ok
	})
}

func (r *reader) oauthField(what, at string, v *node) {
	o, field := r.login(), "oauth."+what
	r.origin(field, at, v)
	switch what {
	case "clientId":
		o.ClientID = r.text(v, field, at)
	case "clientSecret":
		o.ClientSecret = r.text(v, field, at)
	case "scopes":
		o.Scopes = r.scopes(v, field, at)
	case "redirectUri":
		o.RedirectURL = r.string(v, at)
	case "callbackPort":
		o.CallbackPort = int(r.int(v, at, 1, 65535))
	case "metadataUrl":
		o.MetadataURL = r.string(v, at)
	case "clientMetadataUrl":
		o.ClientMetadataURL = r.string(v, at)
	case "resource":
		o.Resource = r.string(v, at)
	case "enabled":
		o.Disabled = !r.bool(v, at)
	}
}

// scopes takes a list, or one string with spaces between.
func (r *reader) scopes(v *node, field, at string) []string {
	if v.kind == text && !r.spec.strict {
		return strings.Fields(v.text)
	}
	if list := r.strings(v, field, at); len(list) > 0 {
		return list
	}
	return nil
}

// oauthOutside takes a member of OAuth that a dialect has beside it.
func oauthOutside(what string) readField {
	return func(r *reader, key string, n *node) {
		if r.once(n, "oauth."+what, key) {
			r.oauthField(what, key, n)
		}
	}
}

// readRoots takes a list of {uri, name}.
func readRoots(r *reader, key string, n *node) {
	if r.once(n, "roots", key) {
		r.origin("roots", key, n)
		r.s.Roots = r.roots(n, key)
	}
}

func (r *reader) roots(n *node, key string) []Root {
	list := []Root{}
	for i, e := range r.list(n, key) {
		var root Root
		at := indexed(key, i)
		r.members(e, at, []string{"uri", "name"}, func(name string, v *node) bool {
			switch name {
			case "uri":
				root.URI = r.string(v, at+".uri")
			case "name":
				root.Name = r.string(v, at+".name")
			default:
				return false
			}
			return true
		})
		if root.URI == "" && e.kind == object {
			r.fail(e, at+".uri", "it is missing or empty")
		}
		list = append(list, root)
	}
	return list
}

// refuse is for a field that must not be used.
func refuse(msg, hint string) readField {
	return func(r *reader, key string, n *node) { r.fail(n, key, "%s", msg).Hint = hint }
}

// ignore is for a field that the client itself ignores: it is kept, and said.
func ignore(msg, hint string) readField {
	return func(r *reader, key string, n *node) {
		r.warn(n, key, "%s", msg).Hint = hint
		keep(r, key, n)
	}
}

// keep is for what is none of our business.
func keep(r *reader, key string, n *node) {
	r.origin("extra."+key, key, n)
	r.s.Extra = extra(r.s.Extra, key, n)
}

// readAuth takes Cursor's object of a static client; a word, as other clients
// have it, is kept.
func readAuth(r *reader, key string, n *node) {
	if n.kind != object {
		keep(r, key, n)
		return
	}
	readOAuth(r, key, n)
}

// readToolList takes the list that Copilot CLI has; of another kind it is none
// of ours.
func readToolList(r *reader, key string, n *node) {
	if n.kind != array {
		keep(r, key, n)
		return
	}
	readAllow(r, key, n)
}

func readStdoutLog(r *reader, key string, n *node) {
	if !r.once(n, "stdoutLog", key) {
		return
	}
	r.origin("stdoutLog", key, n)
	log := &StdoutLog{MaxBytesPerPart: defaultLogPart, MaxParts: defaultLogParts}
	r.members(n, key, []string{"path", "max_bytes_per_part", "max_parts"}, func(name string, v *node) bool {
		at := key + "." + name
		switch name {
		case "path":
			log.Path = r.string(v, at)
		case "max_bytes_per_part":
			log.MaxBytesPerPart = r.int(v, at, 1, 1<<40)
		case "max_parts":
			log.MaxParts = int(r.int(v, at, 0, 1<<20))
		default:
			return false
		}
		return true
	})
	r.s.StdoutLog = log
}

// What a log keeps if the file does not say: 32 MiB.
const (
	defaultLogPart  = 1 << 20
	defaultLogParts = 32
)
