package tools

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// TestOffer_Toolsets: the tools that each value of --toolset enables.
func TestOffer_Toolsets(t *testing.T) {
	const (
		sessions  = "execute_code execute_command get_sessions stop_session"
		files     = "upload_file download_file list_files"
		contexts  = "run_code create_context stop_context list_contexts"
		ofSession = "fork_session snapshot_session restore_session"
		ofContext = "fork_context snapshot_context restore_context"
		snapshots = "list_snapshots delete_snapshot"
	)
	everything := strings.Join([]string{sessions, "get_volume_path get_volume_mappings", files, contexts, ofSession, ofContext, snapshots}, " ")
	for _, c := range []struct {
		sets    string
		volumes bool
		want    string
	}{
		{"", false, everything},
		{"all", false, everything},
		{"sessions", false, sessions + " " + files},
		{"sessions", true, sessions + " get_volume_path " + files},
		{"contexts", true, files + " " + contexts},
		{"files", true, files},
		{"snapshots", false, sessions + " " + files + " " + ofSession + " " + snapshots},
		{"contexts,snapshots", false, files + " " + contexts + " " + ofContext + " " + snapshots},
		{"sessions,contexts", false, sessions + " " + files + " " + contexts},
		{"sessions,contexts,snapshots", false, strings.Join([]string{sessions, files, contexts, ofSession, ofContext, snapshots}, " ")},
	} {
		o := Offer{Volumes: c.volumes}
		if c.sets != "" {
			o.Sets = strings.Split(c.sets, ",")
		}
		var got []string
		for _, tool := range All() {
			if tool.In(o) {
				got = append(got, tool.Def.Name)
			}
		}
		want := strings.Fields(c.want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("--toolset %q, volumes %v: got %q, want %q", c.sets, c.volumes, got, want)
		}
	}
}

// TestOffer_EngineWithoutSnapshots: no set includes tools that can only fail, and the
// instructions do not recommend them.
func TestOffer_EngineWithoutSnapshots(t *testing.T) {
	for _, sets := range [][]string{nil, {"all"}, {"sessions", "snapshots"}, {"contexts", "snapshots"}} {
		with, without := Offer{Sets: sets}, Offer{Sets: sets, NoSnapshots: true}
		var left []string
		for _, tool := range All() {
			name := tool.Def.Name
			switch needs := tool.Set == Snapshots; {
			case needs && tool.In(without):
				t.Errorf("%q: %s is offered", sets, name)
			case !needs && tool.In(with) != tool.In(without):
				t.Errorf("%q: %s is left out, and needs no snapshots", sets, name)
			case needs && tool.In(with):
				left = append(left, name)
			}
		}
		if len(left) < 5 {
			t.Errorf("%q: only %q are left out", sets, left)
		}
		if text := Instructions(without); strings.Contains(text, "snapshot") {
			t.Errorf("%q: the instructions speak of snapshots: %s", sets, text)
		}
	}
}

// TestInstructions_Volumes: a model learns that boxes share directories, where they do.
func TestInstructions_Volumes(t *testing.T) {
	for _, volumes := range []bool{false, true} {
		if text := Instructions(Offer{Volumes: volumes}); strings.Contains(text, "get_volume_path") != volumes {
			t.Errorf("volumes %t: got %s", volumes, text)
		}
	}
}

// TestOffer_codeMode: code mode adds its tools to sets that run code.
func TestOffer_codeMode(t *testing.T) {
	for sets, want := range map[string]bool{"": true, "all": true, "sessions": true, "contexts": true, "snapshots": true, "files": false} {
		for _, code := range []bool{true, false} {
			o := Offer{Code: code}
			if sets != "" {
				o.Sets = []string{sets}
			}
			n := 0
			for _, tool := range All() {
				if tool.NeedsCode() && tool.In(o) {
					n++
				}
			}
			if (n == 2) != (want && code) || n == 1 {
				t.Errorf("--toolset %q, code mode %v: %d tools of code mode", sets, code, n)
			}
		}
	}
}

