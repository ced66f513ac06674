package envelope

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func TestParse(t *testing.T) {
	e, refused := Parse([]byte(` {"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`))
	if refused != nil || e.Kind != Request || string(e.ID) != `"x"` || e.Method != "tools/call" || e.Tool != "t" || !e.IsModern() {
		t.Errorf("got %+v, %v", e, refused)
	}
	e, refused = Parse([]byte(`{"jsonrpc":"2.0","method":"n","params":{"name":3,"_meta":[]}}`))
	if refused != nil || e.Kind != Notification || e.Tool != "" || e.IsModern() {
		t.Errorf("got %+v, %v", e, refused)
	}
	if e, refused = Parse([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)); refused != nil || e.Kind != Response {
		t.Errorf("got %+v, %v", e, refused)
	}
	if e, refused = Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}`)); refused == nil || refused.Code != jsonrpc.CodeInvalidParams || string(e.ID) != "1" {
		t.Errorf("got %+v, %v", e, refused)
	}
}

// TestParse_Ambiguous: a message that decoders could read in more than one way is
// refused.
func TestParse_Ambiguous(t *testing.T) {
	for in, want := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}`:                                   false,
		`{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}`:                                   false,
		`{"jsonrpc":"2.0","id":1,"m\u0065thod":"a","method":"b"}`:                              false,
		`{"jsonrpc":"2.0","ID":1,"method":"a"}`:                                                false,
		`{"jsonrpc":"2.0","id":1,"method":"a","param\u017f":{}}`:                               false,
		`{"jsonrpc":"2.0","id":1,"method":"a","x":{"Method":"b"},"y":["ID"],"z":"\"Method\""}`: true,
		`{"jsonrpc":"2.0","id":1,"method":"a","params":{"method":"b","a\\":1,"METHOD":[{}]}}`:  true,
		`{"jsonrpc":"2.0", "id" : "\\", "method":"a", "trace":1, "trace":2}`:                   true,
	} {
		e, refused := Parse([]byte(in))
		if (refused == nil) != want || want && e.Method != "a" || !want && refused.Code != jsonrpc.CodeInvalidRequest {
			t.Errorf("%s: got %+v, %v", in, e, refused)
		}
	}
}

