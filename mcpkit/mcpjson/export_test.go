package mcpjson

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// can tells what each dialect can express. The writers must match it.
type can struct {
	transports []Transport
	fallback   []bool // of SSEFallback, with TransportHTTP
	refs       []Source
	fields     []string // beside command, args, env, url, headers
	oauth      []string
	names      string
	noEmptyEnv bool
}

var dirs = []Source{dir(DirRoot), dir(DirRootName), dir(DirHome), dir(DirSeparator)}

var abilities = map[Dialect]can{
	V1: {transports: []Transport{TransportStdio, TransportUnix, TransportHTTP}, fallback: []bool{false}, names: "plain", noEmptyEnv: true,
		refs:   []Source{env("A"), input("i"), dir(DirRoot), dir(DirHome), dir(DirRootName), dir(DirSeparator), {SchemeOP, "//v/i/f"}, {SchemeKeychain, "k"}, {"vault", "x"}},
		fields: []string{"inheritEnv", "stdoutLog", "sseUrl", "bearerTokenEnv", "chains"}},
	ClaudeCode: {transports: []Transport{TransportStdio, TransportHTTP, TransportSSE}, fallback: []bool{false},
		refs: []Source{env("A"), dir(DirRoot)}, fields: []string{"defaults", "bearerTokenEnv", "request", "oauth", "extra"},
		oauth: []string{"clientId", "callbackPort", "scopes", "metadataUrl", "extra"}},
	ClaudeDesktop: {transports: []Transport{TransportStdio}, fields: []string{"extra"}},
	Cursor: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{true}, refs: append([]Source{env("A")}, dirs...),
		fields: []string{"envFile", "bearerTokenEnv", "oauth", "extra"}, oauth: []string{"clientId", "clientSecret", "scopes", "extra"}},
	VSCode: {transports: []Transport{TransportStdio, TransportHTTP, TransportSSE}, fallback: []bool{true},
		refs: append([]Source{env("A"), input("i"), {SchemeCommand, "c"}}, dirs...), fields: []string{"envFile", "cwd", "bearerTokenEnv", "extra"}},
	Codex: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{false}, names: "plain",
		fields: []string{"cwd", "passEnv", "envHeaders", "bearerTokenEnv", "connect", "request", "disabled", "required", "allow", "deny", "oauth", "extra"},
		oauth:  []string{"clientId", "scopes", "resource"}},
	Gemini: {transports: []Transport{TransportStdio, TransportHTTP, TransportSSE}, fallback: []bool{false}, refs: []Source{env("A")},
		fields: []string{"cwd", "description", "bearerTokenEnv", "request", "disabled", "allow", "deny", "oauth", "oauthOff", "extra"},
		oauth:  []string{"clientId", "clientSecret", "scopes", "redirectUri", "extra"}},
	OpenCode: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{true}, refs: []Source{env("A"), {SchemeFile, "~/f"}},
		fields: []string{"bearerTokenEnv", "connect", "disabled", "oauth", "oauthOff", "extra"}, oauth: []string{"clientId", "clientSecret", "scopes", "redirectUri", "extra"}},
	OpenCode2: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{true}, refs: []Source{env("A"), {SchemeFile, "~/f"}},
		fields: []string{"cwd2", "bearerTokenEnv", "connect", "disabled", "oauth", "oauthOff", "extra"}, oauth: []string{"clientId", "clientSecret", "scopes", "redirectUri", "extra"}},
	Windsurf: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{true}, refs: []Source{env("A")},
		fields: []string{"bearerTokenEnv", "disabled", "deny", "extra"}},
	Cline: {transports: []Transport{TransportStdio, TransportHTTP, TransportSSE}, fallback: []bool{false}, refs: []Source{env("A")},
		fields: []string{"cwd", "bearerTokenEnv", "disabled", "deny", "request", "extra"}},
	Zed: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{false}, fields: []string{"disabled", "extra"}},
	Amp: {transports: []Transport{TransportStdio, TransportHTTP}, fallback: []bool{true}, refs: []Source{env("A")},
		fields: []string{"bearerTokenEnv", "disabled", "allow", "extra"}},
	SEP: {transports: []Transport{TransportStdio, TransportHTTP, TransportSSE}, fallback: []bool{false}, names: "sep",
		refs:   []Source{env("A"), input("i"), {SchemeOP, "//v/i/f"}, {"vault", "x"}},
		fields: []string{"title", "description", "chains", "bearerTokenEnvNoOAuth", "oauth", "extra"}, oauth: []string{"clientId", "scopes", "redirectUri", "extra"}},
}

