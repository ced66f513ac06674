package mcpjson

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
)

// Export writes the configuration as a file of dialect d. losses lists what the dialect
// cannot express: fields that are omitted or would be read differently, and servers
// that are omitted because the dialect cannot reach or disable them.
//
// Export reads no secrets: it writes references as references. It writes literal
// secrets literally, so the result is as secret as cfg.
func Export(cfg *Config, d Dialect) (data []byte, losses []Loss, err error) {
	return Merge(nil, cfg, d)
}

// entry is a server in the form of a dialect.
type entry struct {
	name     string
	disabled bool
	node     *node
}

// entries writes all servers that the dialect can express.
func entries(cfg *Config, spec *spec) (list []entry, losses []Loss) {
	for _, s := range cfg.Servers {
		n, lost := write(cfg, s, spec)
		losses = append(losses, lost...)
		if n != nil {
			list = append(list, entry{s.Name, s.Disabled, n})
		}
	}
	return list, append(losses, besides(cfg, spec)...)
}

// write returns the entry of one server, nil if the dialect cannot express it.
func write(cfg *Config, s *Server, spec *spec) (*node, []Loss) {
	own := *s
	w := &writer{spec: spec, s: &own, out: newObject(), said: make(map[string]bool)}
	if spec.write(w); w.left {
		return nil, w.losses
	}
	if cfg.KeepTools {
		w.keepTools()
	}
	if s.Dialect == spec.dialect {
		addExtra(w.out, s.Extra)
	}
	// Read the result to find the losses.
	top, at := newObject(), (*node)(nil)
	at = top
	for _, name := range spec.root {
		next := newObject()
		at.put(name, next)
		at = next
	}
	at.put(s.Name, w.out)
	if spec.dialect == V1 {
		top.put("version", newInt(1))
	}
	if spec.dialect == Gemini && s.Disabled {
		top.put("mcp", &node{kind: object, members: []member{{name: "excluded", value: newStrings([]string{s.Name})}}})
	}
	back, _, err := parse(Options{Dialect: spec.dialect, Root: s.Dir, AllowLogOutside: true}, "", spec.encode(top))
	if err != nil || len(back.Servers) != 1 {
		reason := ""
		if err != nil {
			reason = ": " + strings.SplitN(err.Error(), "\n", 2)[0]
		}
		w.leave("", "it cannot be written for %s%s", spec.title, reason)
		return nil, w.losses
	}
	if s.Disabled && !back.Servers[0].Disabled {
		w.leave("disabled", "%s cannot turn it off", spec.title)
		return nil, w.losses
	}
	for _, field := range difference(s, back.Servers[0]) {
		if !w.said[field] && !w.said[strings.SplitN(field, ".", 2)[0]] {
			w.lose(field, "%s", lossWords(spec, field, back.Servers[0]))
		}
	}
	return w.out, w.losses
}

// lossWords describes what happens to a field that is read differently.
func lossWords(spec *spec, field string, back *Server) string {
	switch {
	case field == "transport" && back.SSEFallback:
		return fmt.Sprintf("%s tries %s first, and this one then", spec.title, back.Transport)
	case field == "transport":
		return fmt.Sprintf("%s takes it for %s", spec.title, back.Transport)
	case field == "sseFallback" && back.SSEFallback:
		return spec.title + " also tries the older transport"
	case field == "sseFallback":
		return spec.title + " does not try the older transport"
	case strings.HasPrefix(field, "extra."):
		return spec.title + " does not know it"
	}
	return spec.title + " cannot express it"
}

// encode writes a whole file.
func (s *spec) encode(top *node) []byte {
	if s.toml {
		var b []byte
		for _, m := range top.at(s.root...).members {
			b = appendTable(b, append(slices.Clone(s.root), m.name), m.value)
		}
		return b
	}
	return append(indentJSON(nil, top, "", "  "), '\n')
}

