package tools

import (
	"context"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

var executeCode = define(info{
	name:  "execute_code",
	title: "Execute code",
	description: "Run Python or JavaScript in an isolated sandbox. Variables, imports and files live on in the session: " +
		"pass the session_id of the answer to continue in it, leave it out for a new one. " +
		"The answer is what the code printed, then its errors; the value of a last expression is shown as in a notebook. " +
		"Long output is cut in the middle. There is no network unless the operator allows it.",
	set: Sessions, family: sessionErrors, destructive: true, long: true,
}, func(ctx context.Context, c *Call, in executeCodeIn) (executeCodeOut, error) {
	s, acq, err := c.session(ctx, in.SessionID, in.Template, in.Flavor)
	if err != nil {
		return executeCodeOut{}, err
	}
	defer acq.Release()
	res, err := s.Run(ctx, sandbox.RunRequest{Code: in.Code, Timeout: seconds(in.Timeout), Progress: c.Progress})
	if err != nil {
		return executeCodeOut{}, err
	}
	b := s.Info()
	out := executeCodeOut{
		sessionOut: newSessionOut(b, acq, res.Duration.Milliseconds()),
		Success:    res.Success, Stdout: res.Stdout, Stderr: res.Stderr, TimedOut: res.TimedOut,
		images: res.Images,
	}
	out.LostReason, out.Notes = lostBy(acq, res, "session")
	out.StateLost = out.LostReason != ""
	return out, nil
})

type executeCodeIn struct {
	Code      string `json:"code" jsonschema:"the source code to run" min:"1"`
	Template  string `json:"template,omitempty" jsonschema:"language of a new session: python, or node for JavaScript" oneof:"python,node" default:"python"`
	SessionID string `json:"session_id,omitempty" jsonschema:"session to run in; an unknown id makes a new session of that id; none makes a new session"`
	Flavor    string `json:"flavor,omitempty" jsonschema:"size of a new session: small 1 CPU and 1024 MB, medium 2 and 2048, large 4 and 4096" oneof:"small,medium,large" default:"small"`
	Timeout   int    `json:"timeout,omitempty" jsonschema:"seconds after which the code is interrupted" min:"1" max:"300"`
}

// sessionOut is what all calls into a session say about it.
type sessionOut struct {
	SessionID       string `json:"session_id" jsonschema:"session that the call ran in; pass it on to continue"`
	ExecutionTimeMS int64  `json:"execution_time_ms" jsonschema:"how long it ran, in milliseconds"`
	SessionCreated  bool   `json:"session_created" jsonschema:"whether this call made the session"`
	Template        string `json:"template" jsonschema:"python or node"`
	Flavor          string `json:"flavor" jsonschema:"small, medium or large"`
	Source          string `json:"source,omitempty" jsonschema:"of a session that this call made: warm (it stood ready), cold (from the template) or boot"`
}

type executeCodeOut struct {
	sessionOut
	Success    bool     `json:"success" jsonschema:"whether no error was left uncaught"`
	Stdout     string   `json:"stdout" jsonschema:"standard output, with the values of last expressions"`
	Stderr     string   `json:"stderr" jsonschema:"standard error, with the traceback of an uncaught error"`
	TimedOut   bool     `json:"timed_out,omitempty" jsonschema:"whether the time-out ended it"`
	StateLost  bool     `json:"state_lost,omitempty" jsonschema:"whether earlier variables are gone"`
	LostReason string   `json:"lost_reason,omitempty" jsonschema:"why they are gone"`
	Notes      []string `json:"notes,omitempty" jsonschema:"what else there is to know about this run"`

	images []sandbox.Image
}

func newSessionOut(b sandbox.Info, acq sandbox.Acquired, ms int64) sessionOut {
	out := sessionOut{
		SessionID: b.ID, ExecutionTimeMS: ms, SessionCreated: acq.Created,
		Template: string(b.Template), Flavor: string(b.Flavor),
	}
	if acq.Created {
		out.Source = string(b.Source)
	}
	return out
}

func (o executeCodeOut) present() presentation {
	return presentation{
		text: joined(o.Stdout, o.Stderr), notes: strings.Join(o.Notes, "\n"),
		failed: !o.Success, images: o.images,
	}
}