// generator creates definitions that a dialect can express.
type generator struct {
	*rand.Rand
	d Dialect
	can
}

func (g generator) maybe() bool                 { return g.IntN(2) == 0 }
func (g generator) has(field string) bool       { return slices.Contains(g.fields, field) && g.maybe() }
func pick[T any](g generator, list []T) T       { return list[g.IntN(len(list))] }
func (g generator) word() string                { return pick(g, words) }
func (g generator) oneOf(list ...string) string { return pick(g, list) }

// words are difficult in the grammar of some dialect; none is a placeholder anywhere.
var words = []string{
	"x", "-y", "--flag=v", "a b", "ü 世界 🎁", "\"quoted\"", "back\\slash", "tab\there", "two\nlines", "# no comment", "// none", "[table]", "{}", "100%", "'single'", "''' \"\"\"",
	"<&>", "\u2028", "\u007f", "trailing ", "a.b", "=", "null", "true", "1e3",
}

func (g generator) text(filled bool) Text {
	var t Text
	for range g.IntN(4) {
		if len(g.refs) > 0 && g.maybe() {
			sources := []Source{pick(g, g.refs)}
			switch {
			case slices.Contains(g.fields, "chains") && g.maybe():
				for range g.IntN(3) {
					sources = append(sources, pick(g, slices.DeleteFunc(slices.Clone(g.refs), func(s Source) bool { return s.Scheme == SchemeDir })))
				}
				if sources[0].Scheme == SchemeDir {
					sources = sources[:1]
				} else if g.maybe() {
					sources = append(sources, value(g.oneOf("d", "a b", "x-y")))
				}
			case slices.Contains(g.fields, "defaults") && sources[0].Scheme == SchemeEnv && g.maybe():
				sources = append(sources, value(g.oneOf("d", "", "a b", "/usr/bin")))
			}
			t = append(t, Piece{Sources: sources})
		} else {
			t = append(t, Piece{Literal: g.word()})
		}
	}
	if len(t) == 0 && filled {
		t = Literal(g.word())
	}
	return t.joined()
}

func (g generator) strings() []string {
	list := []string{}
	for i := range g.IntN(3) {
		list = append(list, fmt.Sprintf("t%d", i))
	}
	return list
}

// header returns a text that is valid in a header.
func (g generator) header() Text {
	for {
		if t := g.text(true); !hasControl(t) && !slices.ContainsFunc(t.Sources(), func(s Source) bool { return s.Scheme == SchemeValue && s.Name == "" }) {
			return t
		}
	}
}

func (g generator) server(name string) *Server {
	s := &Server{Name: name, Transport: pick(g, g.transports), Dialect: g.d}
	switch s.Transport {
	case TransportStdio:
		s.Command = g.text(true)
		for range g.IntN(4) {
			s.Args = append(s.Args, g.text(false))
		}
		for i := range g.IntN(4) {
			s.Env = append(s.Env, Pair{Name: fmt.Sprintf("%s%d", g.oneOf("V", "my-var", "dotted.v", "API_KEY"), i), Value: g.text(g.noEmptyEnv)})
		}
		if g.has("passEnv") {
			s.PassEnv = []string{"P", "Q"}
		}
		s.InheritEnv = g.has("inheritEnv")
		if g.has("envFile") {
			s.EnvFile = g.text(true)
		}
		if g.has("cwd") || g.has("cwd2") {
			s.Cwd = g.text(true)
		}
		if g.has("stdoutLog") {
			s.StdoutLog = &StdoutLog{Path: "logs/x.log", MaxBytesPerPart: 1 + g.Int64N(1<<20), MaxParts: g.IntN(9)}
		}
	case TransportUnix:
		s.Socket = g.text(true)
	default:
		g.remote(s)
	}
	g.common(s)
	return s
}

