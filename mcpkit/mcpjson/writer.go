package mcpjson

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Loss is a part of a definition that a dialect cannot express.
type Loss struct {
	Server string // empty if it concerns no server
	Field  string // as Explain names it; empty for the whole server
	Msg    string
}

// String returns the loss in one line.
func (l Loss) String() string {
	var b strings.Builder
	if l.Server != "" {
		fmt.Fprintf(&b, "server %q: ", clip(l.Server))
	}
	if l.Field != "" {
		b.WriteString(clip(l.Field) + ": ")
	}
	return b.String() + l.Msg
}

// writer writes the members of one server in one dialect.
type writer struct {
	spec   *spec
	s      *Server // a copy
	out    *node
	losses []Loss
	said   map[string]bool // fields whose loss is in losses, under any name
	left   bool            // the dialect cannot express the server at all
}

func (w *writer) lose(field, format string, args ...any) {
	w.losses = append(w.losses, Loss{w.s.Name, field, fmt.Sprintf(format, args...)})
	w.said[field] = true
}

// leave omits the server.
func (w *writer) leave(field, format string, args ...any) {
	w.lose(field, format+"; the server is left out", args...)
	w.left = true
}

// put writes members by their keys in the dialect.
func (w *writer) put(keys ...string) {
	for _, key := range keys {
		w.spec.fields[key].write(w, key)
	}
}

// transport writes the dialect's name of the transport.
func (w *writer) transport(key, stdio, http, sse string) {
	w.string(key, map[Transport]string{TransportStdio: stdio, TransportHTTP: http, TransportSSE: sse}[w.s.Transport])
}

func (w *writer) string(key, value string) {
	if value != "" {
		w.out.put(key, newString(value))
	}
}

func (w *writer) flag(key string, on bool) {
	if on {
		w.out.put(key, newBool(true))
	}
}

func (w *writer) strings(key string, list []string) {
	if list != nil {
		w.out.put(key, newStrings(list))
	}
}

// format writes a text, and reports a loss if the client will read it differently.
func (w *writer) format(field string, t Text) string {
	s, like := w.spec.syntax.format(t)
	switch like {
	case near:
		w.lose(field, "%s cannot say it exactly; the nearest is written", w.spec.title)
	case none:
		w.lose(field, "%s does not expand it; it is written as it stands, to be replaced by hand", w.spec.title)
	}
	return s
}

func (w *writer) text(key, field string, t Text) {
	if len(t) > 0 {
		w.out.put(key, newString(w.format(field, t)))
	}
}

// arguments returns those of the program, nil if there are none.
func (w *writer) arguments() []string {
	var list []string
	for i, a := range w.s.Args {
		list = append(list, w.format(indexed("args", i), a))
	}
	return list
}

// argv writes the program and its arguments as one list.
func (w *writer) argv(key string) {
	w.strings(key, append([]string{w.format("command", w.s.Command)}, w.arguments()...))
}

// pairs writes variables or headers. It omits those whose value the client would not
// expand: a missing token is easier to understand than the token "${env:TOKEN}".
func (w *writer) pairs(key, field string, pairs []Pair) {
	n := newObject()
	for _, p := range pairs {
		at := field + "." + p.Name
		if _, like := w.spec.syntax.format(p.Value); like == none {
			w.lose(at, "%s does not expand it; it is left out", w.spec.title)
			continue
		}
		n.put(p.Name, newString(w.format(at, p.Value)))
	}
	if len(n.members) > 0 {
		w.out.put(key, n)
	}
}

// env writes the variables of the program. Passed-on variables become references to
// themselves.
func (w *writer) env(key string) {
	pairs := w.s.Env
	for _, name := range w.s.PassEnv {
		if w.spec.syntax.writes.env != "" {
			pairs = append(pairs[:len(pairs):len(pairs)], Pair{Name: name, Value: Ref(Source{SchemeEnv, name})})
			w.lose("passEnv", "%s has no list of variables to pass on; %s is written as a reference to itself", w.spec.title, clip(name))
			w.said["env."+name] = true
		}
	}
	w.pairs(key, "env", pairs)
}

// headers writes the headers, including that of BearerTokenEnv.
func (w *writer) headers(key string) {
	pairs := w.s.Headers
	if name := w.s.BearerTokenEnv; name != "" {
		bearer := Pair{Name: "Authorization", Value: Text{{Literal: "Bearer "}, {Sources: []Source{{SchemeEnv, name}}}}}
		pairs = append([]Pair{bearer}, pairs...)
	}
	w.pairs(key, "headers", pairs)
}

// keepTools writes the tool filter in dialects whose client has none.
func (w *writer) keepTools() {
	for key, f := range map[string]*fieldSpec{"includeTools": allowField, "excludeTools": denyField} {
		written := slices.ContainsFunc(w.out.members, func(m member) bool { return w.spec.fields[m.name] == f })
		if w.spec.fields[key] == f && !written {
			w.put(key)
		}
	}
}

func (w *writer) duration(key string, d, unit time.Duration) {
	if d > 0 {
		w.out.put(key, &node{kind: number, text: strconv.FormatFloat(float64(d)/float64(unit), 'f', -1, 64)})
	}
}

// addExtra writes the unknown members.
func addExtra(n *node, list []Extra) {
	for _, e := range list {
		if v, err := parseRaw(e.Value); err == nil && n.get(e.Key) == nil {
			n.put(e.Key, v)
		}
	}
}

// http reports whether the server is reached over HTTP of either kind.
func (w *writer) http() bool { return w.s.Transport == TransportHTTP || w.s.Transport == TransportSSE }
