package perplexitytest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// agentInput is the body of POST /v1/agent, with the fields that tools may send.
type agentInput struct {
	Input []struct {
		Type    string `json:"type"`
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"input"`
	Instructions    string   `json:"instructions"`
	Model           string   `json:"model"`
	Models          []string `json:"models"`
	Preset          string   `json:"preset"`
	MaxSteps        int      `json:"max_steps"`
	MaxOutputTokens int      `json:"max_output_tokens"`
	Reasoning       *struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Tools []struct {
		Type    string `json:"type"`
		Filters *struct {
			Recency string   `json:"search_recency_filter"`
			Domains []string `json:"search_domain_filter"`
		} `json:"filters"`
		ContextSize string `json:"search_context_size"`
	} `json:"tools"`
	Stream     bool `json:"stream"`
	Background bool `json:"background"`
}

// valid checks a body beyond its types, or sends an error.
func (in *agentInput) valid(w http.ResponseWriter) bool {
	if in.Model == "" && in.Preset == "" || len(in.Input) == 0 {
		refuse(w, http.StatusBadRequest, "invalid_request", "model or preset, and input are required")
		return false
	}
	if in.Model != "" && !strings.Contains(in.Model, "/") {
		refuse(w, http.StatusBadRequest, "invalid_request", "model must be provider/model")
		return false
	}
	for _, m := range in.Input {
		if m.Type != "message" || !slices.Contains([]string{"system", "user", "assistant", "developer"}, m.Role) {
			refuse(w, http.StatusBadRequest, "invalid_request", "input has an item that is not valid")
			return false
		}
	}
	for _, t := range in.Tools {
		if t.Filters != nil && (len(t.Filters.Domains) > 20 || !oneOf(w, "search_recency_filter", t.Filters.Recency, "hour", "day", "week", "month", "year")) ||
			!oneOf(w, "tools.type", t.Type, "web_search") || !oneOf(w, "search_context_size", t.ContextSize, "low", "medium", "high") {
			return false
		}
	}
	return oneOf(w, "preset", in.Preset, "fast", "low", "medium", "high", "xhigh") &&
		(in.Reasoning == nil || oneOf(w, "reasoning.effort", in.Reasoning.Effort, "minimal", "low", "medium", "high", "xhigh"))
}

// eventStream writes the events of a run.
type eventStream struct {
	w   http.ResponseWriter
	seq int
}

// send writes an event, of which extra are the members beside type and sequence_number.
func (s *eventStream) send(kind string, extra map[string]any) {
	e := map[string]any{"type": kind, "sequence_number": s.seq}
	s.seq++
	for k, v := range extra {
		e[k] = v
	}
	data, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(s.w, "data: %s\n\n", data)
	s.w.(http.Flusher).Flush()
}

func (a *API) agent(w http.ResponseWriter, r *http.Request, body []byte, scenario string) {
	var in agentInput
	if !strict(w, body, &in) || !in.valid(w) {
		return
	}
	const id = "resp_0f1e2d3c"
	question := in.Input[len(in.Input)-1].Content
	answer := "The answer [1][2]."
	if strings.Contains(question, "titled 'Related questions:'") {
		answer += "\n\n**Related questions:**\n- Why is that?\n2. What else is there?"
	}
	if scenario == "key" {
		answer = "Your key is " + Key + "."
	}
	searched := in.Preset != "" || len(in.Tools) > 0 // a model by itself does not search
	message := map[string]any{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
		"content": []any{map[string]any{"type": "output_text", "text": answer, "annotations": []any{}}}}
	results := []any{result(1, "one.example"), result(2, "two.example")}
	run := map[string]any{"id": id, "object": "response", "created_at": 1_790_000_000, "model": "perplexity/sonar", "status": "in_progress", "output": []any{}}
	finish := func(status string) map[string]any {
		run["status"] = status
		output := []any{message}
		if searched {
			output = []any{map[string]any{"type": "search_results", "queries": []string{"first query", "second query"}, "results": results},
				map[string]any{"type": "a_type_to_come", "content": 7, "results": "none"}, message}
		}
		run["output"] = output
		run["usage"] = map[string]any{"input_tokens": 10, "output_tokens": 20, "total_tokens": 30,
			"cost": map[string]any{"currency": "USD", "input_cost": 0.1, "output_cost": 0.2, "total_cost": 0.3}}
		return run
	}
	switch scenario {
	case "failed-json":
		run["status"], run["error"] = "failed", map[string]any{"message": "the model is not available", "type": "server_error", "code": "model_unavailable"}
		reply(w, run)
		return
	case "queued-json":
		run["status"] = "queued"
		reply(w, run)
		return
	case "json":
		reply(w, finish("completed"))
		return
	}
	if !in.Stream {
		reply(w, finish("completed"))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s := &eventStream{w: w}
	s.send("response.created", map[string]any{"response": run})
	s.send("response.in_progress", map[string]any{"response": run})
	if scenario == "silent" {
		s.send("response.reasoning.search_queries", map[string]any{"queries": []string{"last words"}})
		<-r.Context().Done()
		a.left <- id
		return
	}
	s.send("response.reasoning.started", map[string]any{"thought": "thinking"})
	if searched {
		s.send("response.reasoning.search_queries", map[string]any{"queries": []string{"first query", "second query"}})
		s.send("response.reasoning.search_results", map[string]any{"results": results})
		s.send("response.reasoning.fetch_url_queries", map[string]any{"urls": []string{"https://one.example/page"}})
		s.send("response.reasoning.fetch_url_results", map[string]any{"contents": []any{}})
	}
	s.send("response.reasoning.stopped", nil)
	switch scenario {
	case "unknown":
		s.send("response.tool.progress", map[string]any{"queries": 7, "response": "none", "error": []int{1}, "item": "x"})
		io.WriteString(w, ": a comment\n\nevent: something\ndata: ping\n\n")
	case "failed":
		s.send("response.failed", map[string]any{"error": map[string]any{"message": "the model is not available", "code": "model_unavailable"}})
		return
	case "error":
		s.send("error", map[string]any{"message": "internal error"})
		return
	case "cancelled":
		run["status"] = "cancelled"
		s.send("response.cancelled", map[string]any{"response": run})
		return
	case "malformed":
		io.WriteString(w, "data: {\"type\": \"response.completed\", \"response\": {\n\n")
		return
	case "huge-event":
		io.WriteString(w, "data: {\"type\": \"response.completed\", \"padding\": \"")
		for range 200 {
			io.WriteString(w, strings.Repeat("x", 64<<10))
		}
		return
	}
	s.send("response.output_item.added", map[string]any{"output_index": 0, "item": map[string]any{"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []any{}}})
	s.send("response.output_text.delta", map[string]any{"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": answer[:10]})
	switch scenario {
	case "cut": // the connection breaks
		panic(http.ErrAbortHandler)
	case "end": // the stream ends as if it were complete
		return
	}
	s.send("response.output_text.delta", map[string]any{"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": answer[10:]})
	s.send("response.output_text.done", map[string]any{"item_id": "msg_1", "output_index": 0, "content_index": 0, "text": answer})
	s.send("response.output_item.done", map[string]any{"output_index": 0, "item": message})
	switch scenario {
	case "incomplete":
		run["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
		s.send("response.incomplete", map[string]any{"response": finish("incomplete")})
	case "bare": // the published type has the response as optional
		s.send("response.completed", nil)
	case "open":
		s.send("response.completed", map[string]any{"response": finish("completed")})
		<-r.Context().Done()
		a.left <- id
	default:
		s.send("response.completed", map[string]any{"response": finish("completed")})
	}
}
