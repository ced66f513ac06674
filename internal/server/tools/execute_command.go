package tools

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/truncate"
)

var executeCommand = define(info{
	name:  "execute_command",
	title: "Execute a command",
	description: "Run a shell command in the sandbox of a session, in its home directory /home/user, beside the variables and files of execute_code. " +
		"command is a line for bash, with pipes and redirections; with args it is a program and args are passed to it as they are. " +
		"Each call starts a new shell: cd and export do not last. " +
		"Pass the session_id of an earlier answer, or leave it out for a new session. Background processes live on in the session. " + offlineCommand,
	calls: "glovebox-tool SERVER.TOOL name=value calls a tool of the user's MCP servers; search_tools finds them.", offline: offlineCommand,
	set: Sessions, family: sessionErrors, destructive: true, long: true,
}, func(ctx context.Context, c *Call, in executeCommandIn) (executeCommandOut, error) {
	b, err := c.open(ctx, openOptions{id: in.SessionID, language: in.Language, template: in.Template, flavor: in.Flavor, network: in.Network})
	if err != nil {
		return executeCommandOut{}, err
	}
	req := box.ExecRequest{Shell: in.Command, Timeout: cmp.Or(seconds(in.Timeout), b.SessionTimeout()), Progress: c.Progress, ToolCalls: c.calls(b.ID())}
	if len(in.Args) > 0 { // some models send an empty list
		req.Shell, req.Argv = "", append([]string{in.Command}, in.Args...)
	}
	res, err := b.Exec(ctx, req)
	if err != nil {
		return executeCommandOut{}, c.withChanges(err)
	}
	out := executeCommandOut{
		sessionOut: newSessionOut(b, res.Duration),
		Command:    echo(in.Command), ExitCode: res.ExitCode, Signal: res.Signal,
		Success: res.ExitCode == 0 && !res.TimedOut,
		Stdout:  res.Stdout, Stderr: res.Stderr, TimedOut: res.TimedOut, Network: newNetworkOut(res.Refused, res.RefusedMore),
	}
	var more []string
	out.images, more = attach(res.Images)
	out.figures = figures(res.Images)
	for _, a := range in.Args {
		if len(out.Args) == maxEchoArgs {
			break
		}
		out.Args = append(out.Args, echo(a))
	}
	out.LostReason, out.Notes = describeLoss(b.Hold, "session")
	out.StateLost = out.LostReason != ""
	out.Notes = withNotes(b.notes, slices.Concat(out.Notes, res.Notes, c.changesBefore(out.Success), more))
	if res.ExitCode == 127 && len(in.Args) > 0 && strings.ContainsAny(in.Command, " \t\n") {
		out.Notes = append(out.Notes, "With args, command is the name of one program, without arguments: move those into args, or leave args out to run a shell line.")
	}
	return out, nil
})

const offlineCommand = "There is no network."

// maxEcho and maxEchoArgs bound the arguments that an answer repeats.
const (
	maxEcho     = 1 << 10
	maxEchoArgs = 64
)

func echo(s string) string { return truncate.Bytes(s, maxEcho) }

type executeCommandIn struct {
	Command   string   `json:"command" jsonschema:"a shell line or, with args, a program" min:"1"`
	Args      []string `json:"args,omitempty" jsonschema:"arguments of the program; leave out for a shell line"`
	SessionID string   `json:"session_id,omitempty" jsonschema:"session to run in; leave out for a new one" alias:"context_id"`
	Language  string   `json:"language,omitempty" jsonschema:"of a new session" oneof:"python,javascript" default:"python"`
	Template  string   `json:"template,omitempty" jsonschema:"as in execute_code"`
	Flavor    string   `json:"flavor,omitempty" jsonschema:"size of a new session, as in execute_code" oneof:"small,medium,large" default:"small"`
	Network   []string `json:"network,omitempty" jsonschema:"as in execute_code" online:"true"`
	Timeout   int      `json:"timeout,omitempty" jsonschema:"seconds until the command is killed; default 300" min:"1" max:"300"`
}

type executeCommandOut struct {
	sessionOut
	Command    string   `json:"command" jsonschema:"the command, cut if long"`
	Args       []string `json:"args,omitempty" jsonschema:"its arguments, cut if long"`
	ExitCode   int      `json:"exit_code" jsonschema:"0 for success; 128 + n after signal n; -1: not run, or interrupted"`
	Signal     string   `json:"signal,omitempty" jsonschema:"the signal that ended it"`
	Success    bool     `json:"success" jsonschema:"whether the exit code is 0"`
	Stdout     string   `json:"stdout" jsonschema:"standard output"`
	Stderr     string   `json:"stderr" jsonschema:"standard error"`
	TimedOut   bool     `json:"timed_out,omitempty" jsonschema:"whether the timeout ended the command"`
	StateLost  bool     `json:"state_lost,omitempty" jsonschema:"whether earlier files are gone"`
	LostReason string   `json:"lost_reason,omitempty" jsonschema:"why earlier files are gone"`
	Notes      []string `json:"notes,omitempty" jsonschema:"further facts about this run"`
	ErrorCode  string   `json:"error_code,omitempty" jsonschema:"why it did not run or end, if so"`

	Network networkOut `json:"network,omitempty" jsonschema:"refused: list of host, port, rule, why, count; other: the same, not refused"`

	images  []box.Image // that tools of MCP servers returned
	figures []figure    // of images
}

// notRun is the exit code of a command that did not run, or whose end is not known.
const notRun = -1

func (executeCommandOut) failed(in executeCommandIn, b target, why failure) any {
	return executeCommandOut{
		sessionOut: failedSession(b, in.SessionID, in.Language, in.Template, in.Flavor, why.partial.Duration),
		Command:    echo(in.Command), ExitCode: notRun, Stdout: why.partial.Stdout, Stderr: lines(why.partial.Stderr, why.text), ErrorCode: why.code,
	}
}

func (o executeCommandOut) present() presentation {
	p := presentation{text: joined(o.Stdout, o.Stderr), notes: o.Notes, failed: !o.Success, images: o.images, meta: o.meta()}
	p.status.addBox(o.box.ref(), o.SessionCreated)
	switch {
	case o.TimedOut:
		p.status.add("timed out")
	case o.Signal != "":
		p.status.add("exit %d, signal %s", o.ExitCode, o.Signal)
	default:
		p.status.add("exit %d", o.ExitCode)
	}
	p.status.addFigures(o.figures)
	p.status.addDuration(o.took)
	return p
}
