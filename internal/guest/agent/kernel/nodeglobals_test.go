package kernel

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// setup lets code use the names of code mode; nothing answers at the socket.
var setup = []byte(`{"socket":"/nonexistent","token":"t","bin":"/nonexistent"}`)

// hidingCells fail before NAME, which they declare, has a value.
var hidingCells = map[string]string{
	"default import":     "import NAME from 'nosuchmodule'",
	"named import":       "import {NAME} from 'nosuchmodule'",
	"renamed import":     "import {x as NAME} from 'nosuchmodule'",
	"namespace":          "import * as NAME from 'nosuchmodule'",
	"const":              "const NAME = require('nosuchmodule')",
	"let":                "let NAME = require('nosuchmodule')",
	"const after await":  "const NAME = await Promise.reject(new Error('no'))",
	"class":              "class NAME extends require('nosuchmodule') {}",
	"object pattern":     "const {NAME} = null",
	"array pattern":      "let [NAME] = null",
	"later in the cell":  "null.x; const NAME = 1; let other = 2",
	"second declaration": "const first = 1, NAME = null.x",
}

func TestNodeFailedCell_GlobalsStay(t *testing.T) {
	for _, node := range nodes(t) {
		for what, code := range hidingCells {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				plain, calls := start(t, JavaScript, node), start(t, JavaScript, node)
				for _, name := range []string{"tools", "callTool", "require", "console"} {
					failing, use := strings.ReplaceAll(code, "NAME", name), fmt.Sprintf("[typeof %[1]s, %[1]s === globalThis.%[1]s]", name)
					want := "[ 'function', true ]"
					if name == "tools" || name == "console" {
						want = "[ 'object', true ]"
					}
					for range 2 { // a name that was uncovered can be hidden again
						wantFailure(t, calls, Request{Code: []byte(failing), Tools: setup})
						if _, rec := runWith(t, calls, Request{Code: []byte(use), Timeout: time.Minute, Tools: setup}); rec.value() != want {
							t.Errorf("after %s: %s: got %q, want %q", failing, use, rec.value(), want)
						}
					}
					// Before the first run that may call tools, their names are not globals yet.
					wantFailure(t, plain, Request{Code: []byte(failing)})
					if name == "require" || name == "console" {
						if _, rec := run(t, plain, use); rec.value() != want {
							t.Errorf("without code mode, after %s: got %q, want %q", failing, rec.value(), want)
						}
					}
				}
				const late = "[typeof tools, typeof callTool]"
				if _, rec := runWith(t, plain, Request{Code: []byte(late), Timeout: time.Minute, Tools: setup}); rec.value() != "[ 'object', 'function' ]" {
					t.Errorf("code mode after the failure: %s: got %q", late, rec.value())
				}
			})
		}
	}
}

// TestNodeFailedCell_NamesAgain: names that hide no global can be declared again, a value
// of an earlier let stays, and uncovered names are the user's to take.
func TestNodeFailedCell_NamesAgain(t *testing.T) {
	for _, node := range nodes(t) {
		runCells(t, start(t, JavaScript, node), []cell{
			{code: "const a = null.x", error: "TypeError"},
			{code: "a", error: "ReferenceError"},
			{code: "const a = 1; a", value: "1"},
			{code: "let b = 1; const f = () => b; const {c, d} = {c: 2, d: 3}"},
			{code: "let b = null.x", error: "TypeError"},
			{code: "[b, f(), c, d]", value: "[ 1, 1, 2, 3 ]"},
			{code: "class E extends null.x {}", error: "TypeError"},
			{code: "class E {}; new E()", value: "E {}"},
			{code: "const require = null.x", error: "TypeError"},
			{code: "const require = 5; require", value: "5"},
			{code: "null.x", error: "TypeError"},
			{code: "require", value: "5"},
			{code: "let globalThis = null.x", error: "TypeError"},
			{code: "globalThis.process === process", value: "true"},
		})
	}
}

func wantFailure(t *testing.T, k *Kernel, req Request) {
	t.Helper()
	req.Timeout = time.Minute
	if res, _ := runWith(t, k, req); res.OK || res.Lost != "" {
		t.Fatalf("%s: got %+v, want a failure", req.Code, res)
	}
}
