package perplexity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
)

const agentPath = "/v1/agent"

// agentRequest is the body of POST /v1/agent. The API refuses unknown fields.
type agentRequest struct {
	Model     string         `json:"model,omitempty"`
	Preset    string         `json:"preset,omitempty"`
	Input     []agentMessage `json:"input"`
	Tools     []webSearch    `json:"tools,omitempty"`
	Reasoning *reasoning     `json:"reasoning,omitempty"`
	Stream    bool           `json:"stream"`
}

type agentMessage struct {
	Type string `json:"type"`
	message
}

type reasoning struct {
	Effort string `json:"effort"`
}

// webSearch configures the web search of a run. With a preset, it overrides the preset's.
type webSearch struct {
	Type        string         `json:"type"`
	Filters     *searchFilters `json:"filters,omitempty"`
	ContextSize string         `json:"search_context_size,omitempty"`
}

type searchFilters struct {
	Recency string   `json:"search_recency_filter,omitempty"`
	Domains []string `json:"search_domain_filter,omitempty"`
}

// agentResponse is a run: the answer to POST /v1/agent, and part of some events.
type agentResponse struct {
	ID         string           `json:"id"`
	Status     string           `json:"status"`
	Output     list[outputItem] `json:"output"`
	Error      *apiError        `json:"error"`
	Incomplete *struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
}

// outputItem is one of several types; only the fields of messages and search results are
// here.
type outputItem struct {
	Type    string            `json:"type"`
	Content list[contentPart] `json:"content"`
	Results list[source]      `json:"results"`
}

type contentPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// elements returns the number of elements in the item.
func (o *outputItem) elements() int { return len(o.Content) + len(o.Results) }

// UnmarshalJSON implements [json.Unmarshaler]. It reads nothing but the type of items of
// other types, which may use the same names for something else.
func (o *outputItem) UnmarshalJSON(data []byte) error {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return err
	}
	if kind.Type != "message" && kind.Type != "search_results" {
		*o = outputItem{Type: kind.Type}
		return nil
	}
	type plain outputItem
	return json.Unmarshal(data, (*plain)(o))
}

func newAgentRequest(q *question) *agentRequest {
	r := &agentRequest{Model: q.model, Stream: true}
	for _, m := range q.messages {
		r.Input = append(r.Input, agentMessage{"message", m})
	}
	if q.related {
		r.Input[len(r.Input)-1].Content += relatedPrompt
	}
	if r.Model == "" {
		r.Preset = q.preset
	}
	if q.effort != "" {
		r.Reasoning = &reasoning{q.effort}
	}
	tool := webSearch{Type: "web_search", ContextSize: q.contextSize}
	if q.recency != "" || len(q.domains) > 0 {
		tool.Filters = &searchFilters{q.recency, q.domains}
	}
	// A model without a preset does not search by itself.
	if r.Model != "" || tool.Filters != nil || tool.ContextSize != "" {
		r.Tools = []webSearch{tool}
	}
	return r
}

// askAgent asks the agent API. It cancels the run if the answer is not awaited or read to
// its end.
func (c *Client) askAgent(ctx context.Context, q *question, progress func(string)) (_ *answer, err error) {
	res, err := c.post(ctx, agentPath, newAgentRequest(q))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var run *agentResponse
	if streamed(res) {
		s := agentStream{client: c, progress: progress}
		if run, err = s.read(ctx, res.Body); err != nil {
			if !s.over {
				c.cancel(ctx, s.id)
			}
			return nil, err
		}
	} else {
		data, err := c.readBody(ctx, res)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, &run); err != nil {
			return nil, c.malformed("answer", err)
		}
		if run == nil {
			return nil, c.malformed("answer", errors.New("it is null"))
		}
	}
	return c.outcome(run, q)
}

// streamed reports whether a response is an event stream. Some gateways do not stream.
func streamed(res *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return kind == "text/event-stream"
}

// outcome returns the answer of a run that ended. A failed run has the HTTP status 200,
// too.
func (c *Client) outcome(run *agentResponse, q *question) (*answer, error) {
	a := &answer{}
	switch run.Status {
	case "completed", "": // "" of a gateway
	case "incomplete":
		a.incomplete, a.reason = true, "unknown reason"
		if run.Incomplete != nil && run.Incomplete.Reason != "" {
			a.reason = c.quote(run.Incomplete.Reason)
		}
	default:
		return nil, c.failed(run.Status, run.Error)
	}
	var text strings.Builder
	for _, item := range run.Output {
		switch item.Type {
		case "message":
			for _, part := range item.Content {
				if part.Type == "output_text" {
					text.WriteString(part.Text)
				}
			}
		case "search_results":
			for _, s := range item.Results {
				if s.URL != "" {
					a.sources = append(a.sources, s)
				}
			}
		}
	}
	a.text = text.String()
	if a.text == "" {
		if run.Error != nil {
			return nil, c.failed(run.Status, run.Error)
		}
		return nil, &Error{Kind: KindFailed, Text: "Perplexity API error: the run ended without an answer", Hint: "Ask in other words, or try again."}
	}
	if q.related {
		a.text, a.related = splitRelated(a.text)
	}
	return a, nil
}

