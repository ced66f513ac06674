package mcpjson

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// The functions below say what the members of a server are called in each
// dialect. What none of them writes is found by reading what was written.

func writeV1(w *writer) {
	s := w.s
	switch s.Transport {
	case TransportStdio:
		w.string("transport", "stdio")
		w.argv("argv")
		w.flag("inherit_env", s.InheritEnv)
		// An empty value is refused when read.
		s.Env = slices.DeleteFunc(slices.Clone(s.Env), func(p Pair) bool { return len(p.Value) == 0 })
		w.env("env")
		if l := s.StdoutLog; l != nil {
			n := newObject()
			n.put("path", newString(l.Path))
			n.put("max_bytes_per_part", newInt(l.MaxBytesPerPart))
			n.put("max_parts", newInt(int64(l.MaxParts)))
			w.out.put("stdout_log", n)
		}
	case TransportUnix:
		w.string("transport", "unix")
		w.text("unix_path", "socket", s.Socket)
	case TransportHTTP:
		w.string("transport", "streamable_http")
		if len(s.SSEURL) > 0 {
			w.text("sse_url", "sseUrl", s.SSEURL)
			w.text("http_url", "url", s.URL)
		} else {
			w.text("url", "url", s.URL)
		}
		w.string("bearer_token_env_var", s.BearerTokenEnv)
		w.pairs("http_headers", "headers", s.Headers)
	default:
		w.leave("transport", "%s has no transport %s", w.spec.title, s.Transport)
	}
}

// unixOut leaves out what only the strict schema has.
func (w *writer) unixOut() bool {
	if w.s.Transport == TransportUnix {
		w.leave("transport", "%s has no transport unix", w.spec.title)
	}
	return w.left
}

func writeClaudeCode(w *writer) {
	if w.unixOut() {
		return
	}
	words := map[Transport]string{TransportStdio: "stdio", TransportHTTP: "http", TransportSSE: "sse"}
	w.string("type", words[w.s.Transport])
	if w.s.Transport == TransportStdio {
		w.program()
		w.env("env")
	} else {
		w.text("url", "url", w.s.URL)
		w.headers("headers")
		w.oauth("oauth", "clientId", "clientId", "callbackPort", "callbackPort", "scopes", "scope", "authServerMetadataUrl", "metadataUrl")
	}
	w.millis("timeout", w.s.Timeouts.Request)
}

func writeClaudeDesktop(w *writer) {
	if w.s.Transport != TransportStdio {
		w.leave("transport", "%s runs programs only, and this one is reached by %s", w.spec.title, w.s.Transport)
		return
	}
	w.program()
	w.env("env")
}

func writeCursor(w *writer) {
	if w.unixOut() {
		return
	}
	if !w.http() {
		w.string("type", "stdio")
		w.program()
		w.env("env")
		w.text("envFile", "envFile", w.s.EnvFile)
		return
	}
	w.text("url", "url", w.s.URL)
	w.headers("headers")
	w.oauth("auth", "CLIENT_ID", "clientId", "CLIENT_SECRET", "clientSecret", "scopes", "scopes")
}

func writeVSCode(w *writer) {
	if w.unixOut() {
		return
	}
	words := map[Transport]string{TransportStdio: "stdio", TransportHTTP: "http", TransportSSE: "sse"}
	w.string("type", words[w.s.Transport])
	if w.http() {
		w.text("url", "url", w.s.URL)
		w.headers("headers")
		return
	}
	w.program()
	w.env("env")
	w.text("envFile", "envFile", w.s.EnvFile)
	w.text("cwd", "cwd", w.s.Cwd)
}

func writeCodex(w *writer) {
	s := w.s
	switch s.Transport {
	case TransportStdio:
		w.program()
		writeCodexEnv(w)
		w.text("cwd", "cwd", s.Cwd)
	case TransportHTTP:
		w.text("url", "url", s.URL)
		w.string("bearer_token_env_var", s.BearerTokenEnv)
		fixed, fromEnv := splitHeaders(s.Headers)
		w.pairs("http_headers", "headers", fixed)
		if len(fromEnv) > 0 {
			n := newObject()
			for _, p := range fromEnv {
				n.put(p.Name, newString(p.Value[0].Sources[0].Name))
			}
			w.out.put("env_http_headers", n)
		}
		if o := s.OAuth; o != nil && !o.Disabled {
			if len(o.ClientID) > 0 || o.Scopes == nil && o.Resource == "" {
				w.oauth("oauth", "client_id", "clientId")
			}
			w.strings("scopes", o.Scopes)
			w.string("oauth_resource", o.Resource)
		}
	default:
		w.leave("transport", "%s has no transport %s", w.spec.title, s.Transport)
		return
	}
	if s.Disabled {
		w.out.put("enabled", newBool(false))
	}
	w.flag("required", s.Required)
	w.strings("enabled_tools", s.Tools.Allow)
	w.strings("disabled_tools", s.Tools.Deny)
	w.seconds("startup_timeout_sec", s.Timeouts.Connect)
	w.seconds("tool_timeout_sec", s.Timeouts.Request)
}

