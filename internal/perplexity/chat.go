package perplexity

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"
)

const chatPath = "/chat/completions"

// chatRequest is the body of POST /chat/completions, the API before the agent API.
type chatRequest struct {
	Model    string       `json:"model"`
	Messages []message    `json:"messages"`
	Domains  []string     `json:"search_domain_filter,omitempty"`
	Recency  string       `json:"search_recency_filter,omitempty"`
	Options  *chatOptions `json:"web_search_options,omitempty"`
	Images   bool         `json:"return_images,omitempty"`
	Related  bool         `json:"return_related_questions,omitempty"`
	Effort   string       `json:"reasoning_effort,omitempty"`
	Stream   bool         `json:"stream"`
}

type chatOptions struct {
	ContextSize string `json:"search_context_size"`
}

// chatResponse is the answer, or a part of it in a stream.
type chatResponse struct {
	Choices list[struct {
		Delta        chatText `json:"delta"`
		Message      chatText `json:"message"`
		FinishReason string   `json:"finish_reason"`
	}] `json:"choices"`
	Citations list[string]    `json:"citations"`
	Results   list[source]    `json:"search_results"`
	Images    list[chatImage] `json:"images"`
	Related   list[string]    `json:"related_questions"`
	Error     *apiError       `json:"error"`
}

type chatText struct {
	Content string `json:"content"`
}

// A chatImage is the URL of an image.
type chatImage string

// UnmarshalJSON implements [json.Unmarshaler]: the API describes images as objects,
// earlier versions as strings.
func (i *chatImage) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(i)) == nil {
		return nil
	}
	var object struct {
		ImageURL string `json:"image_url"`
		URL      string `json:"url"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	*i = chatImage(object.ImageURL)
	if *i == "" {
		*i = chatImage(object.URL)
	}
	return nil
}

// askChat asks the chat API. The end of the connection cancels a run.
func (c *Client) askChat(ctx context.Context, q *question, progress func(string)) (*answer, error) {
	r := &chatRequest{
		Model: q.chatModel, Messages: q.messages, Domains: q.domains, Recency: q.recency,
		Images: q.images, Related: q.related, Effort: q.chatEffort, Stream: true,
	}
	if q.contextSize != "" {
		r.Options = &chatOptions{q.contextSize}
	}
	res, err := c.post(ctx, chatPath, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	chat := chatAnswer{client: c, progress: progress}
	if streamed(res) {
		err = chat.read(ctx, res.Body)
	} else {
		var data []byte
		if data, err = c.readBody(ctx, res); err == nil {
			err = chat.add(data)
		}
	}
	if err != nil {
		return nil, err
	}
	return chat.answer(q)
}

// chatAnswer collects the parts of an answer.
type chatAnswer struct {
	client   *Client
	progress func(string)

	text    strings.Builder // of deltas
	whole   string          // of messages
	reason  string          // for which it ended
	last    chatResponse    // what the newest part said of each list
	writing bool
}

// read reads the events of a stream.
func (a *chatAnswer) read(ctx context.Context, body io.Reader) error {
	stream := newEvents(body, maxEvent, maxStream)
	for {
		ev, err := stream.next()
		switch {
		case err == io.EOF && a.reason != "":
			return nil
		case err != nil:
			return a.client.interrupted(ctx, err, a.text.Len())
		case string(ev.data) == "[DONE]":
			if a.reason == "" {
				a.reason = "stop"
			}
			return nil
		case len(ev.data) == 0 || ev.data[0] != '{':
			continue
		}
		if err := a.add(ev.data); err != nil {
			return err
		}
	}
}

// add adds a part.
func (a *chatAnswer) add(data []byte) error {
	var part chatResponse
	if err := json.Unmarshal(data, &part); err != nil {
		return a.client.malformed("answer", err)
	}
	if part.Error != nil {
		return a.client.failed("failed", part.Error)
	}
	for _, choice := range part.Choices[:min(len(part.Choices), 1)] {
		if choice.Delta.Content != "" && !a.writing {
			a.writing = true
			a.progress("Writing answer")
		}
		if a.text.Len()+len(choice.Delta.Content) > maxBody {
			return tooLarge("answer", maxBody)
		}
		a.text.WriteString(choice.Delta.Content)
		if choice.Message.Content != "" {
			a.whole = choice.Message.Content
		}
		if choice.FinishReason != "" {
			a.reason = choice.FinishReason
		}
	}
	if len(part.Citations) > 0 {
		a.last.Citations = part.Citations
	}
	if len(part.Results) > 0 {
		a.last.Results = part.Results
	}
	if len(part.Images) > 0 {
		a.last.Images = part.Images
	}
	if len(part.Related) > 0 {
		a.last.Related = part.Related
	}
	return nil
}

// answer returns the whole answer.
func (a *chatAnswer) answer(q *question) (*answer, error) {
	text := a.text.String()
	if text == "" {
		text = a.whole
	}
	if q.stripThinking {
		text = stripThinking(text)
	}
	if text == "" {
		return nil, a.client.failed("failed", &apiError{Message: "the answer is empty"})
	}
	out := &answer{text: text, related: a.last.Related, incomplete: a.reason == "length", reason: a.reason}
	// The text cites by the order of citations, of which search results tell more.
	numbered := func(i int) *int { i++; return &i }
	results := make(map[string]source, len(a.last.Results))
	for _, r := range slices.Backward(a.last.Results) {
		results[r.URL] = r // the first one stays
	}
	for i, url := range a.last.Citations {
		s := results[url]
		s.ID, s.URL = numbered(i), url
		out.sources = append(out.sources, s)
	}
	if len(a.last.Citations) == 0 {
		for i, s := range a.last.Results {
			s.ID = numbered(i)
			out.sources = append(out.sources, s)
		}
	}
	out.sources = slices.DeleteFunc(out.sources, func(s source) bool { return s.URL == "" })
	for _, i := range a.last.Images {
		if i != "" {
			out.images = append(out.images, string(i))
		}
	}
	return out, nil
}

// stripThinking removes the reasoning at the beginning of a text.
func stripThinking(text string) string {
	rest, ok := strings.CutPrefix(strings.TrimLeft(text, " \n"), "<think>")
	if !ok {
		return text
	}
	if _, after, ended := strings.Cut(rest, "</think>"); ended {
		return strings.TrimLeft(after, " \n")
	}
	return text
}

// ask asks the API of the mode.
func (c *Client) ask(ctx context.Context, q *question, progress func(string)) (*answer, error) {
	if c.o.Mode == Chat || time.Now().UnixNano() < c.chatTill.Load() {
		return c.askChat(ctx, q, progress)
	}
	a, err := c.askAgent(ctx, q, progress)
	var e *Error
	if c.o.Mode == Auto && !c.official() && errors.As(err, &e) && (e.Status == 404 || e.Status == 405) {
		answer, chatErr := c.askChat(ctx, q, progress)
		if chatErr != nil && errors.As(chatErr, &e) && (e.Status == 404 || e.Status == 405) {
			return nil, err // neither is there
		}
		if chatErr == nil {
			c.chatTill.Store(time.Now().Add(chatFor).UnixNano())
		}
		return answer, chatErr
	}
	return a, err
}
