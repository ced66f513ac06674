package mcpjson

import (
	"maps"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
)

// fieldSpec describes a field of a server, under any key.
type fieldSpec struct {
	read  func(r *reader, key string, n *node)
	write func(w *writer, key string) // nil if no dialect writes it, or each in its own way
}

// fields are the known members of a server in a dialect. nil marks members that are
// known and ignored.
type fields map[string]*fieldSpec

func (f fields) names() []string { return slices.Sorted(maps.Keys(f)) }

// with returns f with additional or replaced members.
func (f fields) with(more fields) fields {
	all := maps.Clone(f)
	maps.Copy(all, more)
	return all
}

// The following fields exist in several dialects. Each dialect takes those that it
// knows, under its own names.

func textField(field string, at func(*Server) *Text) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, field, key) {
				*at(r.s) = r.text(n, field, key)
			}
		},
		write: func(w *writer, key string) { w.text(key, field, *at(w.s)) },
	}
}

func plainField(field string, at func(*Server) *string) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, field, key) {
				r.origin(field, key, n)
				*at(r.s) = r.string(n, key)
			}
		},
		write: func(w *writer, key string) { w.string(key, *at(w.s)) },
	}
}

func boolField(field string, at func(*Server) *bool) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, field, key) {
				r.origin(field, key, n)
				*at(r.s) = r.bool(n, key)
			}
		},
		write: func(w *writer, key string) { w.flag(key, *at(w.s)) },
	}
}

func stringsField(field string, at func(*Server) *[]string) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, field, key) {
				*at(r.s) = r.strings(n, field, key)
			}
		},
		write: func(w *writer, key string) { w.strings(key, *at(w.s)) },
	}
}

// pairsField is written by spec.write, which adds related fields.
func pairsField(field string, at func(*Server) *[]Pair, write func(*writer, string)) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, field, key) {
				*at(r.s) = append(*at(r.s), r.pairs(n, field, key)...)
			}
		},
		write: write,
	}
}

func durationField(field string, unit time.Duration, at func(*Server) *time.Duration) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, field, key) {
				*at(r.s) = r.duration(n, field, key, unit)
			}
		},
		write: func(w *writer, key string) { w.duration(key, *at(w.s), unit) },
	}
}

var (
	titleField       = plainField("title", func(s *Server) *string { return &s.Title })
	descriptionField = plainField("description", func(s *Server) *string { return &s.Description })
	typeField        = &fieldSpec{read: readType}
	commandField     = &fieldSpec{readCommand, func(w *writer, key string) { w.text(key, "command", w.s.Command) }}
	zedCommandField  = &fieldSpec{readZedCommand, commandField.write}
	argsField        = &fieldSpec{readArgs, func(w *writer, key string) { w.strings(key, w.arguments()) }}
	envField         = pairsField("env", func(s *Server) *[]Pair { return &s.Env }, (*writer).env)
	envFileField     = textField("envFile", func(s *Server) *Text { return &s.EnvFile })
	passEnvField     = &fieldSpec{read: readPassEnv}
	inheritField     = boolField("inheritEnv", func(s *Server) *bool { return &s.InheritEnv })
	cwdField         = textField("cwd", func(s *Server) *Text { return &s.Cwd })
	stdoutLogField   = &fieldSpec{readStdoutLog, writeStdoutLog}
	urlField         = textField("url", func(s *Server) *Text { return &s.URL })
	sseURLField      = textField("sseUrl", func(s *Server) *Text { return &s.SSEURL })
	socketField      = textField("socket", func(s *Server) *Text { return &s.Socket })
	headersField     = pairsField("headers", func(s *Server) *[]Pair { return &s.Headers }, (*writer).headers)
	envHeadersField  = &fieldSpec{read: readEnvHeaders}
	bearerEnvField   = plainField("bearerTokenEnv", func(s *Server) *string { return &s.BearerTokenEnv })
	oauthField       = &fieldSpec{read: readOAuth}
	authField        = &fieldSpec{read: readAuth}
	disabledField    = boolField("disabled", func(s *Server) *bool { return &s.Disabled })
	enabledField     = &fieldSpec{readEnabled, writeEnabled}
	requiredField    = boolField("required", func(s *Server) *bool { return &s.Required })
	allowField       = stringsField("tools.allow", func(s *Server) *[]string { return &s.Tools.Allow })
	toolListField    = &fieldSpec{read: readToolList}
	denyField        = stringsField("tools.deny", func(s *Server) *[]string { return &s.Tools.Deny })
	rootsField       = &fieldSpec{read: readRoots}
	requestMillis    = durationField("timeouts.request", time.Millisecond, requestTimeout)
	requestSeconds   = durationField("timeouts.request", time.Second, requestTimeout)
	connectMillis    = durationField("timeouts.connect", time.Millisecond, connectTimeout)
	connectSeconds   = durationField("timeouts.connect", time.Second, connectTimeout)
)