// writeCodexEnv passes on what stands for the variable of the same name.
func writeCodexEnv(w *writer) {
	pass := w.s.PassEnv
	var fixed []Pair
	for _, p := range w.s.Env {
		if len(p.Value) == 1 && len(p.Value[0].Sources) == 1 && p.Value[0].Sources[0] == (Source{SchemeEnv, p.Name}) {
			pass = append(pass[:len(pass):len(pass)], p.Name)
			w.lose("env."+p.Name, "%s passes the variable on as it is, and leaves it out if it is not set", w.spec.title)
			w.said["passEnv"] = true
		} else {
			fixed = append(fixed, p)
		}
	}
	w.strings("env_vars", pass)
	w.pairs("env", "env", fixed)
}

// splitHeaders takes those apart whose value is just a variable.
func splitHeaders(all []Pair) (fixed, fromEnv []Pair) {
	for _, p := range all {
		if len(p.Value) == 1 && len(p.Value[0].Sources) == 1 && p.Value[0].Sources[0].Scheme == SchemeEnv {
			fromEnv = append(fromEnv, p)
		} else {
			fixed = append(fixed, p)
		}
	}
	return fixed, fromEnv
}

func writeGemini(w *writer) {
	s := w.s
	switch {
	case w.unixOut():
		return
	case s.Transport == TransportStdio:
		w.program()
		w.env("env")
		w.text("cwd", "cwd", s.Cwd)
	case s.Transport == TransportSSE:
		w.text("url", "url", s.URL)
	default:
		w.text("httpUrl", "url", s.URL)
	}
	if w.http() {
		w.headers("headers")
		w.oauth("oauth", "clientId", "clientId", "clientSecret", "clientSecret", "scopes", "scopes", "redirectUri", "redirectUri")
		if s.OAuth != nil && s.OAuth.Disabled {
			off := newObject()
			off.put("enabled", newBool(false))
			w.out.put("oauth", off)
		}
	}
	w.string("description", s.Description)
	w.millis("timeout", s.Timeouts.Request)
	w.strings("includeTools", s.Tools.Allow)
	w.strings("excludeTools", s.Tools.Deny)
}

func writeOpenCode(w *writer) {
	if openCode(w); w.s.Disabled && !w.left {
		w.out.put("enabled", newBool(false))
	}
}

func writeOpenCode2(w *writer) {
	if openCode(w); w.left {
		return
	}
	w.text("cwd", "cwd", w.s.Cwd)
	w.flag("disabled", w.s.Disabled)
}

func openCode(w *writer) {
	if w.unixOut() {
		return
	}
	if w.http() {
		w.string("type", "remote")
		w.text("url", "url", w.s.URL)
		w.headers("headers")
		w.oauth("oauth", "clientId", "clientId", "clientSecret", "clientSecret", "scope", "scope", "redirectUri", "redirectUri")
		if o := w.s.OAuth; o != nil && o.Disabled {
			w.out.put("oauth", newBool(false))
		}
	} else {
		w.string("type", "local")
		w.argv("command")
		w.env("environment")
	}
	w.millis("timeout", w.s.Timeouts.Connect)
}

func writeWindsurf(w *writer) {
	if w.unixOut() {
		return
	}
	if w.http() {
		w.text("serverUrl", "url", w.s.URL)
		w.headers("headers")
	} else {
		w.program()
		w.env("env")
	}
	w.flag("disabled", w.s.Disabled)
	w.strings("disabledTools", w.s.Tools.Deny)
}

func writeCline(w *writer) {
	if w.unixOut() {
		return
	}
	words := map[Transport]string{TransportStdio: "stdio", TransportHTTP: "streamableHttp", TransportSSE: "sse"}
	w.string("type", words[w.s.Transport])
	if w.http() {
		w.text("url", "url", w.s.URL)
		w.headers("headers")
	} else {
		w.program()
		w.env("env")
		w.text("cwd", "cwd", w.s.Cwd)
	}
	w.flag("disabled", w.s.Disabled)
	w.strings("disabledTools", w.s.Tools.Deny)
	w.seconds("timeout", w.s.Timeouts.Request)
}

func writeSEP(w *writer) {
	if w.unixOut() {
		return
	}
	for _, f := range []struct {
		key, value string
		limit      int
	}{{"title", w.s.Title, 100}, {"description", w.s.Description, 500}} {
		if utf8.RuneCountInString(f.value) > f.limit {
			w.lose(f.key, "%s allows %d characters; it is left out", w.spec.title, f.limit)
			continue
		}
		w.string(f.key, f.value)
	}
	w.string("type", string(w.s.Transport))
	if w.http() {
		w.text("url", "url", w.s.URL)
		w.headers("headers")
		if h := w.out.get("headers"); w.s.OAuth != nil && h != nil && slices.ContainsFunc(h.names(), isAuthorization) {
			w.lose("oauth", "%s does not allow it beside an Authorization header; it is left out", w.spec.title)
			return
		}
		w.oauth("oauth", "clientId", "clientId", "scopes", "scopes", "redirectUri", "redirectUri")
		return
	}
	w.program()
	w.env("env")
}

func isAuthorization(name string) bool { return strings.EqualFold(name, "authorization") }
