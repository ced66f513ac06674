package mcpjson

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func env(name string) Source   { return Source{SchemeEnv, name} }
func value(text string) Source { return Source{SchemeValue, text} }

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".env"), []byte("A=1\nexport B='two # no comment'\n# c\nC=\"x\\ny\" # c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Name: "x", Transport: TransportStdio, Dir: dir,
		Command: Literal("node"),
		Args:    []Text{Literal("a"), {{Literal: "--k="}, {Sources: []Source{env("KEY"), value("none")}}}, Ref(Source{SchemeDir, DirRoot})},
		Env:     []Pair{{Name: "B", Value: Ref(env("ONCE"))}, {Name: "API_KEY", Value: Ref(Source{SchemeInput, "key"}), Secret: true}},
		EnvFile: Literal(".env"), PassEnv: []string{"PASSED", "MISSING"}, Cwd: Literal("sub"),
	}
	got, err := s.Resolve(t.Context(), Resolver{
		Env:    lookup(map[string]string{"ONCE": "${KEY}", "PASSED": "p"}),
		Root:   dir,
		Inputs: []Input{{ID: "key", Password: true, Description: "the key"}},
		Input: func(_ context.Context, in Input) (string, error) {
			if in.Description != "the key" {
				t.Errorf("asked for %+v, want the defined input", in)
			}
			return "s3cret", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"node", "a", "--k=none", dir}, got.Argv); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}
	// The value of ONCE looks like a reference and is not expanded.
	wantEnv := []string{"A=1", "B=two # no comment", "C=x\ny", "PASSED=p", "B=${KEY}", "API_KEY=s3cret"}
	if diff := cmp.Diff(wantEnv, got.Env); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
	if want := filepath.Join(dir, "sub"); got.Dir != want {
		t.Errorf("dir is %q, want %q", got.Dir, want)
	}
	if diff := cmp.Diff([]string{"two # no comment", "s3cret"}, got.Secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
}

func TestResolve_HTTP(t *testing.T) {
	s := &Server{
		Name: "x", Transport: TransportHTTP,
		URL:            Text{{Literal: "https://"}, {Sources: []Source{env("HOST")}}, {Literal: "/mcp?api_key=abcdef"}},
		Headers:        []Pair{{Name: "X-Team", Value: Literal("blue")}},
		BearerTokenEnv: "TOKEN",
		OAuth:          &OAuth{ClientID: Literal("id"), ClientSecret: Ref(env("CS"))},
	}
	got, err := s.Resolve(t.Context(), Resolver{Env: lookup(map[string]string{"HOST": "h.example", "TOKEN": "tok-1", "CS": "cs-22"})})
	if err != nil {
		t.Fatal(err)
	}
	want := &Resolved{
		URL:               "https://h.example/mcp?api_key=abcdef",
		Headers:           []Header{{"X-Team", "blue", false}, {"Authorization", "Bearer tok-1", true}},
		OAuthClientID:     "id",
		OAuthClientSecret: "cs-22",
		Secrets:           []string{"abcdef", "tok-1", "cs-22"},
	}
	got.Server = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	over := &Server{Name: "x", Transport: TransportHTTP, URL: Literal("unix:///run/x.sock#/mcp")}
	if got, err = over.Resolve(t.Context(), Resolver{}); err != nil || got.Socket != "/run/x.sock" || got.URL != "http://localhost/mcp" {
		t.Errorf("HTTP over a socket: got %+v, %v", got, err)
	}
}

// An empty resolver withholds every external value. The error names the reference and
// its place.
func TestResolve_EmptyResolver(t *testing.T) {
	place := map[string]Origin{"headers.X": {File: "mcp.json", Line: 4, Column: 9}}
	for name, c := range map[string]struct {
		text Text
		r    Resolver
		is   error
		want string
	}{
		"environment":               {Ref(env("TOKEN")), Resolver{}, ErrWithheld, `environment variable "TOKEN": may not be read`},
		"default does not stand in": {Ref(env("TOKEN"), value("d")), Resolver{}, ErrWithheld, `may not be read`},
		"input":                     {Ref(Source{SchemeInput, "i"}), Resolver{}, ErrWithheld, `input "i": may not be read`},
		"command":                   {Ref(Source{SchemeCommand, "id"}), Resolver{Env: os.LookupEnv}, ErrWithheld, `source "command:id": may not be read`},
		"unset":                     {Ref(env("TOKEN")), Resolver{Env: lookup(nil)}, ErrUnset, `environment variable "TOKEN" is not set and there is no default: no value; set it`},
		"line break":                {Ref(env("A")), Resolver{Env: lookup(map[string]string{"A": "sec\r\nret"})}, nil, "line break"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Server{Name: "srv", Transport: TransportHTTP, URL: Literal("https://h/"), Headers: []Pair{{Name: "X", Value: c.text}}, Origins: place}
			_, err := s.Resolve(t.Context(), c.r)
			if err == nil || !strings.Contains(err.Error(), `read mcp.json:4:9: server "srv": field "headers.X": `) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want it to say %s", err, c.want)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			if err != nil && strings.Contains(err.Error(), "ret") {
				t.Errorf("the error shows the value: %v", err)
			}
		})
	}
	// Nothing to ask for: the zero resolver is enough.
	s := &Server{Name: "srv", Transport: TransportHTTP, URL: Literal("https://h/")}
	if _, err := s.Resolve(t.Context(), Resolver{}); err != nil {
		t.Error(err)
	}
}

func TestResolve_EmptyValues(t *testing.T) {
	r := Resolver{Env: lookup(map[string]string{"EMPTY": "", "B": "b"})}
	for want, sources := range map[string][]Source{
		"b": {env("EMPTY"), env("NONE"), env("B")},
		"d": {env("EMPTY"), value("d")},
		"":  {env("NONE"), env("EMPTY")},
	} {
		s := &Server{Transport: TransportStdio, Command: Ref(sources...)}
		got, err := s.Resolve(t.Context(), r)
		if err != nil || got.Argv[0] != want {
			t.Errorf("%v: got %v, %v, want %q", sources, got, err, want)
		}
	}
}

// A server that cannot be resolved does not affect the others.
func TestResolveAll_SkipsFailures(t *testing.T) {
	c := &Config{Servers: []*Server{
		{Name: "bad", Transport: TransportStdio, Command: Ref(env("NOPE"))},
		{Name: "off", Transport: TransportStdio, Command: Ref(env("NOPE")), Disabled: true},
		{Name: "good", Transport: TransportStdio, Command: Literal("x")},
	}}
	ok, warnings := c.ResolveAll(t.Context(), Resolver{Env: lookup(nil)})
	if len(ok) != 1 || ok[0].Server.Name != "good" {
		t.Errorf("resolved %v", ok)
	}
	if len(warnings) != 1 || warnings[0].Server != "bad" || !strings.Contains(warnings[0].Error(), "NOPE") || !strings.Contains(warnings[0].Error(), "left out") {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestReadEnvFile_Errors(t *testing.T) {
	for _, text := range []string{"A", "=x", "A B=1", "A=\"x", "A='x' y"} {
		if got, err := parseEnv(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
}
