package perplexity

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// The presets of the agent API behind the tools, and the models of the chat API.
const (
	askPreset, askModel           = "fast", "sonar-pro"
	reasonPreset, reasonModel     = "medium", "sonar-reasoning-pro"
	researchPreset, researchModel = "high", "sonar-deep-research"
)

// maxDomains is the API's limit of a domain filter.
const maxDomains = 20

// filters returns the properties of filters that several tools have.
func filters() (recency, domains, contextSize property) {
	return property{"search_recency_filter", word("Filter search results by recency. Use 'hour' for very recent news, 'day' for today's updates, 'week' for this week, etc.",
			"hour", "day", "week", "month", "year")},
		property{"search_domain_filter", &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "string", MinLength: ptr(1), MaxLength: ptr(253)}, MaxItems: ptr(maxDomains),
			Description: "Restrict search results to specific domains (e.g., ['wikipedia.org', 'arxiv.org']). Use '-' prefix for exclusion (e.g., ['-reddit.com'])."}},
		property{"search_context_size", word("Controls how much web context is retrieved. 'low' is fastest, 'high' provides more comprehensive results.", "low", "medium", "high")}
}

// removed are parameters of earlier versions of Perplexity's server, which clients still
// send.
func removed() map[string]*jsonschema.Schema {
	return map[string]*jsonschema.Schema{
		"strip_thinking":   {Type: "boolean"},
		"reasoning_effort": word("", "minimal", "low", "medium", "high"),
	}
}

type searchInput struct {
	Query            string   `json:"query"`
	MaxResults       int      `json:"max_results"`
	MaxTokensPerPage int      `json:"max_tokens_per_page"`
	Country          string   `json:"country"`
	Recency          string   `json:"search_recency_filter"`
	Domains          []string `json:"search_domain_filter"`
	Type             string   `json:"search_type"`
}

func (c *Client) searchTool() Tool {
	recency, domains, _ := filters()
	return newTool(c, definition[searchInput]{
		name: "perplexity_search", title: "Search the Web",
		description: "Search the web and return a ranked list of results with titles, URLs, snippets, and dates. " +
			"Best for: finding specific URLs, checking recent news, verifying facts, discovering sources. " +
			"Returns formatted results (title, URL, snippet, date) with no AI synthesis. " +
			"For AI-generated answers with citations, use perplexity_ask instead.",
		in: object([]string{"query"},
			property{"query", &jsonschema.Schema{Type: "string", Description: "Search query string", MinLength: ptr(1)}},
			property{"max_results", &jsonschema.Schema{Type: "integer", Description: "Maximum number of results to return (1-20, default: 10)", Minimum: ptr(1.0), Maximum: ptr(20.0), Default: []byte("10")}},
			property{"max_tokens_per_page", &jsonschema.Schema{Type: "integer", Description: "Maximum tokens to extract per webpage (default: 1024)", Minimum: ptr(256.0), Maximum: ptr(2048.0), Default: []byte("1024")}},
			property{"country", &jsonschema.Schema{Type: "string", Description: "ISO 3166-1 alpha-2 country code for regional results (e.g., 'US', 'GB')", MinLength: ptr(2), MaxLength: ptr(2)}},
			recency, domains,
			property{"search_type", word("Search backend. 'web' (default) is the standard search; 'fast' has lower latency and cost.", "web", "fast")},
		),
		result: "results", about: "Formatted search results, each with title, URL, snippet, and date",
		run: func(ctx context.Context, in *searchInput, _ func(string)) (*answer, error) {
			return c.search(ctx, &searchRequest{in.Query, in.MaxResults, in.MaxTokensPerPage, strings.ToUpper(in.Country), in.Recency, in.Domains, in.Type})
		},
		text:   func(_ *searchInput, a *answer) string { return listResults(a.sources) },
		cached: cachedMark,
	})
}

