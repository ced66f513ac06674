package perplexity

import (
	"context"
	"encoding/json"
)

const searchPath = "/search"

// searchRequest is the body of POST /search.
type searchRequest struct {
	Query            string   `json:"query"`
	MaxResults       int      `json:"max_results"`
	MaxTokensPerPage int      `json:"max_tokens_per_page"`
	Country          string   `json:"country,omitempty"`
	Recency          string   `json:"search_recency_filter,omitempty"`
	Domains          []string `json:"search_domain_filter,omitempty"`
	Type             string   `json:"search_type,omitempty"`
}

// search returns the results as the sources of an answer without text.
func (c *Client) search(ctx context.Context, r *searchRequest) (*answer, error) {
	res, err := c.post(ctx, searchPath, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := c.readBody(ctx, res)
	if err != nil {
		return nil, err
	}
	var found struct {
		Results list[struct {
			Title   string `json:"title"`
			URL     string `json:"url"`
			Snippet string `json:"snippet"`
			Date    string `json:"date"`
		}] `json:"results"`
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, c.malformed("search results", err)
	}
	if found.Error != nil {
		return nil, c.failed("failed", found.Error)
	}
	a := &answer{}
	for _, r := range found.Results {
		a.sources = append(a.sources, source{Title: r.Title, URL: r.URL, Snippet: r.Snippet, Date: r.Date})
	}
	return a, nil
}
