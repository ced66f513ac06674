package tools

import (
	"context"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

var executeCommand = define(info{
	name:  "execute_command",
	title: "Execute a command",
	description: "Run a command in the sandbox of a session, in the home directory. Without args, command is a shell line with pipes and redirections; " +
		"with args, command is a program and args are passed to it as they are. " +
		"A session_id continues in that session's files; without one a new session is made. " +
		"A non-zero exit code is an answer: read it and stderr.",
	set: Sessions, family: sessionErrors, destructive: true, long: true,
}, func(ctx context.Context, c *Call, in executeCommandIn) (executeCommandOut, error) {
	s, acq, err := c.session(ctx, in.SessionID, in.Template, in.Flavor)
	if err != nil {
		return executeCommandOut{}, err
	}
	defer acq.Release()
	req := sandbox.ExecRequest{Shell: in.Command, Timeout: seconds(in.Timeout), Progress: c.Progress}
	if in.Args != nil {
		req.Shell, req.Argv = "", append([]string{in.Command}, in.Args...)
	}
	res, err := s.Exec(ctx, req)
	if err != nil {
		return executeCommandOut{}, err
	}
	out := executeCommandOut{
		sessionOut: newSessionOut(s.Info(), acq, res.Duration.Milliseconds()),
		Command:    echo(in.Command), ExitCode: res.ExitCode, Signal: res.Signal,
		Success: res.ExitCode == 0 && !res.TimedOut,
		Stdout:  res.Stdout, Stderr: res.Stderr, TimedOut: res.TimedOut,
	}
	for _, a := range in.Args {
		if len(out.Args) == maxEchoArgs {
			break
		}
		out.Args = append(out.Args, echo(a))
	}
	out.LostReason, out.Notes = lostState(acq, "session")
	out.StateLost = out.LostReason != ""
	out.Notes = append(out.Notes, res.Notes...)
	return out, nil
})

// maxEcho and maxEchoArgs bound what of a call its answer repeats.
const (
	maxEcho     = 1 << 10
	maxEchoArgs = 64
)

func echo(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	return strings.ToValidUTF8(s[:maxEcho], "") + "…"
}

type executeCommandIn struct {
	Command   string   `json:"command" jsonschema:"a shell line or, with args, a program" min:"1"`
	Args      []string `json:"args,omitempty" jsonschema:"arguments of the program, each passed as it is; leave out for a shell line"`
	Template  string   `json:"template,omitempty" jsonschema:"language of a new session: python or node" oneof:"python,node" default:"python"`
	SessionID string   `json:"session_id,omitempty" jsonschema:"session to run in; an unknown id makes a new session of that id; none makes a new session"`
	Flavor    string   `json:"flavor,omitempty" jsonschema:"size of a new session: small 1 CPU and 1024 MB, medium 2 and 2048, large 4 and 4096" oneof:"small,medium,large" default:"small"`
	Timeout   int      `json:"timeout,omitempty" jsonschema:"seconds after which the command is killed" min:"1" max:"300"`
}

type executeCommandOut struct {
	sessionOut
	Command    string   `json:"command" jsonschema:"the command, cut if long"`
	Args       []string `json:"args,omitempty" jsonschema:"its arguments, cut if long"`
	ExitCode   int      `json:"exit_code" jsonschema:"0 for success; 128 + n after signal n"`
	Signal     string   `json:"signal,omitempty" jsonschema:"the signal that ended it"`
	Success    bool     `json:"success" jsonschema:"whether the exit code is 0"`
	Stdout     string   `json:"stdout" jsonschema:"standard output"`
	Stderr     string   `json:"stderr" jsonschema:"standard error"`
	TimedOut   bool     `json:"timed_out,omitempty" jsonschema:"whether the time-out ended it"`
	StateLost  bool     `json:"state_lost,omitempty" jsonschema:"whether earlier files are gone"`
	LostReason string   `json:"lost_reason,omitempty" jsonschema:"why they are gone"`
	Notes      []string `json:"notes,omitempty" jsonschema:"what else there is to know about this run"`
}

func (o executeCommandOut) present() presentation {
	return presentation{text: joined(o.Stdout, o.Stderr), notes: strings.Join(o.Notes, "\n"), failed: !o.Success}
}
