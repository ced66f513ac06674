package perplexity

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// The aliases are the tools of an earlier server for Perplexity
// (perplexity-mcp-custom), with its parameters, and its texts in Chinese.

// sonarModels are the models of the chat API that these tools name.
var sonarModels = []string{"sonar", "sonar-pro", "sonar-reasoning", "sonar-reasoning-pro", "sonar-deep-research"}

// sonar makes a question that asks one of the models, or what the agent API has in its
// place. Other names are those of the configuration.
func sonar(prompt, model string) *question {
	q := &question{messages: []message{{"user", prompt}}, chatModel: model}
	switch model {
	case "sonar":
		q.model = "perplexity/sonar"
	case "sonar-pro":
		q.preset = "low"
	case "sonar-reasoning", "sonar-reasoning-pro":
		q.preset, q.effort = "low", "medium"
	case "sonar-deep-research":
		q.preset = "medium"
	default:
		q.model = model
	}
	return q
}

type webInput struct {
	Query   string     `json:"query"`
	Model   string     `json:"model"`
	Options webOptions `json:"options"`
}

type webOptions struct {
	Domain    string `json:"search_domain"`
	Recency   string `json:"search_recency"`
	Citations bool   `json:"return_citations"`
	Images    bool   `json:"return_images"`
	Related   bool   `json:"return_related_questions"`
}

// webTool completes the definition of a search. all is the default for images and
// related questions.
func (c *Client) webTool(d definition[webInput], all bool, models ...string) Tool {
	flag := func(description string, def bool) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "boolean", Description: description, Default: fmt.Append(nil, def)}
	}
	options := object(nil,
		property{"search_domain", &jsonschema.Schema{Type: "string", Description: "限定搜尋的網域"}},
		property{"search_recency", word("搜尋時間範圍", "day", "week", "month", "year")},
		property{"return_citations", flag("是否返回引用來源", true)},
		property{"return_images", flag("是否返回圖片", all)},
		property{"return_related_questions", flag("是否返回相關問題", all)},
	)
	d.in = object([]string{"query"},
		property{"query", &jsonschema.Schema{Type: "string", Description: "搜尋查詢字串", MinLength: ptr(1), MaxLength: ptr(1000)}},
		property{"model", c.withDefault(word("Perplexity model to use", models...), "sonar-pro")},
		property{"options", options},
	)
	d.long = true
	d.run = func(ctx context.Context, in *webInput, progress func(string)) (*answer, error) {
		q := sonar(in.Query, cmp.Or(in.Model, c.o.Model))
		q.recency, q.images, q.related = in.Options.Recency, in.Options.Images, in.Options.Related
		if in.Options.Domain != "" {
			q.domains = []string{in.Options.Domain}
		}
		return c.ask(ctx, q, progress)
	}
	d.text = func(in *webInput, a *answer) string { return customText(a, in.Options.Citations, in.Options.Images) }
	return newTool(c, custom(d))
}

// custom sets what these tools have in common.
func custom[In any](d definition[In]) definition[In] {
	d.cached = func(time.Duration) string { return "\n\n*（此結果來自快取）*" }
	d.failed = "Error: "
	return d
}

// withDefault sets the default of a model's schema, unless a model is configured.
func (c *Client) withDefault(s *jsonschema.Schema, model string) *jsonschema.Schema {
	if c.o.Model == "" {
		s.Default = fmt.Appendf(nil, "%q", model)
	}
	return s
}

// customText formats an answer as the earlier server did, with images as addresses: it
// returned them as image data, which clients cannot show.
func customText(a *answer, citations, images bool) string {
	var sources, related, pictures []string
	for i, s := range a.sources {
		line := fmt.Sprintf("%d. [%s](%s)", i+1, oneLine(cmp.Or(s.Title, s.URL)), oneLine(s.URL))
		if s.Snippet != "" {
			line += "\n   " + indented(s.Snippet)
		}
		sources = append(sources, line)
	}
	for _, question := range a.related {
		related = append(related, "- "+oneLine(question))
	}
	for _, url := range a.images {
		pictures = append(pictures, "- "+oneLine(url))
	}
	if !citations {
		sources = nil
	}
	if !images {
		pictures = nil
	}
	return a.text + incompleteMark(a) + section("參考來源", sources...) + section("相關問題", related...) + section("圖片", pictures...)
}