// TestUnknownTool: the error for a tool that a server does not offer has the remedy.
func TestUnknownTool(t *testing.T) {
	offered := []string{"execute_code", "list_files"}
	for _, c := range []struct {
		name  string
		names []string
		ours  bool
		want  string
	}{
		{"create_context", offered, true, "Tool not offered: create_context. It is in the toolset contexts: the operator adds it with --toolset contexts or all. The tools are: execute_code, list_files."},
		{"fork_session", offered, true, "Tool not offered: fork_session. It is in the toolset snapshots: the operator adds it with --toolset snapshots or all."},
		{"fork_context", offered, true, "the operator adds it with --toolset snapshots,contexts or all."},
		{"get_volume_path", offered, true, "The operator adds it with --toolset all."},
		{"create_context", offered, false, "Method not found: tool:create_context. The tools are: execute_code, list_files."},
		{"search_tools", offered, true, "It belongs to code mode: the operator enables that with --tools FILE"},
		{"executecode", offered, true, "Method not found: tool:executecode. Did you mean 'execute_code'?"},
		{"nope", nil, false, "Method not found: tool:nope. This server has no tools at the moment."},
	} {
		if e := UnknownTool(c.name, c.names, c.ours); !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, e.Message, c.want)
		}
	}
}

func TestDescribeLoss(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	for _, c := range []struct {
		name    string
		hold    box.Hold
		reason  string
		note    string // all of it
		orWords string // or words of it
	}{
		{name: "nothing happened", hold: box.Hold{Created: true}},
		{
			name: "woken", hold: box.Hold{Woken: &box.Woken{Saved: at}},
			note: "This context was hibernated at 2026-01-02T02:04:05Z and woken: its variables and files are kept.",
		},
		{
			name: "woken as it was in a call", hold: box.Hold{Woken: &box.Woken{Saved: at, Behind: true, InCall: true}},
			reason: "the server was killed; what the context did after 2026-01-02T02:04:05Z is lost",
			note: "The server was killed while it had this context. It was woken as it was at 2026-01-02T02:04:05Z: what it did after that is lost. " +
				"A call was running at that time. Part of it or all may have taken effect, so look before you repeat it.",
		},
		{
			name: "woken as it was before", hold: box.Hold{Woken: &box.Woken{Saved: at, Behind: true}},
			reason: "the server was killed; what the context did after 2026-01-02T02:04:05Z is lost",
			note:   "The server was killed while it had this context. It was woken as it was at 2026-01-02T02:04:05Z: what it did after that is lost.",
		},
		{
			name: "woken after a crash", hold: box.Hold{Woken: &box.Woken{Saved: at, Behind: true, Why: &box.Tombstone{
				ID: "x", Reason: box.ReasonCrashed, Detail: "its isolation ended", At: at.Add(time.Minute),
			}}},
			reason: "it crashed; what the context did after 2026-01-02T02:04:05Z is lost",
			note:   "This context ended at 2026-01-02T02:05:05Z (it crashed): its isolation ended. It was woken as it was at 2026-01-02T02:04:05Z: what it did after that is lost.",
		},
		{
			name:   "evicted",
			hold:   box.Hold{Created: true, Lost: &box.Tombstone{ID: "x", Reason: box.ReasonEvicted, At: at}},
			reason: "evicted",
			note:   "The earlier context x ended at 2026-01-02T02:04:05Z (it made room for another box). Its variables and files are gone; this is a new box under the same id.",
		},
		{
			name:   "lost with its server",
			hold:   box.Hold{Created: true, Lost: &box.Tombstone{ID: "x", Reason: box.ReasonHostRestart, At: at}},
			reason: "host_restart", orWords: "(it was lost with its server).",
		},
		{
			name:   "lost, then hibernated before a call could report it",
			hold:   box.Hold{Woken: &box.Woken{Saved: at}, Lost: &box.Tombstone{ID: "x", Reason: box.ReasonEvicted, At: at}},
			reason: "evicted",
			note:   "The earlier context x ended at 2026-01-02T02:04:05Z (it made room for another box). Its variables and files are gone; this is a new box under the same id.",
		},
		{
			name:   "lost twice before a call could report it",
			hold:   box.Hold{Woken: &box.Woken{Saved: at, Behind: true}, Lost: &box.Tombstone{ID: "x", Reason: box.ReasonEvicted, At: at}},
			reason: "evicted",
			note: "The earlier context x ended at 2026-01-02T02:04:05Z (it made room for another box). Its variables and files are gone; this is a new box under the same id.\n" +
				"The server was killed while it had this context. It was woken as it was at 2026-01-02T02:04:05Z: what it did after that is lost.",
		},
		{
			name:   "unreadable",
			hold:   box.Hold{Created: true, Lost: &box.Tombstone{ID: "x", Reason: box.ReasonUnreadable, Detail: "its checksum is wrong", At: at}},
			reason: "unreadable", orWords: "(it could not be woken): its checksum is wrong.",
		},
	} {
		reason, notes := describeLoss(c.hold, "context")
		note := strings.Join(notes, "\n")
		if reason != c.reason || c.orWords == "" && note != c.note || !strings.Contains(note, c.orWords) {
			t.Errorf("%s: got %q, %q; want %q, %q", c.name, reason, note, c.reason, c.note+c.orWords)
		}
	}
}

