package perplexity

import (
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// A question is what a tool asks, in terms of both APIs.
type question struct {
	messages []message

	preset string // of the agent API, unless there is a model
	model  string // of the agent API; it searches, too
	effort string // of its reasoning: minimal, low, medium or high; "" the preset's

	chatModel     string // of the chat API
	chatEffort    string // of its reasoning; "" the model's
	stripThinking bool   // remove the chat model's reasoning from the answer

	recency     string
	domains     []string
	contextSize string
	images      bool // of the chat API only
	related     bool // related questions
}

// A message is one of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// An answer is the outcome of a call.
type answer struct {
	text       string
	sources    []source
	related    []string
	images     []string // URLs
	incomplete bool
	reason     string // why it is incomplete
}

// A source is a search result that the text may cite.
type source struct {
	ID      *int   `json:"id"` // by which the text cites it; nil: unknown
	Title   string `json:"title"`
	URL     string `json:"url"`
	Snippet string `json:"snippet"`
	Date    string `json:"date"`
}

// size returns the bytes of an answer in memory, about.
func (a *answer) size() int {
	n := len(a.text) + elementSize*(len(a.sources)+len(a.related)+len(a.images))
	for _, s := range a.sources {
		n += len(s.Title) + len(s.URL) + len(s.Snippet) + len(s.Date)
	}
	for _, list := range [][]string{a.related, a.images} {
		for _, s := range list {
			n += len(s)
		}
	}
	return n
}

// citations returns the sources as lines "[n] URL" with the numbers by which the text
// cites them. If numbers are missing or ambiguous, it counts the addresses.
func (a *answer) citations() string {
	byID := make(map[int]string)
	usable := true
	for _, s := range a.sources {
		if s.ID == nil {
			usable = false
			continue
		}
		if url, seen := byID[*s.ID]; seen && url != s.URL {
			usable = false
		}
		byID[*s.ID] = s.URL
	}
	var b strings.Builder
	ids, urls := make(map[int]bool), make(map[string]bool)
	for _, s := range a.sources {
		switch {
		case usable && !ids[*s.ID]:
			ids[*s.ID] = true
			fmt.Fprintf(&b, "[%d] %s\n", *s.ID, oneLine(s.URL))
		case !usable && !urls[s.URL]:
			urls[s.URL] = true
			fmt.Fprintf(&b, "[%d] %s\n", len(urls), oneLine(s.URL))
		}
	}
	return b.String()
}

// relatedPrompt asks for related questions, which the agent API has no parameter for.
const relatedPrompt = "\n\nEnd with a section titled 'Related questions:'."

var (
	relatedTitle = lazyregexp.New(`(?i)^[#*\s]*related questions:?[*\s]*$`)
	listItem     = lazyregexp.New(`^\s*(?:[-*•]|\d+[.)])\s+(.*)$`)
)

// splitRelated moves the section of related questions from the end of a text to a list.
func splitRelated(text string) (rest string, related []string) {
	lines := strings.Split(text, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		switch item := listItem().FindStringSubmatch(line); {
		case relatedTitle().MatchString(line) && len(related) > 0:
			for a, b := 0, len(related)-1; a < b; a, b = a+1, b-1 {
				related[a], related[b] = related[b], related[a]
			}
			return strings.TrimRight(strings.Join(lines[:i], "\n"), " \n"), related
		case item != nil && len(related) == maxElements:
			return text, nil
		case item != nil:
			related = append(related, item[1])
		case line != "":
			return text, nil // the list is not the end of the text, or has another title
		}
	}
	return text, nil
}