// listResults formats search results.
func listResults(results []source) string {
	if len(results) == 0 {
		return "No search results found."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Found %d search results:\n\n", len(results))
	for i, r := range results {
		fmt.Fprintf(&b, "%d. **%s**\n   URL: %s\n", i+1, oneLine(r.Title), oneLine(r.URL))
		if r.Snippet != "" {
			fmt.Fprintf(&b, "   %s\n", indented(r.Snippet))
		}
		if r.Date != "" {
			fmt.Fprintf(&b, "   Date: %s\n", oneLine(r.Date))
		}
		b.WriteString("\n")
	}
	return b.String()
}

type conversationInput struct {
	Messages      []message `json:"messages"`
	Recency       string    `json:"search_recency_filter"`
	Domains       []string  `json:"search_domain_filter"`
	ContextSize   string    `json:"search_context_size"`
	StripThinking bool      `json:"strip_thinking"`
	Effort        string    `json:"reasoning_effort"`
}

// conversation completes the definition of a tool that answers the last message of a
// conversation.
func (c *Client) conversation(d definition[conversationInput], preset, model string, filtered bool) Tool {
	recency, domains, contextSize := filters()
	properties := []property{{"messages", &jsonschema.Schema{Type: "array", Description: "Array of conversation messages", MinItems: ptr(1),
		Items: object([]string{"role", "content"},
			property{"role", word("Role of the message sender", "system", "user", "assistant")},
			property{"content", &jsonschema.Schema{Type: "string", Description: "The content of the message"}})}}}
	if filtered {
		properties = append(properties, recency, domains, contextSize)
	}
	d.in, d.hidden = object([]string{"messages"}, properties...), removed()
	d.result, d.about = "response", "AI-generated text response with numbered citation references"
	d.long = true
	d.run = func(ctx context.Context, in *conversationInput, progress func(string)) (*answer, error) {
		return c.ask(ctx, &question{
			messages: in.Messages, preset: preset, effort: in.Effort,
			chatModel: c.chatModel(model), chatEffort: in.Effort, stripThinking: in.StripThinking,
			recency: in.Recency, domains: in.Domains, contextSize: in.ContextSize,
		}, progress)
	}
	d.text = func(_ *conversationInput, a *answer) string {
		text := a.text + incompleteMark(a)
		if cited := a.citations(); cited != "" {
			text += "\n\nCitations:\n" + cited
		}
		return text
	}
	d.cached = cachedMark
	return newTool(c, d)
}

// chatModel returns the configured model of the chat API, or that of a tool.
func (c *Client) chatModel(model string) string {
	if c.o.Model != "" {
		return c.o.Model
	}
	return model
}

func (c *Client) askTool() Tool {
	return c.conversation(definition[conversationInput]{
		name: "perplexity_ask", title: "Ask Perplexity",
		description: "Answer a question using web-grounded AI (Perplexity Agent API, " + askPreset + " preset). " +
			"Best for: quick factual questions, summaries, explanations, and general Q&A. " +
			"Returns a text response with numbered citations. Fastest and cheapest option. " +
			"Supports filtering by recency (hour/day/week/month/year), domain restrictions, and search context size. " +
			"For in-depth multi-source research, use perplexity_research instead. " +
			"For step-by-step reasoning and analysis, use perplexity_reason instead.",
	}, askPreset, askModel, true)
}

func (c *Client) researchTool() Tool {
	return c.conversation(definition[conversationInput]{
		name: "perplexity_research", title: "Deep Research",
		description: "Conduct deep, multi-source research on a topic (Perplexity Agent API, " + researchPreset + " preset). " +
			"Best for: literature reviews, comprehensive overviews, investigative queries needing many sources. " +
			"Returns a detailed response with numbered citations. Significantly slower than other tools (can take minutes). " +
			"For quick factual questions, use perplexity_ask instead. " +
			"For logical analysis and reasoning, use perplexity_reason instead.",
	}, researchPreset, researchModel, false)
}

func (c *Client) reasonTool() Tool {
	return c.conversation(definition[conversationInput]{
		name: "perplexity_reason", title: "Advanced Reasoning",
		description: "Analyze a question using step-by-step reasoning with web grounding (Perplexity Agent API, " + reasonPreset + " preset). " +
			"Best for: math, logic, comparisons, complex arguments, and tasks requiring chain-of-thought. " +
			"Returns a reasoned response with numbered citations. " +
			"Supports filtering by recency (hour/day/week/month/year), domain restrictions, and search context size. " +
			"For quick factual questions, use perplexity_ask instead. " +
			"For comprehensive multi-source research, use perplexity_research instead.",
	}, reasonPreset, reasonModel, true)
}