// protocol has the tools of sessions answer as the server did that they come from.
var protocol = Deps{Log: slog.New(slog.DiscardHandler), ProtocolErrors: true}

// TestErrors_OfBothFamilies: how errors that depend on more than their code reach both families.
func TestErrors_OfBothFamilies(t *testing.T) {
	notFound := func(what, key, value string) *box.Error {
		return &box.Error{Code: box.CodeNotFound, Op: "restore " + what, Msg: what + " not found: " + value, Hint: "Look.", Context: map[string]string{key: value}}
	}
	named := func(field string) *box.Error {
		return &box.Error{Code: box.CodeInvalid, Op: "fork context", Msg: "Bad " + field, Context: map[string]string{"field": field}}
	}
	gone := &box.Error{Code: box.CodeGone, Op: "run code", Msg: "Session s has ended", Context: map[string]string{"session_id": "s", "reason": "rolled_back"}}
	for _, c := range []struct {
		err     *box.Error
		family  family
		text    string // of the family for contexts: its code
		message string // of the family for sessions; "" it never has this error
		word    string
	}{
		{notFound("Snapshot", "snapshot_id", "snap"), createErrors, "SNAPSHOT_NOT_FOUND", "Snapshot not found: snap. Look.", "SNAPSHOT_NOT_FOUND"},
		{notFound("Session", "session_id", "s"), runErrors, "SESSION_NOT_FOUND", "Session not found: s. Look.", "SESSION_NOT_FOUND"},
		{notFound("Context", "context_id", "c"), createErrors, "CONTEXT_NOT_FOUND", "", ""},
		{named("name"), createErrors, "INVALID_CONTEXT_NAME", "Invalid parameters: Bad name", "INVALID_PARAMETERS"},
		{named("name"), snapshotErrors, "INVALID_PARAMS", "Invalid parameters: Bad name", "INVALID_PARAMETERS"},
		{named("context_id"), createErrors, "INVALID_PARAMS", "Invalid parameters: Bad context_id", "INVALID_PARAMETERS"},
		{&box.Error{Code: box.CodeLimit, Msg: "Full"}, snapshotErrors, "SNAPSHOT_FAILED", "Resource limit exceeded: Full", "RESOURCE_LIMIT_ERROR"},
		{gone, runErrors, "EXECUTION_FAILED", "Session s has ended", "CALL_INTERRUPTED"},
	} {
		res, err := c.family.answer(protocol, "tool", c.err)
		if err != nil {
			t.Fatal(err)
		}
		if text := res.Content[0].(*mcp.TextContent).Text; !res.IsError || !strings.Contains(text, `"code": "`+c.text+`"`) {
			t.Errorf("%v: got %s, want code %s", c.err, text, c.text)
		}
		if c.message == "" {
			continue
		}
		_, err = sessionErrors.answer(protocol, "tool", c.err)
		var e *jsonrpc.Error
		var d data
		if !errors.As(err, &e) || e.Message != c.message || json.Unmarshal(e.Data, &d) != nil || d.ErrorCode != c.word {
			t.Errorf("%v: got %v, %+v; want %q, %s", c.err, err, d, c.message, c.word)
		}
		if c.err == gone && (len(d.Suggestions) != 1 || !strings.Contains(d.Suggestions[0], "the box is there")) {
			t.Errorf("%v: got suggestions %q", c.err, d.Suggestions)
		}
	}
}