// difference returns the names, as in Explain, of fields in which two definitions
// differ. It ignores origins, and the order of variables and headers.
func difference(a, b *Server) []string {
	var fields []string
	differ := func(field string, same bool) {
		if !same {
			fields = append(fields, field)
		}
	}
	differ("name", a.Name == b.Name)
	differ("title", a.Title == b.Title)
	differ("description", a.Description == b.Description)
	differ("transport", a.Transport == b.Transport)
	differ("sseFallback", a.SSEFallback == b.SSEFallback || a.Transport != b.Transport)
	differ("command", a.Command.equal(b.Command))
	for i := range max(len(a.Args), len(b.Args)) {
		differ(indexed("args", i), i < len(a.Args) && i < len(b.Args) && a.Args[i].equal(b.Args[i]))
	}
	fields = append(fields, differentPairs("env", a.Env, b.Env)...)
	differ("passEnv", slices.Equal(a.PassEnv, b.PassEnv))
	differ("inheritEnv", a.InheritEnv == b.InheritEnv)
	differ("envFile", a.EnvFile.equal(b.EnvFile))
	differ("cwd", a.Cwd.equal(b.Cwd))
	differ("stdoutLog", reflect.DeepEqual(a.StdoutLog, b.StdoutLog))
	differ("socket", a.Socket.equal(b.Socket))
	differ("url", a.URL.equal(b.URL))
	differ("sseUrl", a.SSEURL.equal(b.SSEURL))
	fields = append(fields, differentPairs("headers", a.Headers, b.Headers)...)
	differ("bearerTokenEnv", a.BearerTokenEnv == b.BearerTokenEnv)
	fields = append(fields, differentOAuth(a.OAuth, b.OAuth)...)
	differ("timeouts.connect", a.Timeouts.Connect == b.Timeouts.Connect)
	differ("timeouts.request", a.Timeouts.Request == b.Timeouts.Request)
	differ("disabled", a.Disabled == b.Disabled)
	differ("required", a.Required == b.Required)
	differ("tools.allow", sameList(a.Tools.Allow, b.Tools.Allow))
	differ("tools.deny", slices.Equal(a.Tools.Deny, b.Tools.Deny))
	differ("roots", reflect.DeepEqual(a.Roots, b.Roots))
	for _, e := range a.Extra {
		differ("extra."+e.Key, slices.ContainsFunc(b.Extra, func(o Extra) bool { return o.Key == e.Key && string(o.Value) == string(e.Value) }))
	}
	return fields
}

// sameList distinguishes an empty list, which allows nothing, from nil.
func sameList(a, b []string) bool { return (a == nil) == (b == nil) && slices.Equal(a, b) }

func differentPairs(field string, a, b []Pair) []string {
	values := make(map[string]Text)
	for _, p := range b {
		values[p.Name] = p.Value
	}
	var fields []string
	for _, p := range a {
		if v, ok := values[p.Name]; !ok || !v.equal(p.Value) {
			fields = append(fields, field+"."+p.Name)
		}
		delete(values, p.Name)
	}
	for name := range values {
		fields = append(fields, field+"."+name)
	}
	sort.Strings(fields)
	return fields
}

func differentOAuth(a, b *OAuth) []string {
	if (a == nil) != (b == nil) {
		return []string{"oauth"}
	}
	if a == nil {
		return nil
	}
	var fields []string
	for field, same := range map[string]bool{
		"disabled": a.Disabled == b.Disabled, "clientId": a.ClientID.equal(b.ClientID), "clientSecret": a.ClientSecret.equal(b.ClientSecret),
		"scopes": slices.Equal(a.Scopes, b.Scopes), "redirectUri": a.RedirectURL == b.RedirectURL, "callbackPort": a.CallbackPort == b.CallbackPort,
		"metadataUrl": a.MetadataURL == b.MetadataURL, "clientMetadataUrl": a.ClientMetadataURL == b.ClientMetadataURL, "resource": a.Resource == b.Resource,
		"grantType": a.ClientCredentials == b.ClientCredentials,
		"extra":     len(a.Extra) == len(b.Extra),
	} {
		if !same {
			fields = append(fields, "oauth."+field)
		}
	}
	sort.Strings(fields)
	return fields
}

// besides returns what a dialect cannot express of cfg beside its servers.
func besides(cfg *Config, spec *spec) []Loss {
	var losses []Loss
	lose := func(field string) {
		losses = append(losses, Loss{Field: field, Msg: spec.title + " cannot express it"})
	}
	c := cfg.Client
	if spec.dialect != V1 {
		for field, set := range map[string]bool{"client.protocolVersion": c.ProtocolVersion != "", "client.capabilities": c.Capabilities != nil, "client.roots": c.Roots != nil} {
			if set {
				lose(field)
			}
		}
	}
	if spec.dialect != VSCode {
		for _, in := range cfg.Inputs {
			lose("inputs." + in.ID)
		}
	}
	if cfg.Dialect != spec.dialect {
		for _, e := range cfg.Extra {
			if e.Key != "$schema" {
				lose("extra." + e.Key)
			}
		}
	}
	slices.SortFunc(losses, func(a, b Loss) int { return strings.Compare(a.Field, b.Field) })
	return losses
}
