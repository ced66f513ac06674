package tools

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
)

func TestInput_Decode(t *testing.T) {
	code := inputOf[executeCodeIn]("execute_code")
	command := inputOf[executeCommandIn]("execute_command")
	file := inputOf[uploadFileIn]("upload_file")
	create := inputOf[createContextIn]("create_context")
	nothing := inputOf[struct{}]("list_contexts")
	for _, c := range []struct {
		in   *input
		into any
		args string
		want string // of the error; "" none
	}{
		{&code, &executeCodeIn{}, `{"code":"1"}`, ""},
		{&code, &executeCodeIn{}, `{"params":{"code":"1"}}`, ""},
		{&code, &executeCodeIn{}, `{"code":"1","session_id":null,"timeout":null}`, ""},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":30.0}`, ""},
		{&code, &executeCodeIn{}, `{"code":"\u0000"}`, ""},
		{&code, &executeCodeIn{}, ``, "Missing required parameter: code"},
		{&code, &executeCodeIn{}, `null`, "Missing required parameter: code"},
		{&code, &executeCodeIn{}, `{"code":null}`, "Missing required parameter: code"},
		{&code, &executeCodeIn{}, `{"code":" \n"}`, "Parameter 'code' must not be empty"},
		{&code, &executeCodeIn{}, `{"code":1}`, "Parameter 'code' must be a string, got a number"},
		{&code, &executeCodeIn{}, `{"code":["1"]}`, "Parameter 'code' must be a string, got an array"},
		{&code, &executeCodeIn{}, `[1]`, "Tool arguments must be an object"},
		{&code, &executeCodeIn{}, `"code"`, "Tool arguments must be an object"},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":0}`, "Parameter 'timeout' must be >= 1, got 0"},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":-1}`, "Parameter 'timeout' must be >= 1, got -1"},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":1e9}`, "Parameter 'timeout' must be <= 300, got 1e9"},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":1.5}`, "Parameter 'timeout' must be an integer, got 1.5"},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":"30 s"}`, "Parameter 'timeout' must be an integer, got the string \"30 s\""},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":"true"}`, "Parameter 'timeout' must be an integer, got the string \"true\""},
		{&code, &executeCodeIn{}, `{"code":"1","timeout":"999"}`, "Parameter 'timeout' must be <= 300, got 999"},
		{&code, &executeCodeIn{}, `{"code":"1","sessionId":"x"}`, "Unknown parameter: sessionId Did you mean 'session_id'?"},
		{&code, &executeCodeIn{}, `{"code":"1","time_out":3}`, "Unknown parameter: time_out Did you mean 'timeout'?"},
		{&code, &executeCodeIn{}, `{"code":"1","frobnicate":3}`, "Unknown parameter: frobnicate The parameters are: code, language, template, session_id, flavor, network, timeout."},
		{&code, &executeCodeIn{}, `{"code":"1","template":"node","context_id":"c"}`, ""},
		{&code, &executeCodeIn{}, `{"code":"1","session_id":"c","context_id":"c"}`, ""},
		{&code, &executeCodeIn{}, `{"code":"1","session_id":null,"context_id":"c"}`, ""},
		{&code, &executeCodeIn{}, `{"code":"1","session_id":"s","context_id":"c"}`, "Pass either session_id or context_id, not both"},
		{&code, &executeCodeIn{}, `{"code":"1","templat":"node"}`, "Unknown parameter: templat Did you mean 'template'?"},
		{&command, &executeCommandIn{}, `{"command":"ls","args":[]}`, ""},
		{&command, &executeCommandIn{}, `{"command":"ls","args":"-l"}`, "Parameter 'args' must be an array of strings, got the string \"-l\""},
		{&command, &executeCommandIn{}, `{"command":"ls","args":[1]}`, "Parameter 'args' must be an array of strings, got an array of something else"},
		{&command, &executeCommandIn{}, `{"command":"ls","args":[null]}`, "Parameter 'args' must be an array of strings, got an array of something else"},
		{&file, &uploadFileIn{}, `{"path":"a","content":"","encoding":"BASE64"}`, ""},
		{&file, &uploadFileIn{}, `{"path":"a","content":"","encoding":"hex"}`, `Parameter 'encoding' must be one of: [utf-8, base64], got "hex"`},
		{&file, &uploadFileIn{}, `{"path":"a","content":"","overwrite":"no"}`, "Parameter 'overwrite' must be a boolean, got the string \"no\""},
		{&create, &createContextIn{}, `{"name":"a","description":"` + strings.Repeat("é", 4096) + `"}`, ""},
		{&create, &createContextIn{}, `{"name":"a","description":"` + strings.Repeat("é", 4097) + `"}`, "Parameter 'description' must have at most 4096 characters, got 4097"},
		{&nothing, &struct{}{}, `{}`, ""},
		{&nothing, &struct{}{}, `{"params":{}}`, ""},
		{&nothing, &struct{}{}, `{"x":1}`, "Unknown parameter: x This tool takes no parameters."},
	} {
		err := c.in.decode(json.RawMessage(c.args), c.into)
		got := ""
		if e := (*box.Error)(nil); errors.As(err, &e) {
			got = strings.TrimSpace(e.Msg + " " + e.Hint)
		}
		if got != c.want {
			t.Errorf("decode(%s) = %q, want %q", c.args, got, c.want)
		}
	}
	var lenient executeCodeIn
	if err := code.decode(json.RawMessage(`{"code":"1","timeout":"30"}`), &lenient); err != nil || lenient.Timeout != 30 {
		t.Errorf("decode a number in a string: got %+v, %v", lenient, err)
	}
	var kept uploadFileIn
	if err := file.decode(json.RawMessage(`{"path":"a","content":"1","overwrite":"false"}`), &kept); err != nil || kept.Overwrite || kept.Content != "1" {
		t.Errorf("decode a boolean in a string: got %+v, %v", kept, err)
	}
	var in uploadFileIn
	if err := file.decode(json.RawMessage(`{"path":"a","content":"b"}`), &in); err != nil {
		t.Fatal(err)
	}
	var node executeCodeIn
	if err := code.decode(json.RawMessage(`{"code":"1","template":"node","context_id":"c"}`), &node); err != nil || node.Template != "node" || node.SessionID != "c" {
		t.Errorf("decode: got %+v, %v, want the values of the aliases", node, err)
	}
	if in.Encoding != "utf-8" || in.Mode != "0644" || !in.Overwrite {
		t.Errorf("decode: got %+v, want the defaults", in)
	}
}

