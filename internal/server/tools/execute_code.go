package tools

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var executeCode = define(info{
	name:  "execute_code",
	title: "Execute code",
	description: "Run Python or JavaScript in an isolated Linux sandbox, as in a notebook: the value of a last expression is shown, figures come back as images. " +
		"Variables, imports and files stay in the session: pass the session_id of the answer to continue in it, leave it out for a new session. " +
		ownLibraries + " " + offlineCode + " " +
		"Output over 24 KB is cut in the middle and kept whole in a file.",
	wordings: []wording{librariesWording},
	calls:    codeCalls, offline: offlineCode,
	set: Sessions, family: sessionErrors, destructive: true, long: true,
}, func(ctx context.Context, c *Call, in executeCodeIn) (executeCodeOut, error) {
	b, err := c.open(ctx, openOptions{id: in.SessionID, language: in.Language, template: in.Template, flavor: in.Flavor, network: in.Network})
	if err != nil {
		return executeCodeOut{}, err
	}
	res, err := b.Run(ctx, box.RunRequest{Code: in.Code, Timeout: cmp.Or(seconds(in.Timeout), b.SessionTimeout()), Progress: c.Progress, ToolCalls: c.calls(b.ID())})
	if err != nil {
		if box.CodeOf(err) == box.CodeUnsupportedLanguage { // the code did not begin
			c.stopUnnamed(ctx, b)
		}
		return executeCodeOut{}, c.withChanges(c.explainParked(b.Box, err))
	}
	out := executeCodeOut{
		sessionOut: newSessionOut(b, res.Duration),
		Success:    res.Success, Stdout: res.Stdout, Stderr: res.Stderr, TimedOut: res.TimedOut,
		Figures: figures(res.Images), Network: newNetworkOut(res.Refused, res.RefusedMore),
	}
	out.LostReason, out.Notes = describeRunLoss(b.Hold, res, "session")
	out.StateLost = out.LostReason != ""
	out.Notes = append(out.Notes, c.changesBefore(res.Success)...)
	var more []string
	out.images, more = attach(res.Images)
	out.Notes = withNotes(b.notes, slices.Concat(out.Notes, more))
	return out, nil
})

const offlineCode = "There is no network: pip install, npm install and downloads fail."

// codeCalls extends the descriptions of tools that run code in code mode. It says how
// code calls tools, what a call returns, and when a direct call is better.
const codeCalls = "Code can call the user's MCP tools; search_tools finds them. Python: r = tools.SERVER.TOOL(name=value); in a cell with await, await each call. JavaScript: r = await tools.SERVER.TOOL({name: value}). " +
	"r is plain data (r[\"key\"]), not an MCP result; if the signature says Any, print a sample first. Failures raise ToolError; [needs approval] calls ask the user, or fail. " +
	"Prefer code to join, filter or repeat calls and for large results: only its output comes back. For one small call, a direct call is simpler if you have the tool."

type executeCodeIn struct {
	Code      string   `json:"code" jsonschema:"source code" min:"1"`
	Language  string   `json:"language,omitempty" jsonschema:"of a new session" oneof:"python,javascript" default:"python"`
	Template  string   `json:"template,omitempty" jsonschema:"named template of a new session"`
	SessionID string   `json:"session_id,omitempty" jsonschema:"session to run in; leave out for a new one" alias:"context_id"`
	Flavor    string   `json:"flavor,omitempty" jsonschema:"size of a new session: 1, 2 or 4 CPUs and 1, 2 or 4 GB" oneof:"small,medium,large" default:"small"`
	Network   []string `json:"network,omitempty" jsonschema:"hosts and presets that a new session may reach, of those in the description; [] none" online:"true"`
	Timeout   int      `json:"timeout,omitempty" jsonschema:"seconds until the code is interrupted; default 300" min:"1" max:"300"`
}

// sessionOut has the fields that all calls into a session return.
type sessionOut struct {
	SessionID       string `json:"session_id" jsonschema:"session that the call ran in; pass it on to continue"`
	ExecutionTimeMS int64  `json:"execution_time_ms" jsonschema:"how long it ran, in milliseconds"`
	SessionCreated  bool   `json:"session_created" jsonschema:"whether this call made the session"`
	Language        string `json:"language" jsonschema:"python or javascript"`
	Template        string `json:"template" jsonschema:"python, node or a named template"`
	Flavor          string `json:"flavor" jsonschema:"small, medium or large"`

	box  target
	took time.Duration
}

type executeCodeOut struct {
	sessionOut
	Success    bool     `json:"success" jsonschema:"whether the code ran without an uncaught error"`
	Stdout     string   `json:"stdout" jsonschema:"standard output, with the values of last expressions"`
	Stderr     string   `json:"stderr" jsonschema:"standard error, with the traceback of an uncaught error"`
	Figures    []figure `json:"figures,omitempty" jsonschema:"the images, whose data is in the content"`
	TimedOut   bool     `json:"timed_out,omitempty" jsonschema:"whether the timeout interrupted the code"`
	StateLost  bool     `json:"state_lost,omitempty" jsonschema:"whether earlier variables are gone"`
	LostReason string   `json:"lost_reason,omitempty" jsonschema:"why earlier variables are gone"`
	Notes      []string `json:"notes,omitempty" jsonschema:"further facts about this run"`
	ErrorCode  string   `json:"error_code,omitempty" jsonschema:"why it did not run or end, if so"`

	Network networkOut `json:"network,omitempty" jsonschema:"refused: list of host, port, rule, why, count; other: the same, not refused"`

	images []box.Image
}

func newSessionOut(b target, took time.Duration) sessionOut {
	info := b.Info()
	return sessionOut{
		SessionID: info.ID, ExecutionTimeMS: took.Milliseconds(), SessionCreated: b.Created,
		Language: info.Language, Template: templateName(info), Flavor: string(info.Flavor),
		box: b, took: took,
	}
}

// failedSession returns the fields of a call that failed outside of its code: of the box that it
// found, or as the caller named it.
func failedSession(b target, id, language, template, flavor string, took time.Duration) sessionOut {
	if b.Box == nil {
		return sessionOut{SessionID: echo(id), Language: echo(language), Template: echo(template), Flavor: echo(flavor)}
	}
	return newSessionOut(b, took)
}

func (executeCodeOut) failed(in executeCodeIn, b target, why failure) any {
	return executeCodeOut{
		sessionOut: failedSession(b, in.SessionID, in.Language, in.Template, in.Flavor, why.partial.Duration),
		Stdout:     why.partial.Stdout, Stderr: lines(why.partial.Stderr, why.text), ErrorCode: why.code,
	}
}

// meta says how the call started a new session.
func (o *sessionOut) meta() mcp.Meta {
	if !o.SessionCreated {
		return nil
	}
	return mcp.Meta{metaSource: string(o.box.Info().Source)}
}

func (o executeCodeOut) present() presentation {
	p := presentation{
		text: joined(o.Stdout, o.Stderr), notes: o.Notes,
		failed: !o.Success, images: o.images, meta: o.meta(),
	}
	p.status.addBox(o.box.ref(), o.SessionCreated)
	switch {
	case o.TimedOut:
		p.status.add("timed out")
	case !o.Success:
		p.status.add("failed")
	}
	p.status.addFigures(o.Figures)
	p.status.addDuration(o.took)
	return p
}