func requestTimeout(s *Server) *time.Duration { return &s.Timeouts.Request }
func connectTimeout(s *Server) *time.Duration { return &s.Timeouts.Connect }

// readEnabled reads the inverse of disabledField.
func readEnabled(r *reader, key string, n *node) {
	if r.once(n, "disabled", key) {
		r.origin("disabled", key, n)
		r.s.Disabled = !r.bool(n, key)
		r.note("disabled", "the opposite of "+key)
	}
}

func writeEnabled(w *writer, key string) {
	if w.s.Disabled {
		w.out.put(key, newBool(false))
	}
}

func readType(r *reader, key string, n *node) {
	if r.once(n, "transport", key) {
		r.origin("transport", key, n)
		r.string(n, key)
		r.word = n
	}
}

// readCommand reads the program, alone or with its arguments.
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

// readZedCommand reads Zed's program: a string or, in older files, an object with path,
// arguments and variables.
func readZedCommand(r *reader, key string, n *node) {
	if n.kind != object {
		readCommand(r, key, n)
		return
	}
	r.members(n, key, []string{"path", "args", "env"}, func(name string, v *node) bool {
		at := key + "." + name
		switch name {
		case "path":
			readCommand(r, at, v)
		case "args":
			readArgs(r, at, v)
		case "env":
			envField.read(r, at, v)
		default:
			return false
		}
		return true
	})
}

func readArgs(r *reader, key string, n *node) {
	if r.once(n, "args", key) {
		r.args = n
	}
}

// readEnvHeaders reads headers whose values are names of variables.
func readEnvHeaders(r *reader, key string, n *node) {
	for _, m := range r.entries(n, key) {
		at, field := key+"."+m.name, "headers."+m.name
		name := r.string(m.value, at)
		if variable().FindString(name) != name || name == "" {
			r.fail(m.value, at, "found a string that is not the name of an environment variable")
			continue
		}
		r.origin(field, at, m.value)
		r.note(field, "the value of the variable")
		if r.set["headers"] == "" {
			r.set["headers"] = key
		}
		r.s.Headers = append(r.s.Headers, Pair{Name: m.name, Value: Ref(Source{SchemeEnv, name}), Secret: redact.IsSecretName(m.name)})
	}
}

// readPassEnv reads names of variables, or objects with a name.
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

// readRoots reads a list of {uri, name}.
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

// refuse returns a field that is an error.
func refuse(msg, hint string) *fieldSpec {
	return &fieldSpec{read: func(r *reader, key string, n *node) { r.fail(n, key, "%s", msg).Hint = hint }}
}

// ignore returns a field that the client itself ignores: it is kept, with a warning.
func ignore(msg, hint string) *fieldSpec {
	return &fieldSpec{read: func(r *reader, key string, n *node) {
		r.warn(n, key, "%s", msg).Hint = hint
		keep(r, key, n)
	}}
}

// keep is a field that does not matter here.
func keep(r *reader, key string, n *node) {
	r.origin("extra."+key, key, n)
	r.s.Extra = extra(r.s.Extra, key, n)
}

// readToolList reads the tool list of Copilot CLI. It ignores other kinds of values.
func readToolList(r *reader, key string, n *node) {
	if n.kind != array {
		keep(r, key, n)
		return
	}
	allowField.read(r, key, n)
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

func writeStdoutLog(w *writer, key string) {
	if l := w.s.StdoutLog; l != nil {
		n := newObject()
		n.put("path", newString(l.Path))
		n.put("max_bytes_per_part", newInt(l.MaxBytesPerPart))
		n.put("max_parts", newInt(int64(l.MaxParts)))
		w.out.put(key, n)
	}
}

// The default size of a log: 32 MiB.
const (
	defaultLogPart  = 1 << 20
	defaultLogParts = 32
)