// TestErrors_SuggestionsFitTheLimit: a program is not told to use a smaller flavor where boxes or
// snapshots are counted.
func TestErrors_SuggestionsFitTheLimit(t *testing.T) {
	for limit, want := range map[string][2]bool{ // a smaller flavor, deleting snapshots
		"count": {}, "per_owner": {}, "memory": {true}, "memory_per_owner": {true}, "disk": {true},
		"snapshots": {false, true}, "snapshot_disk": {false, true}, "snapshot_disk_per_owner": {false, true},
	} {
		_, err := sessionErrors.answer(protocol, "tool", &box.Error{Code: box.CodeLimit, Msg: "Full", Context: map[string]string{"limit": limit}})
		var e *jsonrpc.Error
		var d data
		if !errors.As(err, &e) || json.Unmarshal(e.Data, &d) != nil {
			t.Fatal(err)
		}
		said := strings.Join(d.Suggestions, " ")
		if got := [2]bool{strings.Contains(said, "smaller flavor"), strings.Contains(said, "Delete snapshots")}; got != want || said == "" {
			t.Errorf("limit %s: got %q", limit, d.Suggestions)
		}
	}
}

// TestErrors_CompatibleCodes: codes and texts are those of the servers that clients were
// written against.
func TestErrors_CompatibleCodes(t *testing.T) {
	for _, c := range []struct {
		code   box.Code
		op     string
		family family // of the text
		text   string

		rpc    int64
		prefix string
		word   string
	}{
		{box.CodeInvalid, "", runErrors, "INVALID_PARAMS", -32602, "Invalid parameters: ", "INVALID_PARAMETERS"},
		{box.CodeUnsupportedLanguage, "", createErrors, "INVALID_LANGUAGE", -32602, "Invalid parameters: ", "UNSUPPORTED_LANGUAGE"},
		{box.CodeNotFound, "", runErrors, "CONTEXT_NOT_FOUND", -32602, "Session not found: ", "SESSION_NOT_FOUND"},
		{box.CodeLimit, "", createErrors, "CONTEXT_CREATION_FAILED", -32600, "Resource limit exceeded: ", "RESOURCE_LIMIT_ERROR"},
		{box.CodeBusy, "", runErrors, "EXECUTION_FAILED", -32600, "What failed", "SESSION_BUSY"},
		{box.CodeNotReady, "", createErrors, "SERVER_NOT_READY", -32603, "Wrapper error: ", "SERVER_NOT_READY"},
		{box.CodeStartFailed, "", createErrors, "CONTEXT_CREATION_FAILED", -32603, "Sandbox creation failed: ", "SANDBOX_CREATION_ERROR"},
		{box.CodeExecFailed, "run code", runErrors, "EXECUTION_FAILED", -32603, "Code execution failed: ", "CODE_EXECUTION_ERROR"},
		{box.CodeExecFailed, "run command", runErrors, "EXECUTION_FAILED", -32603, "Command execution failed: ", "COMMAND_EXECUTION_ERROR"},
		{box.CodeStopFailed, "", stopErrors, "STOP_FAILED", -32603, "Wrapper error: ", "STOP_FAILED"},
		{box.CodeUnsupported, "", runErrors, "UNSUPPORTED_OPERATION", -32603, "Configuration error: ", "UNSUPPORTED_OPERATION"},
		{box.CodeFileNotFound, "", fileErrors, "FILE_NOT_FOUND", -32602, "", "FILE_NOT_FOUND"},
		{box.CodeFileTooLarge, "", fileErrors, "FILE_TOO_LARGE", -32602, "", "FILE_TOO_LARGE"},
		{box.CodePathNotAllowed, "", fileErrors, "PATH_NOT_ALLOWED", -32602, "", "PATH_NOT_ALLOWED"},
		{box.CodeInternal, "", runErrors, "EXECUTION_FAILED", -32603, "Internal error ", "INTERNAL_ERROR"},
	} {
		// The cause is of an engine: clients do not see it.
		failed := &box.Error{Code: c.code, Op: c.op, Msg: "What failed", Hint: "Do this.", Err: errors.New(`pods "box-1" is forbidden: see node-7`)}
		_, err := sessionErrors.answer(protocol, "tool", failed)
		var e *jsonrpc.Error
		var d data
		if !errors.As(err, &e) || e.Code != c.rpc || !strings.HasPrefix(e.Message, c.prefix) || json.Unmarshal(e.Data, &d) != nil || d.ErrorCode != c.word {
			t.Errorf("%s: got %v, %+v, want %d, %q and %s", c.code, err, d, c.rpc, c.prefix, c.word)
		}
		if len(d.Suggestions) == 0 || d.Context["tool"] != "tool" || slices.Contains(d.Suggestions, failed.Hint) { // the message has the hint
			t.Errorf("%s: got data %+v", c.code, d)
		}
		if strings.Contains(e.Message+string(e.Data), "node-7") {
			t.Errorf("%s: the error has its cause: %v, %s", c.code, e, e.Data)
		}
		res, err := c.family.answer(protocol, "tool", failed)
		if b, jsonErr := json.Marshal(res); jsonErr != nil || strings.Contains(string(b), "node-7") {
			t.Errorf("%s: the result has its cause: %s, %v", c.code, b, jsonErr)
		}
		var said struct{ Error, Code string }
		if err != nil || !res.IsError || json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &said) != nil || said.Error == "" || said.Code != c.text {
			t.Errorf("%s: got %+v, %+v, %v, want %s", c.code, res, said, err, c.text)
		}
	}
}