func (g generator) remote(s *Server) {
	s.URL = Literal(g.oneOf("https://example.com/mcp", "http://localhost:8080/?a=b&c=d#f"))
	if len(g.refs) > 0 && g.maybe() {
		s.URL = Text{{Literal: "https://"}, {Sources: []Source{g.refs[0]}}, {Literal: "/mcp"}}
	}
	if s.Transport == TransportHTTP {
		s.SSEFallback = pick(g, g.fallback)
		if g.has("sseUrl") {
			s.SSEURL = Literal("https://example.com/sse")
		}
	}
	for i := range g.IntN(3) {
		h := Pair{Name: fmt.Sprintf("X-%s-%d", g.oneOf("Team", "Api-Key"), i), Value: g.header()}
		if slices.Contains(g.fields, "envHeaders") && g.maybe() {
			h.Value = Ref(env("B"))
		}
		s.Headers = append(s.Headers, h)
	}
	login := g.has("oauth")
	if g.has("bearerTokenEnv") && (g.d != ClaudeDesktop) || !login && g.has("bearerTokenEnvNoOAuth") {
		s.BearerTokenEnv = "TOKEN"
	}
	if g.has("oauthOff") {
		s.OAuth = &OAuth{Disabled: true}
		return
	}
	if !login {
		return
	}
	s.OAuth = &OAuth{}
	for _, f := range g.oauth {
		if !g.maybe() {
			continue
		}
		switch f {
		case "clientId":
			s.OAuth.ClientID = Literal("id")
		case "clientSecret":
			s.OAuth.ClientSecret = Ref(env("SECRET"))
		case "scopes":
			s.OAuth.Scopes = []string{"read", "https://example.com/write"}
		case "redirectUri":
			s.OAuth.RedirectURL = "http://localhost:3118/callback"
		case "callbackPort":
			s.OAuth.CallbackPort = 3118
		case "metadataUrl":
			s.OAuth.MetadataURL = "https://example.com/.well-known/x"
		case "resource":
			s.OAuth.Resource = "https://example.com"
		case "extra":
			s.OAuth.Extra = []Extra{{"xtra", json.RawMessage(`{"a":[1,"b"]}`)}}
		}
	}
}

func (g generator) common(s *Server) {
	if g.has("title") {
		s.Title = g.word()
	}
	if g.has("description") {
		s.Description = g.word()
	}
	if g.has("connect") {
		s.Timeouts.Connect = time.Duration(1+g.IntN(1e6)) * time.Millisecond
	}
	if g.has("request") {
		s.Timeouts.Request = time.Duration(1+g.IntN(1e6)) * time.Millisecond
	}
	s.Disabled, s.Required = g.has("disabled"), g.has("required")
	if g.has("allow") {
		s.Tools.Allow = g.strings()
	}
	if g.has("deny") {
		s.Tools.Deny = g.strings()
	}
	if g.has("extra") {
		s.Extra = []Extra{{"x-" + g.word(), json.RawMessage(g.oneOf(`1`, `-2.5`, `"s"`, `true`, `{"a":{"b":[1,{"c":"d"}]}}`, `[]`))}}
	}
}

func (g generator) config() *Config {
	c := &Config{Dialect: g.d}
	names := []string{"plain", "with-dash", "with_1"}
	switch g.names {
	case "":
		names = append(names, "with space", "dotted.name", "ünïcode", `quo"te`)
	case "sep":
		names = append(names, "br[1]")
	}
	g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:1+g.IntN(len(names))] {
		c.Servers = append(c.Servers, g.server(name))
	}
	switch g.d {
	case V1:
		c.Client = Client{ProtocolVersion: "2025-06-18", Capabilities: json.RawMessage(`{"x":{}}`), Roots: []Root{{"file:///x", "x"}, {URI: "file:///y"}}}
	case VSCode:
		c.Inputs = []Input{{ID: "i", Type: "promptString", Description: "The key", Password: true}, {ID: "p", Type: "pickString", Options: []string{"a", "b"}, Default: "a"}}
	}
	return c
}