// TestParse_TooManyValues: a small message that would take much memory once decoded is
// refused before that.
func TestParse_TooManyValues(t *testing.T) {
	of := func(values string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"a","params":{"x":` + values + `}}`
	}
	list := func(n int) string { return "[" + strings.Repeat("0,", n-1) + "0]" }
	if e, refused := Parse([]byte(of(list(maxValues - 20)))); refused != nil || e.Method != "a" {
		t.Errorf("as many as may be: got %v", refused)
	}
	if e, refused := Parse([]byte(of(`"` + strings.Repeat(`,:[{\"`, maxValues) + `"`))); refused != nil || e.Method != "a" {
		t.Errorf("a text: got %v", refused)
	}
	for name, in := range map[string]string{
		"a list": of(list(maxValues)), "nothing in nothing": of(strings.Repeat("[", maxValues)), "members": of(strings.Repeat(`{"":`, maxValues)),
	} {
		allocated := testing.AllocsPerRun(1, func() { _, _ = Parse([]byte(in)) })
		if e, refused := Parse([]byte(in)); refused != errValues || string(e.ID) != "7" || allocated > 100 {
			t.Errorf("%s: got id %s, %v, %v allocations", name, e.ID, refused, allocated)
		}
	}
	if _, refused := Split([]byte(list(maxValues + 1))); refused != errValues {
		t.Errorf("a batch: got %v", refused)
	}
}

func TestSplit_TooManyMessages(t *testing.T) {
	batch := func(n int) []byte { return []byte("[" + strings.Repeat("{},", n-1) + "{}]") }
	if elements, refused := Split(batch(256)); refused != nil || len(elements) != 256 {
		t.Errorf("256 messages: got %d, %v", len(elements), refused)
	}
	if elements, refused := Split(batch(257)); refused == nil || !strings.Contains(refused.Message, "more than 256 messages") {
		t.Errorf("257 messages: got %d, %v", len(elements), refused)
	}
}

func TestPrefixID(t *testing.T) {
	for in, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"method":"x","params":{"a`: "7",
		`{"params":{"a":[1,{}]},"id":"s","method":"x`:       `"s"`,
		`{"params":{"a":"cut`:                               "",
		`{"id":12`:                                          "",
		`[1]`:                                               "", ``: "", `{`: "", `{"id":1.5,`: "",
	} {
		if got := PrefixID([]byte(in)); string(got) != want {
			t.Errorf("PrefixID(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzParse: what is accepted the SDK reads as the same message, if it does.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","method":"x","params":{"_meta":null}}`,
		`{"jsonrpc":"2.0","id":1e3,"method":"x"}`, `{"JSONRPC":"2.0","ID":1,"METHOD":"x"}`, `[1]`, `{}`,
		`{"jsonrpc":"2.0","id":"1","error":{"code":1}}`, `{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}`,
		`{"jsonrpc":"2.0","id":1,"m\u0065thod":"a","x":["\\\"",{"id":1}]}`,
		`{"jsonrpc":"2.0","id":-0,"method":"ping"}`, `{"jsonrpc":"2.0","id":-0.0,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":-1e-400,"method":"ping"}`, `{"jsonrpc":"2.0","id":-7.0,"result":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if IsBatch(data) {
			_, _ = Split(data)
		}
		e, refused := Parse(data)
		if reply := ErrorReply(e.ID, &jsonrpc.Error{Code: 1}); !json.Valid(reply) {
			t.Errorf("reply %q", reply)
		}
		if id := PrefixID(data); id != nil && !json.Valid(id) {
			t.Errorf("id %q", id)
		}
		if refused != nil {
			return
		}
		m, err := jsonrpc.DecodeMessage(data)
		if err != nil {
			return // stricter
		}
		if got, refused := e.Message(); !e.Inexact && (refused != nil || !reflect.DeepEqual(got, m)) {
			t.Errorf("%q: got %#v, %v, the SDK reads %#v", data, got, refused, m)
		}
		var id jsonrpc.ID
		switch m := m.(type) {
		case *jsonrpc.Request:
			id = m.ID
			if m.Method != e.Method || m.IsCall() != (e.Kind == Request) {
				t.Errorf("%q: got %+v, the SDK reads %+v", data, e, m)
			}
		case *jsonrpc.Response:
			id = m.ID
			if e.Kind != Response {
				t.Errorf("%q: got %+v, the SDK reads %+v", data, e, m)
			}
		}
		if got, want := Key(e.ID), SDKKey(id); !e.Inexact && got != want {
			t.Errorf("%q: the key of the id is %q, that of the SDK's id %q", data, got, want)
		}
	})
}

// TestMessage_EqualsDecodedBySDK: the message built from an envelope equals the one that
// the SDK's decoder returns.
func TestMessage_EqualsDecodedBySDK(t *testing.T) {
	for _, in := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":"a","method":"x","params":{"a":[1, 2]}}`,
		`{"jsonrpc":"2.0","method":"notifications/x","params":null}`, `{"jsonrpc":"2.0","id":7.0,"method":"x","params":{}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"a":1}}`, `{"jsonrpc":"2.0","id":3,"error":{"code":5,"message":"m","data":[1]}}`,
	} {
		e, refused := Parse([]byte(in))
		if refused != nil {
			t.Fatalf("%s: %v", in, refused)
		}
		got, refused := e.Message()
		want, err := jsonrpc.DecodeMessage([]byte(in))
		if refused != nil || err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %#v, %v, want %#v, %v", in, got, refused, want, err)
		}
	}
	e, _ := Parse([]byte(`{"jsonrpc":"2.0","id":3,"error":"x"}`))
	if _, refused := e.Message(); refused == nil {
		t.Error("an error that is no object is accepted")
	}
}

// TestSeal_HidesMethodNotFoundFromTheSDK: the SDK finds the code with errors.Is and would
// replace the error.
func TestSeal_HidesMethodNotFoundFromTheSDK(t *testing.T) {
	e := &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "m", Data: json.RawMessage("1")}
	opaqueErr := Opaque(e)
	if errors.Is(opaqueErr, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound}) {
		t.Error("the SDK finds the code")
	}
	if got := WireError(opaqueErr); got != e {
		t.Errorf("got %v", got)
	}
	for err, want := range map[error]int64{
		errors.New("x"):                               jsonrpc.CodeInternalError,
		&jsonrpc.Error{Code: 0}:                       jsonrpc.CodeInternalError,
		&jsonrpc.Error{Code: -5}:                      -5,
		fmt.Errorf("y: %w", &jsonrpc.Error{Code: -6}): -6,
	} {
		if got := WireError(Opaque(err)); got.Code != want || got.Message != err.Error() {
			t.Errorf("%v: got %+v", err, got)
		}
	}
}
