package mcpjson

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Explain masks values that could be secrets.
func TestExplain_MasksSecrets(t *testing.T) {
	key := "ghp_" + strings.Repeat("a1B2", 9)
	s := &Server{
		Transport: TransportStdio,
		Command:   Literal("server"),
		Args: []Text{
			Literal("--password"), Literal("hunter2"), Literal("--api-key=hunter2"), Literal("-e"), Literal("DB_TOKEN=hunter2"), Literal(key),
			Literal("postgres://app:hunter2@db/x"), Literal("--path=/srv"), Literal("--verbose"), {{Literal: "--token="}, {Sources: []Source{env("T")}}},
			Ref(env("T"), value(key)),
		},
		Env: []Pair{
			{Name: "API_KEY", Value: Literal("hunter2"), Secret: true}, {Name: "MODE", Value: Literal("fast")}, {Name: "PLAIN", Value: Literal("x " + key)},
			{Name: "TOKEN", Value: Ref(env("TOKEN"), value("hunter2")), Secret: true}, {Name: "MIX_SECRET", Value: Text{{Literal: "a"}, {Sources: []Source{env("B")}}}, Secret: true},
		},
		Headers: []Pair{
			{Name: "Authorization", Value: Literal("Bearer hunter2"), Secret: true}, {Name: "X-Token", Value: Text{{Literal: "Token "}, {Sources: []Source{env("T")}}}, Secret: true},
		},
		URL:    Literal("https://user:hunter2@h.example/mcp?team=blue&api_key=hunter2#f"),
		SSEURL: Text{{Literal: "https://user:hunter2@"}, {Sources: []Source{env("HOST")}}, {Literal: "/x?key=hunter2"}},
		OAuth:  &OAuth{ClientID: Literal("id"), ClientSecret: Literal("hunter2")},
		Extra:  []Extra{{"other", json.RawMessage(`"hunter2"`)}},
	}
	got := make(map[string]string)
	for _, f := range s.Explain() {
		got[f.Path] = f.Value
		if strings.Contains(f.Value, "hunter2") || strings.Contains(f.Value, key) {
			t.Errorf("%s shows %s", f.Path, f.Value)
		}
		if f.Masked != strings.Contains(f.Value, Masked) {
			t.Errorf("%s = %s: got Masked %v", f.Path, f.Value, f.Masked)
		}
	}
	for path, want := range map[string]string{
		"args[1]": Masked + "(7 characters)", "args[2]": "--api-key=" + Masked + "(7 characters)", "args[4]": "DB_TOKEN=" + Masked + "(7 characters)",
		"args[6]": "postgres://app:" + Masked + "(7 characters)@db/x", "args[7]": "--path=/srv", "args[8]": "--verbose",
		"args[9]": "--token=${env:T}", "env.API_KEY": Masked + "(7 characters)", "env.MODE": "fast", "env.PLAIN": "x " + Masked + "(40 characters)",
		"env.TOKEN": "${env:TOKEN | value:" + Masked + "(7 characters)}", "env.MIX_SECRET": Masked + "(1 characters)${env:B}",
		"headers.Authorization": "Bearer " + Masked + "(7 characters)", "headers.X-Token": "Token ${env:T}",
		"url":            "https://user:" + Masked + "(7 characters)@h.example/mcp?team=blue&api_key=" + Masked + "(7 characters)#f",
		"sseUrl":         "https://user:" + Masked + "(7 characters)@${env:HOST}/x?key=" + Masked + "(7 characters)",
		"oauth.clientId": "id", "oauth.clientSecret": Masked + "(7 characters)", "extra.other": Masked,
	} {
		if got[path] != want {
			t.Errorf("%s is %q, want %q", path, got[path], want)
		}
	}
}

