package mcpjson

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// These functions write the members of a server in each dialect, in order. Fields that
// none of them writes are found by reading the result.

func writeV1(w *writer) {
	s := w.s
	switch s.Transport {
	case TransportStdio:
		w.string("transport", "stdio")
		w.argv("argv")
		w.put("inherit_env")
		// Reading refuses an empty value.
		s.Env = slices.DeleteFunc(slices.Clone(s.Env), func(p Pair) bool { return len(p.Value) == 0 })
		w.put("env", "stdout_log")
	case TransportUnix:
		w.string("transport", "unix")
		w.put("unix_path")
	case TransportHTTP:
		w.string("transport", "streamable_http")
		if len(s.SSEURL) > 0 {
			w.put("sse_url", "http_url")
		} else {
			w.put("url")
		}
		w.put("bearer_token_env_var")
		w.pairs("http_headers", "headers", s.Headers)
	default:
		w.leave("transport", "%s has no transport %s", w.spec.title, s.Transport)
	}
}

// unixOut omits what only the strict schema has.
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
	w.transport("type", "stdio", "http", "sse")
	if w.http() {
		w.put("url", "headers")
		w.oauth("oauth", "clientId", "callbackPort", "scopes", "authServerMetadataUrl")
	} else {
		w.put("command", "args", "env")
	}
	w.put("timeout")
}

func writeClaudeDesktop(w *writer) {
	if w.s.Transport != TransportStdio {
		w.leave("transport", "%s runs programs only, and this one is reached by %s", w.spec.title, w.s.Transport)
		return
	}
	w.put("command", "args", "env")
}

func writeCursor(w *writer) {
	if w.unixOut() {
		return
	}
	if !w.http() {
		w.string("type", "stdio")
		w.put("command", "args", "env", "envFile")
		return
	}
	w.put("url", "headers")
	w.oauth("auth", "CLIENT_ID", "CLIENT_SECRET", "scopes")
}

func writeVSCode(w *writer) {
	if w.unixOut() {
		return
	}
	w.transport("type", "stdio", "http", "sse")
	if w.http() {
		w.put("url", "headers")
	} else {
		w.put("command", "args", "env", "envFile", "cwd")
	}
}

func writeCodex(w *writer) {
	s := w.s
	switch s.Transport {
	case TransportStdio:
		w.put("command", "args")
		writeCodexEnv(w)
		w.put("cwd")
	case TransportHTTP:
		w.put("url", "bearer_token_env_var")
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
				w.oauth("oauth", "client_id")
			}
			w.put("scopes", "oauth_resource")
		}
	default:
		w.leave("transport", "%s has no transport %s", w.spec.title, s.Transport)
		return
	}
	w.put("enabled", "required", "enabled_tools", "disabled_tools", "startup_timeout_sec", "tool_timeout_sec")
}

// writeCodexEnv passes on variables whose value is the variable of the same name.
func writeCodexEnv(w *writer) {
	pass := w.s.PassEnv
	var fixed []Pair
	for _, p := range w.s.Env {
		if len(p.Value) == 1 && len(p.Value[0].Sources) == 1 && p.Value[0].Sources[0] == (Source{SchemeEnv, p.Name}) {
			pass = append(pass[:len(pass):len(pass)], p.Name)
			w.lose("env."+p.Name, "%s passes the variable on, and omits it if it is not set", w.spec.title)
			w.said["passEnv"] = true
		} else {
			fixed = append(fixed, p)
		}
	}
	w.strings("env_vars", pass)
	w.pairs("env", "env", fixed)
}

// splitHeaders separates the headers whose value is just a variable.
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
	switch {
	case w.unixOut():
		return
	case !w.http():
		w.put("command", "args", "env", "cwd")
	case w.s.Transport == TransportSSE:
		w.put("url")
	default:
		w.put("httpUrl")
	}
	if w.http() {
		w.put("headers")
		w.oauth("oauth", "clientId", "clientSecret", "scopes", "redirectUri", "enabled")
	}
	w.put("description", "timeout", "includeTools", "excludeTools")
}

func writeOpenCode(w *writer) {
	if openCode(w); !w.left {
		w.put("enabled")
	}
}

func writeOpenCode2(w *writer) {
	if openCode(w); !w.left {
		w.put("cwd", "disabled")
	}
}

func openCode(w *writer) {
	if w.unixOut() {
		return
	}
	w.transport("type", "local", "remote", "remote")
	if w.http() {
		w.put("url", "headers")
		w.oauth("oauth", "clientId", "clientSecret", "scope", "redirectUri")
		if o := w.s.OAuth; o != nil && o.Disabled {
			w.out.put("oauth", newBool(false))
		}
	} else {
		w.argv("command")
		w.put("environment")
	}
	w.put("timeout")
}

func writeWindsurf(w *writer) {
	if w.unixOut() {
		return
	}
	if w.http() {
		w.put("serverUrl", "headers")
	} else {
		w.put("command", "args", "env")
	}
	w.put("disabled", "disabledTools")
}

func writeCline(w *writer) {
	if w.unixOut() {
		return
	}
	w.transport("type", "stdio", "streamableHttp", "sse")
	if w.http() {
		w.put("url", "headers")
	} else {
		w.put("command", "args", "env", "cwd")
	}
	w.put("disabled", "disabledTools", "timeout")
}

func writeZed(w *writer) {
	switch w.s.Transport {
	case TransportStdio:
		w.text("command", "command", w.s.Command)
		w.out.put("args", newStrings(append([]string{}, w.arguments()...))) // Zed requires it, even if empty
		w.put("env")
	case TransportHTTP:
		w.put("url", "headers")
	default:
		w.leave("transport", "%s has no transport %s", w.spec.title, w.s.Transport)
		return
	}
	w.put("enabled")
	if d := w.s.Timeouts.Request; d%time.Second != 0 {
		w.lose("timeouts.request", "%s counts whole seconds; it is rounded up", w.spec.title)
		w.s.Timeouts.Request = d.Truncate(time.Second) + time.Second
	}
	w.put("timeout")
}

func writeAmp(w *writer) {
	if w.unixOut() {
		return
	}
	if w.http() {
		w.put("url", "headers")
	} else {
		w.put("command", "args", "env")
	}
	w.put("disabled", "includeTools")
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
		w.put(f.key)
	}
	w.string("type", string(w.s.Transport))
	if !w.http() {
		w.put("command", "args", "env")
		return
	}
	w.put("url", "headers")
	if h := w.out.get("headers"); w.s.OAuth != nil && h != nil && slices.ContainsFunc(h.names(), isAuthorization) {
		w.lose("oauth", "%s does not allow it beside an Authorization header; it is left out", w.spec.title)
		return
	}
	w.oauth("oauth", "clientId", "scopes", "redirectUri")
}

func isAuthorization(name string) bool { return strings.EqualFold(name, "authorization") }