// FuzzInput: any input is decoded or refused.
func FuzzInput(f *testing.F) {
	in := inputOf[executeCommandIn]("execute_command")
	for _, s := range []string{`{"command":"x"}`, `{"params":{"command":"x","args":["y"]}}`, `[`, `{"timeout":1e999}`, "{\"\xff\":1}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var args executeCommandIn
		if in.decode(raw, &args) == nil && strings.TrimSpace(args.Command) == "" {
			t.Errorf("decode(%q): accepted without a command", raw)
		}
	})
}

func TestInput_Base64(t *testing.T) {
	for in, want := range map[string]string{
		"aGk=": "hi", "aGk": "hi", "aG\nk=": "hi", "_-8=": "\xff\xef", "": "",
	} {
		got, err := decodeBase64(in)
		if err != nil || string(got) != want {
			t.Errorf("decodeBase64(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	if _, err := decodeBase64("a*b"); err == nil {
		t.Error("decodeBase64 accepts an asterisk")
	}
}

func TestInput_WholeRunes(t *testing.T) {
	for in, want := range map[string]string{"a": "a", "aé": "aé", "a\xc3": "a", "a\xf0\x9f\x98": "a", "": "", "\xff": "\xff"} {
		if got := wholeRunes([]byte(in)); string(got) != want {
			t.Errorf("wholeRunes(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestCallBox: the box of a call is that which its tool will read from the arguments.
func TestCallBox(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"session_id":"a","code":"1"}`:             "a",
		`{"context_id":"b"}`:                        "b",
		`{"session_id":"","context_id":"b"}`:        "b",
		`{"session_id":null,"context_id":"b"}`:      "b",
		`{"params":{"session_id":"a"}}`:             "a",
		`{"params":{"session_id":"a"},"code":"1"}`:  "",
		`{"Session_Id":"a"}`:                        "",
		`{"SESSION_ID":"a"}`:                        "",
		`{"ſession_id":"a"}`:                        "",
		`{"sessionId":"a"}`:                         "",
		`{"session_id":"a","Session_Id":"other"}`:   "a",
		`{"session_id":"a","ſession_id":"other"}`:   "a",
		`{"session_id":["a"],"CONTEXT_ID":"other"}`: "",
		`{"session_id":7}`:                          "",
		`[]`:                                        "",
		`null`:                                      "",
		``:                                          "",
	} {
		if got := CallBox(json.RawMessage(arguments)); got != want {
			t.Errorf("%s: got the box %q, want %q", arguments, got, want)
		}
	}
}
