package tools

import (
	"context"
	"math"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var runCode = define(info{
	name:  "run_code",
	title: "Run code in a context",
	description: "Run Python or JavaScript in a context of create_context, as in a notebook; variables, imports and files stay in the context. " +
		"The answer is JSON with stdout, stderr, success and execution_time in seconds; a program that fails has success false and its traceback in stderr. " +
		"Figures come as images. " + ownLibraries + " " + offlineRun,
	wordings: []wording{librariesWording},
	calls:    codeCalls, offline: offlineRun,
	set: Contexts, family: runErrors, destructive: true, long: true,
}, func(ctx context.Context, c *Call, in runCodeIn) (runCodeOut, error) {
	b, hold, own, err := c.context(ctx, in.ContextID)
	if err != nil {
		return runCodeOut{}, err
	}
	res, err := b.Run(ctx, box.RunRequest{Code: in.Code, Timeout: seconds(in.Timeout), Progress: c.Progress, ToolCalls: c.calls(b.ID())})
	if err != nil {
		return runCodeOut{}, c.withChanges(c.explainParked(b, err))
	}
	out := runCodeOut{
		Stdout: res.Stdout, Stderr: res.Stderr, Success: res.Success,
		ExecutionTime: math.Round(res.Duration.Seconds()*1e6) / 1e6,
		ContextID:     b.ID(), TimedOut: res.TimedOut, Figures: figures(res.Images), Network: newNetworkOut(res.Refused, res.RefusedMore),
	}
	if res.Error != nil {
		out.Error = strings.TrimSuffix(echo(res.Error.Name+": "+res.Error.Value), ": ")
	}
	out.LostReason, out.Notes = describeRunLoss(hold, res, "context")
	out.StateLost = out.LostReason != ""
	out.Notes = append(out.Notes, c.changesBefore(res.Success)...)
	var more []string
	out.images, more = attach(res.Images)
	out.Notes = append(out.Notes, more...)
	if own {
		out.ContextCreated = hold.Created
		if c.Client == nil {
			out.Notes = append(out.Notes, "This call made a new context, since it named none: pass context_id "+b.ID()+" to continue in it.")
		}
	}
	return out, nil
})

const offlineRun = "There is no network: pip install fails."

type runCodeIn struct {
	Code      string `json:"code" jsonschema:"the source code to run" min:"1"`
	ContextID string `json:"context_id,omitempty" jsonschema:"id or unique name of the context; without it, the default Python context of this connection" alias:"session_id"`
	Timeout   int    `json:"timeout,omitempty" jsonschema:"seconds until the code is interrupted; default 30" min:"1" max:"300"`
}

type runCodeOut struct {
	Stdout         string   `json:"stdout" jsonschema:"standard output, with the values of last expressions"`
	Stderr         string   `json:"stderr" jsonschema:"standard error, with the traceback of an uncaught error"`
	Success        bool     `json:"success" jsonschema:"whether the code ran without an uncaught error"`
	ExecutionTime  float64  `json:"execution_time" jsonschema:"how long it ran, in seconds"`
	ContextID      string   `json:"context_id" jsonschema:"context that the code ran in"`
	ContextCreated bool     `json:"context_created,omitempty" jsonschema:"whether this call made the default context"`
	Figures        []figure `json:"figures,omitempty" jsonschema:"the images, whose data is in the content"`
	Error          string   `json:"error,omitempty" jsonschema:"the uncaught error in one line, or why the code did not run or end"`
	ErrorCode      string   `json:"error_code,omitempty" jsonschema:"the kind of failure, if it did not"`
	TimedOut       bool     `json:"timed_out,omitempty" jsonschema:"whether the timeout interrupted the code"`
	StateLost      bool     `json:"state_lost,omitempty" jsonschema:"whether earlier variables are gone"`
	LostReason     string   `json:"lost_reason,omitempty" jsonschema:"why earlier variables are gone"`
	Notes          []string `json:"notes,omitempty" jsonschema:"further facts about this run"`

	Network networkOut `json:"network,omitempty" jsonschema:"refused: list of host, port, rule, why, count; other: the same, not refused"`

	images []box.Image
}

func (runCodeOut) failed(in runCodeIn, _ target, why failure) any {
	return runCodeOut{
		Stdout: why.partial.Stdout, Stderr: why.partial.Stderr, ExecutionTime: why.partial.Duration.Seconds(),
		ContextID: echo(in.ContextID), Error: why.text, ErrorCode: why.code,
	}
}

// present does not set isError for a failed program, which clients of the earlier
// server take for an error of the tool; success is false.
func (o runCodeOut) present() presentation { return presentation{asJSON: true, images: o.images} }