func (c *Client) searchWebTool() Tool {
	return c.webTool(definition[webInput]{
		name: "perplexity_search_web", title: "Search and Answer",
		description: "Search the web using Perplexity AI for up-to-date information",
	}, false, sonarModels...)
}

func (c *Client) proSearchTool() Tool {
	return c.webTool(definition[webInput]{
		name: "perplexity_pro_search", title: "Advanced Search",
		description: "Advanced search using Perplexity Pro models with enhanced capabilities",
	}, true, "sonar-pro", "sonar-reasoning-pro")
}

type researchInput struct {
	Topic string   `json:"topic"`
	Depth string   `json:"depth"`
	Areas []string `json:"focus_areas"`
}

func (c *Client) deepResearchTool() Tool {
	depth := word("研究深度", "quick", "standard", "comprehensive")
	depth.Default = []byte(`"standard"`)
	return newTool(c, custom(definition[researchInput]{
		name: "perplexity_deep_research", title: "Research a Topic",
		description: "Conduct deep research on a topic using Perplexity AI",
		in: object([]string{"topic"},
			property{"topic", &jsonschema.Schema{Type: "string", Description: "研究主題", MinLength: ptr(1), MaxLength: ptr(500)}},
			property{"depth", depth},
			property{"focus_areas", &jsonschema.Schema{Type: "array", Description: "重點研究領域", Items: &jsonschema.Schema{Type: "string"}}},
		),
		long: true,
		run: func(ctx context.Context, in *researchInput, progress func(string)) (*answer, error) {
			q := sonar(researchPrompt(in), researchModel)
			q.chatModel = c.chatModel(researchModel)
			return c.ask(ctx, q, progress)
		},
		text: func(_ *researchInput, a *answer) string { return customText(a, true, true) },
	}))
}

// researchPrompt returns what a research asks.
func researchPrompt(in *researchInput) string {
	prompt := "Please conduct a " + in.Depth + " research on: " + in.Topic
	if len(in.Areas) > 0 {
		prompt += "\n\nFocus particularly on these areas:\n- " + strings.Join(in.Areas, "\n- ")
	}
	switch in.Depth {
	case "quick":
		return prompt + "\n\nProvide a brief overview with key points."
	case "comprehensive":
		return prompt + "\n\nProvide an in-depth analysis with detailed explanations, examples, and comprehensive coverage."
	}
	return prompt + "\n\nProvide a balanced analysis with reasonable depth."
}

type reasoningInput struct {
	Query   string `json:"query"`
	Model   string `json:"model"`
	Context string `json:"context"`
}

func (c *Client) reasoningTool() Tool {
	return newTool(c, custom(definition[reasoningInput]{
		name: "perplexity_reasoning", title: "Reason Step by Step",
		description: "Complex reasoning and step-by-step analysis using Perplexity reasoning models",
		in: object([]string{"query"},
			property{"query", &jsonschema.Schema{Type: "string", Description: "推理查詢字串", MinLength: ptr(1), MaxLength: ptr(1000)}},
			property{"model", c.withDefault(word("Reasoning model to use", "sonar-reasoning", "sonar-reasoning-pro"), "sonar-reasoning")},
			property{"context", &jsonschema.Schema{Type: "string", Description: "額外的上下文資訊"}},
		),
		long: true,
		run: func(ctx context.Context, in *reasoningInput, progress func(string)) (*answer, error) {
			prompt := in.Query
			if in.Context != "" {
				prompt = "Context: " + in.Context + "\n\nQuery: " + in.Query
			}
			q := sonar(prompt, cmp.Or(in.Model, c.o.Model))
			q.related = true
			return c.ask(ctx, q, progress)
		},
		text: func(_ *reasoningInput, a *answer) string { return customText(a, true, false) },
	}))
}
