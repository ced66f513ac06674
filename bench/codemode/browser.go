package codemode

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var shopTask = Task{
	Name: "shop", Large: true, Servers: []string{"browser"},
	About:  "which products on eight pages of a shop are good, cheap and in stock",
	Tools:  []string{"browser.browser_navigate", "browser.browser_snapshot"},
	Search: "browser navigate, snapshot",
	Want:   func(w *World) any { return bargains(w.products) },
	Direct: func(ctx context.Context, w *World, c *Conversation) (any, error) {
		rows, err := browse(ctx, c, w.Site+"/shop")
		var products []product
		for _, r := range rows {
			m := shopRow.FindStringSubmatch(r)
			if m == nil {
				return nil, fmt.Errorf("a row of the shop is %q", r)
			}
			p := product{sku: m[1], name: m[2], cents: centsOf(m[3])}
			p.stock, _ = strconv.Atoi(m[4])
			p.rating, _ = strconv.Atoi(strings.ReplaceAll(m[5], ".", ""))
			products = append(products, p)
		}
		return bargains(products), err
	},
}

// quotesTask compares the supplier's pages with the database.
var quotesTask = Task{
	Name: "quotes", Large: true, Servers: []string{"browser", "sql"},
	About:  "which prices on a supplier's pages differ from the database, and what it no longer offers",
	Tools:  []string{"browser.browser_navigate", "browser.browser_snapshot", "sql.execute_sql"},
	Search: "browser navigate, snapshot, execute sql",
	Want:   func(w *World) any { return changed(w.products, w.quotes) },
	Direct: func(ctx context.Context, w *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"sql", "execute_sql", map[string]any{"sql": "SELECT sku, price_cents FROM products"}})
		if err != nil {
			return nil, err
		}
		known, err := rowsOf(texts[0])
		if err != nil {
			return nil, err
		}
		var products []product
		for _, r := range known {
			products = append(products, product{sku: r.text("sku"), cents: r.number("price_cents")})
		}
		rows, err := browse(ctx, c, w.Site+"/supplier")
		var quotes []quote
		for _, r := range rows {
			f := strings.Fields(r)
			quotes = append(quotes, quote{sku: f[0], cents: centsOf(f[1])})
		}
		return changed(products, quotes), err
	},
}

var (
	shopRow = regexp.MustCompile(`^(SKU-\d+) (\w+ \w+) \w+ ([\d.]+) (\d+) ([\d.]+)$`)
	// Of the accessibility tree that the browser's server returns.
	treeCell = regexp.MustCompile(`(?m)^ *- cell "?([^"\n]+?)"? \[`)
	ofPages  = regexp.MustCompile(`Page 1 of (\d+)`)
)

// browse opens the pages of a list one after another and returns the text of their rows.
func browse(ctx context.Context, c *Conversation, url string) (rows []string, err error) {
	for page, pages := 1, 1; page <= pages; page++ {
		texts, err := c.Ask(ctx, Call{"browser", "browser_navigate", map[string]any{"url": fmt.Sprintf("%s?page=%d", url, page)}})
		if err != nil {
			return nil, err
		}
		text := texts[0]
		if !treeCell.MatchString(text) { // servers that return no tree with a page
			if texts, err = c.Ask(ctx, Call{"browser", "browser_snapshot", map[string]any{}}); err != nil {
				return nil, err
			}
			text = texts[0]
		}
		if m := ofPages.FindStringSubmatch(text); page == 1 && m != nil {
			pages, _ = strconv.Atoi(m[1])
		}
		cells := treeCell.FindAllStringSubmatch(text, -1)
		if len(cells) == 0 {
			return nil, fmt.Errorf("page %d has no cells: %.300q", page, text)
		}
		for _, m := range cells {
			if strings.HasPrefix(m[1], "SKU-") {
				rows = append(rows, m[1])
			} else {
				rows[len(rows)-1] += " " + m[1]
			}
		}
	}
	return rows, nil
}

func centsOf(price string) int {
	n, _ := strconv.Atoi(strings.ReplaceAll(price, ".", ""))
	return n
}

// bargains returns the products with at least 4.5 stars and ten pieces below 50.00.
func bargains(products []product) any {
	found := []string{}
	for _, p := range products {
		if p.rating >= 45 && p.stock >= 10 && p.cents < 5000 {
			found = append(found, p.sku+" "+p.name)
		}
	}
	slices.Sort(found)
	return found
}

// changed returns the products whose price is another at the supplier, and those that it
// does not have.
func changed(products []product, quotes []quote) any {
	offered := make(map[string]int)
	for _, q := range quotes {
		offered[q.sku] = q.cents
	}
	missing, differ := []string{}, [][]any{}
	for _, p := range products {
		cents, ok := offered[p.sku]
		switch {
		case !ok:
			missing = append(missing, p.sku)
		case cents != p.cents:
			differ = append(differ, []any{p.sku, p.cents, cents})
		}
	}
	slices.Sort(missing)
	slices.SortFunc(differ, func(a, b []any) int { return cmp.Compare(a[0].(string), b[0].(string)) })
	return map[string]any{"missing": missing, "changed": differ}
}