// sameMeaning compares definitions without their origins.
var sameMeaning = cmp.Options{
	cmpopts.IgnoreFields(Server{}, "Origins", "File", "Dir"), cmpopts.IgnoreFields(Pair{}, "Secret"), cmpopts.IgnoreFields(Config{}, "Path", "Warnings"),
	cmpopts.SortSlices(func(a, b Pair) bool { return a.Name < b.Name }), cmp.Comparer(Text.equal),
	cmp.FilterPath(func(p cmp.Path) bool {
		return p.Last().String() != ".Allow" && p.Last().Type() != reflect.TypeFor[Text]()
	}, cmpopts.EquateEmpty()),
}

// A definition that a dialect can express is read back unchanged.
func TestD2_RoundTrip(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 15
	}
	for _, d := range Dialects {
		t.Run(string(d), func(t *testing.T) {
			for seed := range seeds {
				g := generator{rand.New(rand.NewPCG(seed, 1)), d, abilities[d]}
				want := g.config()
				data, losses, err := Export(want, d)
				if err != nil || len(losses) > 0 {
					t.Fatalf("seed %d: lost %v, %v\n%s", seed, losses, err, data)
				}
				got, err := Parse(d, data)
				if err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, data)
				}
				if diff := cmp.Diff(want, got, sameMeaning); diff != "" {
					t.Fatalf("seed %d: (-want +got):\n%s\n%s", seed, diff, data)
				}
				for i, s := range got.Servers {
					if own := *want.Servers[i]; true {
						own.Dir = s.Dir
						sortPairs(&own)
						sortPairs(s)
						if own.Hash() != s.Hash() {
							t.Fatalf("seed %d: %s has another hash\n%s", seed, s.Name, data)
						}
					}
				}
				again, _, err := Merge(data, got, d)
				if err != nil || string(again) != string(data) {
					t.Fatalf("seed %d: merging it into itself changed it: %v\n%s", seed, err, cmp.Diff(string(data), string(again)))
				}
			}
		})
	}
}

func sortPairs(s *Server) {
	byName := func(a, b Pair) int { return strings.Compare(a.Name, b.Name) }
	s.Env, s.Headers = slices.Clone(s.Env), slices.Clone(s.Headers)
	slices.SortFunc(s.Env, byName)
	slices.SortFunc(s.Headers, byName)
}

// The list of losses has each field that another dialect reads differently.
func TestD2_Export_ReportsEveryLoss(t *testing.T) {
	for _, from := range Dialects {
		for _, to := range Dialects {
			for seed := range uint64(8) {
				g := generator{rand.New(rand.NewPCG(seed, 2)), from, abilities[from]}
				want := g.config()
				data, losses, err := Export(want, to)
				if err != nil {
					t.Fatalf("%s to %s, seed %d: %v", from, to, seed, err)
				}
				got, err := Parse(to, data)
				if err != nil {
					t.Fatalf("%s to %s, seed %d: %v\n%s", from, to, seed, err, data)
				}
				for _, s := range want.Servers {
					lost := make(map[string]bool)
					for _, l := range losses {
						if l.Server == s.Name {
							lost[l.Field] = true
							lost["env"] = lost["env"] || l.Field == "passEnv" // as references to themselves
							lost["passEnv"] = lost["passEnv"] || strings.HasPrefix(l.Field, "env.")
						}
					}
					back := got.Server(s.Name)
					if back == nil {
						if len(lost) == 0 {
							t.Fatalf("%s to %s, seed %d: %s is missing and not reported as lost", from, to, seed, s.Name)
						}
						continue
					}
					for _, field := range difference(s, back) {
						if !lost[field] && !lost[strings.SplitN(field, ".", 2)[0]] {
							t.Fatalf("%s to %s, seed %d: %s of %s is missing and not reported as lost: %v\n%s", from, to, seed, field, s.Name, losses, data)
						}
					}
				}
			}
		}
	}
}

