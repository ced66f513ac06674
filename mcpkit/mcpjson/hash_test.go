package mcpjson

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"
)

// full is a definition with every field set.
func full() *Server {
	return &Server{
		Name: "n", Title: "t", Description: "d", Transport: TransportStdio,
		Command: Literal("c"), Args: []Text{Literal("a")}, Env: []Pair{{Name: "E", Value: Literal("v")}}, PassEnv: []string{"P"}, InheritEnv: true,
		EnvFile: Literal("f"), Cwd: Literal("w"), StdoutLog: &StdoutLog{Path: "l", MaxBytesPerPart: 1, MaxParts: 1},
		Socket: Literal("s"), URL: Literal("u"), SSEURL: Literal("v"), SSEFallback: true,
		Headers: []Pair{{Name: "H", Value: Literal("v")}}, BearerTokenEnv: "T", OAuth: &OAuth{ClientID: Literal("i")},
		Timeouts: Timeouts{time.Second, time.Second}, Disabled: true, Required: true, Tools: ToolFilter{Allow: []string{"a"}}, Roots: []Root{{URI: "r"}},
		Extra: []Extra{{"k", json.RawMessage("1")}}, Dir: "/d", Dialect: V1, File: "f", Origins: map[string]Origin{"command": {Line: 1}},
	}
}

// For every field of Server, the test decides whether a change asks the user again. A
// field added later has to be added here.
func TestHash_EveryField(t *testing.T) {
	same := []string{"Title", "Description", "Disabled", "Required", "Dialect", "File", "Origins"}
	want := full().Hash()
	if want != full().Hash() || len(want) != 64 {
		t.Fatalf("hash is not stable: %s", want)
	}
	for i := range reflect.TypeFor[Server]().NumField() {
		name := reflect.TypeFor[Server]().Field(i).Name
		s := full()
		f := reflect.ValueOf(s).Elem().Field(i)
		if f.IsZero() {
			t.Errorf("%s is not set in full", name)
		}
		if name == "Transport" {
			f.SetString(string(TransportUnix))
		} else {
			f.SetZero()
		}
		if got := s.Hash() == want; got != slices.Contains(same, name) {
			t.Errorf("without %s the hash is the same: %v", name, got)
		}
	}
}

// The directory is part of the hash of programs, but not of network addresses.
func TestHash_Dir(t *testing.T) {
	for _, c := range []struct {
		s    Server
		same bool
	}{
		{Server{Transport: TransportStdio, Command: Literal("node")}, false},
		{Server{Transport: TransportHTTP, URL: Literal("https://h/")}, true},
		{Server{Transport: TransportHTTP, URL: Ref(Source{SchemeFile, "x"})}, false},
	} {
		a, b := c.s, c.s
		a.Dir, b.Dir = "/a", "/b"
		if same := a.Hash() == b.Hash(); same != c.same {
			t.Errorf("%+v: same in two directories: %v, want %v", c.s, same, c.same)
		}
	}
}

func TestNeeds(t *testing.T) {
	s := full()
	s.Env = append(s.Env, Pair{Name: "X", Value: Ref(env("Z"), env("A"), value("d"), Source{SchemeInput, "i"})}, Pair{Name: "Y", Value: Ref(Source{SchemeCommand, "c"})})
	s.Headers = append(s.Headers, Pair{Name: "COOKIE"})
	got := s.Needs()
	want := Needs{Spawn: true, EnvFile: true, InheritEnv: true, Env: []string{"A", "P", "T", "Z"}, Inputs: []string{"i"},
		Other: []Source{{SchemeCommand, "c"}}, SensitiveHeaders: []string{"authorization", "cookie"}}
	if !reflect.DeepEqual(got, want) || !got.Secrets() {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if plain := (&Server{Transport: TransportHTTP, URL: Literal("https://h/")}).Needs(); plain.Secrets() || plain.Spawn {
		t.Errorf("a plain address needs %+v", plain)
	}
}

func TestToolFilter(t *testing.T) {
	for _, c := range []struct {
		f    ToolFilter
		tool string
		want bool
	}{
		{ToolFilter{}, "x", true},
		{ToolFilter{Allow: []string{}}, "x", false},
		{ToolFilter{Allow: []string{"get_*"}}, "get_x/y", true},
		{ToolFilter{Allow: []string{"get_*"}}, "put_x", false},
		{ToolFilter{Deny: []string{"x"}, Allow: []string{"*"}}, "x", false},
		{ToolFilter{Allow: []string{"a[b]"}}, "a[b]", true},
		{ToolFilter{Allow: []string{"a[b]"}}, "ab", false},
	} {
		if got := c.f.Allows(c.tool); got != c.want {
			t.Errorf("%+v allows %q: %v", c.f, c.tool, got)
		}
	}
}