// TestTables_AreComplete: every code and reason of the boxes has its row here.
func TestTables_AreComplete(t *testing.T) {
	codes, reasons := constants(t, "Code"), reasonWords()
	for _, code := range codes {
		if _, ok := errorSpecs[box.Code(code)]; !ok {
			t.Errorf("code %q has no row in errorSpecs", code)
		}
	}
	for _, r := range constants(t, "Reason") {
		if reasons[r] == "" {
			t.Errorf("reason %q is not explained", r)
		}
	}
	if states := constants(t, "State"); len(states) < 5 || len(codes) < 10 {
		t.Errorf("got states %q and codes %q, want all of them", states, codes)
	} else {
		usable := ""
		for _, s := range states {
			usable += s + "=" + contextStatus(box.State(s)) + " "
		}
		if want := "creating= ready=active running=active paused=paused hibernated=hibernated in use by another server=in use by another server being saved=being saved error= stopped= "; usable != want {
			t.Errorf("words of list_contexts: got %q, want %q", usable, want)
		}
	}
}

func reasonWords() map[string]string {
	words := make(map[string]string)
	for r, text := range reasons {
		words[string(r)] = text
	}
	return words
}

// constants returns the values of the constants of a string type of package box.
func constants(t *testing.T, typ string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "box", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of package box: %v", err)
	}
	var values []string
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			if id, ok := v.Type.(*ast.Ident); !ok || id.Name != typ {
				return true
			}
			literal, ok := v.Values[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
			return true
		})
	}
	return values
}

// TestCodeMode_openWorld: in code mode, clients and models learn that code acts outside
// of the sandbox.
func TestCodeMode_openWorld(t *testing.T) {
	code, plain := Offer{Code: true}, Offer{}
	for _, tool := range All() {
		switch open := *tool.Definition(code).Annotations.OpenWorldHint; {
		case open != (tool.calls != ""):
			t.Errorf("%s: openWorldHint %v in code mode", tool.Def.Name, open)
		case *tool.Definition(plain).Annotations.OpenWorldHint:
			t.Errorf("%s: openWorldHint without code mode", tool.Def.Name)
		}
	}
	const warning = "the user's real data"
	if !strings.Contains(Instructions(code), warning) || strings.Contains(Instructions(plain), warning) {
		t.Errorf("instructions in code mode: %s\nwithout: %s", Instructions(code), Instructions(plain))
	}
}

// TestAboutTools: only a wrong name is an invalid argument.
func TestAboutTools(t *testing.T) {
	for code, want := range map[codemode.Code]string{
		codemode.UnknownTool: "Invalid parameters: Trust it.",
		codemode.Untrusted:   "Trust it.",
		codemode.Unavailable: "Trust it.",
	} {
		res, err := sessionErrors.answer(Deps{Log: slog.New(slog.DiscardHandler)}, "describe_tools", aboutTools(&codemode.Error{Server: "s", Code: code, Message: "Trust it."}))
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Content[0].(*mcp.TextContent).Text; got != want {
			t.Errorf("%s: got %q, want %q", code, got, want)
		}
	}
	// Several servers cannot be used: that is no fault of the configuration of Glovebox.
	several := &codemode.Error{Code: codemode.Unavailable, Message: "One is down.\nAnother is down."}
	if e := describe(slog.New(slog.DiscardHandler), "describe_tools", aboutTools(several)); errorSpecOf(e).word != "TOOLS_UNAVAILABLE" || errorSpecOf(e).prefix != "" {
		t.Errorf("several servers: got %+v", errorSpecOf(e))
	}
	if text := errNoCode().Error(); strings.Contains(text, "operator") || !strings.Contains(text, "--tools") {
		t.Errorf("no servers: %q", text)
	}
}