// The losses of one rich configuration are stable.
func TestD2_Losses(t *testing.T) {
	rich := &Config{
		Dialect: VSCode, Inputs: []Input{{ID: "key", Password: true}},
		Client: Client{Roots: []Root{{URI: "file:///x"}}},
		Servers: []*Server{
			{Name: "files", Title: "Files", Transport: TransportStdio, Command: Literal("npx"), Args: []Text{Literal("-y"), Ref(dir(DirRoot))},
				Env:     []Pair{{Name: "KEY", Value: Ref(input("key"))}, {Name: "MODE", Value: Ref(env("MODE"), value("ro"))}, {Name: "HOME_", Value: Ref(env("HOME_"))}},
				PassEnv: []string{"LANG"}, EnvFile: Literal(".env"), Cwd: Literal("srv"), Tools: ToolFilter{Allow: []string{"read"}, Deny: []string{"rm"}},
				Timeouts: Timeouts{Connect: time.Second, Request: time.Minute}, Extra: []Extra{{"sandbox", json.RawMessage(`{}`)}}, Dialect: VSCode},
			{Name: "web", Transport: TransportHTTP, SSEFallback: true, URL: Literal("https://example.com/mcp"), Headers: []Pair{{Name: "X-Key", Value: Ref(env("K"))}},
				BearerTokenEnv: "T", OAuth: &OAuth{ClientID: Literal("c"), CallbackPort: 1234}, Required: true},
			{Name: "off", Transport: TransportStdio, Command: Literal("x"), Disabled: true},
			{Name: "old", Transport: TransportSSE, URL: Literal("https://example.com/sse")},
			{Name: "sock", Transport: TransportUnix, Socket: Literal("run/x.sock")},
		},
	}
	var b strings.Builder
	for _, d := range Dialects {
		data, losses, err := Export(rich, d)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "== %s\n", d)
		for _, l := range losses {
			fmt.Fprintln(&b, l)
		}
		fmt.Fprintf(&b, "--\n%s", data)
	}
	const golden = "testdata/losses.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The table covers every dialect.
func TestCan_CoversEveryDialect(t *testing.T) {
	for _, d := range Dialects {
		if _, ok := abilities[d]; !ok {
			t.Errorf("%s is missing", d)
		}
	}
	if len(specs) != len(Dialects) || len(slices.Collect(maps.Keys(abilities))) != len(Dialects) {
		t.Errorf("%d specs, %d abilities, %d dialects", len(specs), len(abilities), len(Dialects))
	}
}

// A parsed configuration is written and read back unchanged.
func FuzzRoundTrip(f *testing.F) {
	for _, path := range samples(f) {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for i := range Dialects {
			f.Add(uint8(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		d := Dialects[int(which)%len(Dialects)]
		cfg, err := Parse(Auto, data)
		if err != nil {
			if cfg, err = Parse(Codex, data); err != nil {
				return
			}
		}
		once, _, err := Export(cfg, d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(d, once)
		if err != nil {
			t.Fatalf("%v\n%s", err, once)
		}
		// An approximation becomes exact the second time.
		twice, _, err := Export(back, d)
		if err != nil {
			t.Fatalf("%v\n%s", err, once)
		}
		if back, err = Parse(d, twice); err != nil {
			t.Fatalf("%v\n%s", err, twice)
		}
		thrice, _, err := Export(back, d)
		if err != nil || string(twice) != string(thrice) {
			t.Errorf("%v (-twice +thrice):\n%s", err, cmp.Diff(string(twice), string(thrice)))
		}
		// Into itself, which has comments and other content.
		if merged, _, err := Merge(data, cfg, cfg.Dialect); err == nil {
			if _, err := Parse(cfg.Dialect, merged); err != nil {
				t.Errorf("%v\n%s", err, merged)
			}
		}
	})
}