// failed returns the error for a run with another status than completed.
func (c *Client) failed(status string, cause *apiError) *Error {
	e := &Error{Kind: KindFailed, Text: "Perplexity API error: "}
	switch status {
	case "cancelled":
		e.Text += "the run was cancelled at the API"
	case "failed", "completed", "":
		e.Text += "the run failed"
	default:
		e.Text += fmt.Sprintf("the run has no answer: its status is %q", c.quote(status))
	}
	if said := c.words(cause); said != "" {
		e.Text += ": " + said
	}
	e.Hint = "Try again, or ask in other words."
	return e
}

// agentStream reads the events of a run.
type agentStream struct {
	client   *Client
	progress func(string)

	id      string // of the run; "" if not known yet
	over    bool   // the run ended at the API
	items   []outputItem
	count   int             // of items and of their elements
	size    int             // of the events with items, in bytes
	text    strings.Builder // of the deltas
	writing bool
}

// agentEvent has the fields of the events that are of interest.
type agentEvent struct {
	Response *agentResponse        `json:"response"`
	Error    *apiError             `json:"error"`
	Message  string                `json:"message"` // of a bare error
	Item     *outputItem           `json:"item"`
	Queries  list[string]          `json:"queries"`
	Results  list[json.RawMessage] `json:"results"`
	Delta    string                `json:"delta"`
}

// read returns the run as of its last event, at which it stops: some servers leave the
// connection open.
func (s *agentStream) read(ctx context.Context, body io.Reader) (*agentResponse, error) {
	stream := newEvents(body, maxEvent, maxStream)
	for {
		ev, err := stream.next()
		if err != nil {
			return nil, s.client.interrupted(ctx, err, s.text.Len())
		}
		run, err := s.handle(ev)
		if run != nil || err != nil {
			return run, err
		}
	}
}

// handle returns the run if an event is its last one. It ignores events that it does not
// know, which the API may add at any time.
func (s *agentStream) handle(ev event) (*agentResponse, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if len(ev.data) == 0 || ev.data[0] != '{' {
		return nil, nil // [DONE], or a sign of life
	}
	if err := json.Unmarshal(ev.data, &kind); err != nil {
		return nil, s.client.malformed("event", err)
	}
	if kind.Type == "" {
		kind.Type = ev.name
	}
	switch kind.Type {
	case "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed", "response.cancelled", "error",
		"response.output_item.added", "response.output_item.done", "response.output_text.delta",
		"response.reasoning.search_queries", "response.reasoning.search_results":
	case "response.reasoning.fetch_url_queries":
		s.progress("Fetching page content")
		return nil, nil
	default:
		return nil, nil
	}
	var e agentEvent
	if err := json.Unmarshal(ev.data, &e); err != nil {
		return nil, s.client.malformed("event "+kind.Type, err)
	}
	if e.Response != nil && e.Response.ID != "" {
		s.id = e.Response.ID
	}
	switch kind.Type {
	case "response.completed", "response.incomplete":
		s.over = true
		return s.completed(e.Response, strings.TrimPrefix(kind.Type, "response.")), nil
	case "response.failed", "response.cancelled", "error":
		s.over = true
		cause := e.Error
		if cause == nil && e.Response != nil {
			cause = e.Response.Error
		}
		if cause == nil && e.Message != "" {
			cause = &apiError{Message: e.Message}
		}
		return nil, s.client.failed(strings.TrimPrefix(strings.TrimPrefix(kind.Type, "response."), "error"), cause)
	case "response.output_item.added":
		if e.Item != nil && e.Item.Type == "message" {
			s.write()
		}
	case "response.output_item.done":
		if e.Item != nil {
			s.count += 1 + e.Item.elements()
			s.size += len(ev.data)
			switch {
			case s.count > maxElements:
				return nil, tooMany()
			case s.size > maxEvent:
				return nil, tooLarge("answer", maxEvent)
			}
			s.items = append(s.items, *e.Item)
		}
	case "response.output_text.delta":
		s.write()
		if s.text.Len()+len(e.Delta) > maxBody {
			return nil, tooLarge("answer", maxBody)
		}
		s.text.WriteString(e.Delta)
	case "response.reasoning.search_queries":
		if len(e.Queries) > 0 {
			s.progress("Searching: " + strings.Join(e.Queries, " | "))
		}
	case "response.reasoning.search_results":
		if len(e.Results) > 0 {
			s.progress(fmt.Sprintf("Reading %d search results", len(e.Results)))
		}
	}
	return nil, nil
}

// write reports once that the answer is being written.
func (s *agentStream) write() {
	if !s.writing {
		s.writing = true
		s.progress("Writing answer")
	}
}

// completed returns a run that ended. The last event may leave out what earlier ones
// said.
func (s *agentStream) completed(run *agentResponse, status string) *agentResponse {
	if run == nil {
		run = &agentResponse{ID: s.id}
	}
	if run.Status == "" || status == "incomplete" {
		run.Status = status
	}
	if len(run.Output) == 0 {
		run.Output = s.items
	}
	for _, item := range run.Output {
		if item.Type == "message" {
			return run
		}
	}
	if s.text.Len() > 0 {
		run.Output = append(run.Output, outputItem{Type: "message", Content: list[contentPart]{{"output_text", s.text.String()}}})
	}
	return run
}
