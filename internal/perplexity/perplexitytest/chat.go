package perplexitytest

import (
	"fmt"
	"net/http"
)

// chat answers as POST /chat/completions did, and gateways do.
func chat(w http.ResponseWriter, body []byte, scenario string) {
	var in struct {
		Model    string `json:"model"`
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
		Domains []string `json:"search_domain_filter"`
		Recency string   `json:"search_recency_filter"`
		Options *struct {
			ContextSize string `json:"search_context_size"`
		} `json:"web_search_options"`
		Images  bool   `json:"return_images"`
		Related bool   `json:"return_related_questions"`
		Effort  string `json:"reasoning_effort"`
		Stream  bool   `json:"stream"`
	}
	if !strict(w, body, &in) || !oneOf(w, "model", in.Model, "sonar", "sonar-pro", "sonar-reasoning", "sonar-reasoning-pro", "sonar-deep-research", "vendor/sonar") {
		return
	}
	if in.Model == "" || len(in.Messages) == 0 {
		refuse(w, http.StatusBadRequest, "invalid_request", "model and messages are required")
		return
	}
	answer := "The chat answer [1][2]."
	if in.Model == "sonar-reasoning-pro" {
		answer = "<think>\nHm.\n</think>\n\n" + answer
	}
	last := map[string]any{
		"id": "chat_1", "model": in.Model, "object": "chat.completion.chunk", "created": 1_790_000_000,
		"citations":      []string{"https://one.example/page", "https://two.example/page"},
		"search_results": []any{result(0, "one.example"), result(0, "two.example")},
		"usage":          map[string]any{"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
	}
	if in.Images {
		last["images"] = []any{map[string]any{"image_url": "https://one.example/a.png", "origin_url": "https://one.example/page", "height": 1, "width": 1}, "https://two.example/b.png"}
	}
	if in.Related {
		last["related_questions"] = []string{"Why is that?", "What else is there?"}
	}
	if scenario == "json" || !in.Stream {
		last["choices"] = []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": answer}}}
		reply(w, last)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := &eventStream{w: w}
	part := func(text string, reason any) {
		chunk := map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"role": "assistant", "content": text}, "finish_reason": reason}}}
		if reason != nil {
			for k, v := range last {
				chunk[k] = v
			}
		}
		s.send("", chunk)
	}
	part(answer[:8], nil)
	switch scenario {
	case "cut":
		panic(http.ErrAbortHandler)
	case "end":
		return
	case "failed":
		s.send("", map[string]any{"error": map[string]any{"message": "the model is not available", "code": 500}})
		return
	}
	part(answer[8:], nil)
	reason := "stop"
	if scenario == "incomplete" {
		reason = "length"
	}
	part("", reason)
	if scenario != "no-done" {
		fmt.Fprint(w, "data: [DONE]\n\n")
	}
}
