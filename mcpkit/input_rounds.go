package mcpkit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxInputRounds bounds how often a server may ask for input before it responds.
	maxInputRounds = 10
	// emptyRoundWait is the delay before repeating a request for a server that asked
	// for no input.
	emptyRoundWait = time.Second
)

type capabilitiesKey struct{}

// WithCapabilities returns a context under which requests declare to modern servers
// only those capabilities of this client that are also in caps. It is for programs that
// forward requests of their own clients. Older servers get the capabilities once for
// each connection.
func WithCapabilities(ctx context.Context, caps *mcp.ClientCapabilities) context.Context {
	return context.WithValue(ctx, capabilitiesKey{}, caps)
}

// inputRounds is middleware for modern servers, which return questions instead of a
// result. It answers the questions of each round in turn, through answer, and repeats
// the request with the answers.
func (s *Session) inputRounds(a abilities, answer mcp.MethodHandler) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if caps, _ := ctx.Value(capabilitiesKey{}).(*mcp.ClientCapabilities); caps != nil {
				a.declare(req.GetParams(), caps)
			}
			for round := 1; ; round++ {
				res, err := next(ctx, method, req)
				if err != nil {
					return res, err
				}
				questions, state := inputRequests(res)
				if questions == nil {
					return res, nil
				}
				cs, ok := req.GetSession().(*mcp.ClientSession)
				if !ok {
					return res, nil
				}
				if round == maxInputRounds {
					return nil, fmt.Errorf("the server asked for more input %d times", maxInputRounds)
				}
				if len(questions) == 0 {
					select {
					case <-time.After(emptyRoundWait):
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				}
				answers := make(mcp.InputResponseMap, len(questions))
				for _, id := range slices.Sorted(maps.Keys(questions)) {
					if answers[id], err = answerQuestion(ctx, cs, answer, questions[id]); err != nil {
						return nil, fmt.Errorf("answer the server's question %q: %w", id, err)
					}
				}
				if req, err = withAnswers(cs, req.GetParams(), answers, state); err != nil {
					return nil, err
				}
				dropResult(ctx)
			}
		}
	}
}

// declare sets the capabilities in a request's metadata to those that both this client
// and caps have.
func (a *abilities) declare(params mcp.Params, caps *mcp.ClientCapabilities) {
	if params == nil {
		return
	}
	meta := params.GetMeta()
	if _, modern := meta[mcp.MetaKeyClientCapabilities]; !modern {
		return
	}
	declared := make(map[string]any)
	if a.sampling && caps.Sampling != nil {
		declared["sampling"] = struct{}{}
	}
	if e := caps.Elicitation; a.elicit && e != nil {
		modes := make(map[string]any)
		if e.Form != nil || e.URL == nil {
			modes["form"] = struct{}{}
		}
		if a.openURL && e.URL != nil {
			modes["url"] = struct{}{}
		}
		declared["elicitation"] = modes
	}
	if a.roots && (a.fixedRoots != nil || caps.RootsV2 != nil) {
		declared["roots"] = struct{}{}
	}
	meta = maps.Clone(meta)
	meta[mcp.MetaKeyClientCapabilities] = declared
	params.SetMeta(meta)
}

// inputRequests returns the questions in a result; nil if the result is final.
func inputRequests(res mcp.Result) (mcp.InputRequestMap, string) {
	switch r := res.(type) {
	case *mcp.CallToolResult:
		return r.InputRequests, r.RequestState
	case *mcp.GetPromptResult:
		return r.InputRequests, r.RequestState
	case *mcp.ReadResourceResult:
		return r.InputRequests, r.RequestState
	}
	return nil, ""
}

// answerQuestion answers a question as if an older server had asked it.
func answerQuestion(ctx context.Context, cs *mcp.ClientSession, answer mcp.MethodHandler, question mcp.InputRequest) (mcp.InputResponse, error) {
	var res mcp.Result
	var err error
	switch q := question.(type) {
	case *mcp.ElicitParams:
		res, err = answer(ctx, methodElicit, &mcp.ClientRequest[*mcp.ElicitParams]{Session: cs, Params: q})
	case *mcp.CreateMessageWithToolsParams:
		res, err = answer(ctx, methodSampling, &mcp.ClientRequest[*mcp.CreateMessageWithToolsParams]{Session: cs, Params: q})
	case *mcp.ListRootsParams:
		res, err = answer(ctx, methodRoots, &mcp.ClientRequest[*mcp.ListRootsParams]{Session: cs, Params: q})
	}
	if err != nil {
		return nil, err
	}
	response, ok := res.(mcp.InputResponse)
	if !ok {
		return nil, fmt.Errorf("unknown kind of question %T", question)
	}
	return response, nil
}

// withAnswers returns the request with answers. It copies the params, which the caller
// may use for another request.
func withAnswers(cs *mcp.ClientSession, params mcp.Params, answers mcp.InputResponseMap, state string) (mcp.Request, error) {
	switch p := params.(type) {
	case *mcp.CallToolParams:
		copied := *p
		copied.InputResponses, copied.RequestState = answers, state
		return &mcp.ClientRequest[*mcp.CallToolParams]{Session: cs, Params: &copied}, nil
	case *mcp.GetPromptParams:
		copied := *p
		copied.InputResponses, copied.RequestState = answers, state
		return &mcp.ClientRequest[*mcp.GetPromptParams]{Session: cs, Params: &copied}, nil
	case *mcp.ReadResourceParams:
		copied := *p
		copied.InputResponses, copied.RequestState = answers, state
		return &mcp.ClientRequest[*mcp.ReadResourceParams]{Session: cs, Params: &copied}, nil
	case *rawParams:
		members := make(map[string]json.RawMessage)
		if len(p.raw) > 0 {
			if err := json.Unmarshal(p.raw, &members); err != nil {
				return nil, err
			}
		}
		var err error
		if members["inputResponses"], err = json.Marshal(answers); err != nil {
			return nil, err
		}
		if members["requestState"], err = json.Marshal(state); err != nil {
			return nil, err
		}
		raw, err := json.Marshal(members)
		if err != nil {
			return nil, err
		}
		return &mcp.ClientRequest[*rawParams]{Session: cs, Params: &rawParams{ParamsBase: p.ParamsBase, raw: raw}}, nil
	}
	return nil, fmt.Errorf("a request with params of type %T cannot be repeated", params)
}