// The user who approves a definition sees what it runs.
func TestExplain_HidesNoCommand(t *testing.T) {
	script := "GITHUB_TOKEN=x; id > /tmp/pwned; exec cat"
	s := &Server{
		Transport: TransportStdio, Command: Literal("API_KEY=hunter2"),
		Args: []Text{Literal("-c"), Literal(script), Literal("--token"), Literal("x; id"), Ref(env("UNSET_TOKEN"), value("x; id"))},
		Env:  []Pair{{Name: "TOKEN_COMMAND", Value: Literal("/tmp/evil"), Secret: true}, {Name: "RUN", Value: Literal("id; : ghp_" + strings.Repeat("a1B2", 9)), Secret: true}},
		URL:  Text{{Literal: "https://"}, {Sources: []Source{env("EMPTY")}}, {Literal: "evil.example/x@good.example"}},
	}
	got := make(map[string]string)
	for _, f := range s.Explain() {
		got[f.Path] = f.Value
	}
	for path, want := range map[string]string{
		"command": "API_KEY=hunter2", "args[1]": script, "args[3]": "x; id", "args[4]": "${env:UNSET_TOKEN | value:x; id}",
		"env.TOKEN_COMMAND": "/tmp/evil", "env.RUN": "id; : " + Masked + "(40 characters)", "url": "https://${env:EMPTY}evil.example/x@good.example",
	} {
		if got[path] != want {
			t.Errorf("%s is %q, want %q", path, got[path], want)
		}
	}
}

// Neither the package that a launcher runs nor a file of credentials is masked; a key
// among the arguments of the package is.
func TestExplain_HidesNoPackage(t *testing.T) {
	key := "key-A1b2C3d4E5f6G7h8I9j0"
	for _, tt := range []struct {
		words string
		shown bool
	}{
		{"uvx KEY", true}, {"npx -y KEY", true}, {"uvx --from KEY server", true}, {"uv tool run KEY", true}, {"cmd /c npx -y KEY", true},
		{"docker run -i --rm KEY", true}, {"docker run --name x KEY", true}, {"npx --unknown KEY", true},
		{"npx -y server KEY", false}, {"uvx server --key KEY", false}, {"docker run -e KEY image", false}, {"docker run image KEY", false}, {"server KEY", false},
	} {
		words := strings.Fields(strings.ReplaceAll(tt.words, "KEY", key))
		s := &Server{Transport: TransportStdio, Command: Literal(words[0])}
		for _, w := range words[1:] {
			s.Args = append(s.Args, Literal(w))
		}
		shown := false
		for _, f := range s.Explain() {
			shown = shown || f.Value == key
		}
		if shown != tt.shown {
			t.Errorf("%s: shown is %v", tt.words, shown)
		}
	}
	s := &Server{Transport: TransportStdio, Command: Literal("server"), Env: []Pair{{Name: "AWS_SHARED_CREDENTIALS_FILE", Value: Literal("conf/evil")}}}
	if i := slices.IndexFunc(s.Explain(), func(f Field) bool { return f.Value == "conf/evil" }); i < 0 {
		t.Error("the file of credentials is masked")
	}
	if len(s.Risks()) != 1 {
		t.Errorf("risks: %v", s.Risks())
	}
}

// A field added to Server later must be explained, and compared when it is written.
func TestExplain_CoversEveryField(t *testing.T) {
	notCompared := []string{"Dir", "Dialect", "File", "Origins"}
	notShown := append([]string{"Name"}, notCompared...)
	for i := range reflect.TypeFor[Server]().NumField() {
		name := reflect.TypeFor[Server]().Field(i).Name
		s := full()
		reflect.ValueOf(s).Elem().Field(i).SetZero()
		if seen := len(difference(full(), s)) > 0; seen == slices.Contains(notCompared, name) {
			t.Errorf("%s is compared: %v", name, seen)
		}
		s.Origins, s.Dir = full().Origins, full().Dir
		if seen := !reflect.DeepEqual(full().Explain(), s.Explain()); seen == slices.Contains(notShown, name) {
			t.Errorf("%s is shown: %v", name, seen)
		}
	}
	for i := range reflect.TypeFor[OAuth]().NumField() {
		o := &OAuth{Disabled: true, ClientID: Literal("a"), ClientSecret: Literal("b"), Scopes: []string{"c"}, RedirectURL: "d", CallbackPort: 1,
			MetadataURL: "e", ClientMetadataURL: "f", Resource: "g", ClientCredentials: true, Extra: []Extra{{"h", json.RawMessage("1")}}}
		all := *o
		reflect.ValueOf(o).Elem().Field(i).SetZero()
		if len(differentOAuth(o, &all)) != 1 {
			t.Errorf("%s of OAuth is not compared", reflect.TypeFor[OAuth]().Field(i).Name)
		}
	}
}
