package codemode

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var logsTask = Task{
	Name: "logs", Large: true, Servers: []string{"files"},
	About:  "which routes fail most in two weeks of logs, and on which day",
	Tools:  []string{"files.list_directory", "files.read_text_file"},
	Search: "list directory, read file",
	Want:   func(w *World) any { return failing(w.logs) },
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		list, err := c.Ask(ctx, Call{"files", "list_directory", map[string]any{"path": "logs"}})
		if err != nil {
			return nil, err
		}
		var paths []string
		for _, m := range listed.FindAllStringSubmatch(list[0], -1) {
			paths = append(paths, "logs/"+m[1])
		}
		texts, err := c.Ask(ctx, Call{"files", "read_multiple_files", map[string]any{"paths": paths}})
		if err != nil {
			return nil, err
		}
		var lines []logLine
		for _, m := range logged.FindAllStringSubmatch(texts[0], -1) {
			at, err := time.Parse(time.RFC3339, m[1])
			if err != nil {
				return nil, err
			}
			status, _ := strconv.Atoi(m[3])
			lines = append(lines, logLine{at: at, route: digits.ReplaceAllString(m[2], ":id"), status: status})
		}
		return failing(lines), nil
	},
}

var (
	listed = regexp.MustCompile(`(?m)^\[FILE\] (.+)$`)
	logged = regexp.MustCompile(`(?m)^(\S+Z) web-\d \w+ (\S+) (\d+) \d+ms$`)
	digits = regexp.MustCompile(`\d+`)
)

// failing returns the three routes with the largest share of failed requests, each with
// its failed and all requests, and the day with the most failed ones.
func failing(lines []logLine) any {
	failed, all, days := map[string]int{}, map[string]int{}, map[string]int{}
	for _, l := range lines {
		all[l.route]++
		if l.status >= 500 {
			failed[l.route]++
			days[l.at.Format(time.DateOnly)]++
		}
	}
	share := make(map[string]int)
	for route, n := range all {
		share[route] = failed[route] * 1_000_000 / n
	}
	var worst []any
	for _, route := range top(share, 3) {
		worst = append(worst, []any{route, failed[route], all[route]})
	}
	day := top(days, 1)[0]
	return map[string]any{"worst": worst, "day": []any{day, days[day]}}
}

var paymentsTask = Task{
	Name: "payments", Large: true, Servers: []string{"files", "sql"},
	About:  "which invoices of the database the bank's file does not settle",
	Tools:  []string{"files.read_text_file", "sql.execute_sql"},
	Search: "read file, execute sql",
	Want:   func(w *World) any { return reconcile(w.invoices, w.payments) },
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"files", "read_text_file", map[string]any{"path": "bank/payments.csv"}},
			Call{"sql", "execute_sql", map[string]any{"sql": "SELECT id, amount_cents FROM invoices"}})
		if err != nil {
			return nil, err
		}
		var payments []payment
		for _, f := range csvOf(texts[0]) {
			cents, _ := strconv.Atoi(f[2])
			payments = append(payments, payment{reference: f[1], cents: cents})
		}
		rows, err := rowsOf(texts[1])
		var invoices []invoice
		for _, r := range rows {
			invoices = append(invoices, invoice{id: r.text("id"), cents: r.number("amount_cents")})
		}
		return reconcile(invoices, payments), err
	},
}

// reconcile returns the unpaid invoices, the payments without an invoice, and the payments
// of another amount.
func reconcile(invoices []invoice, payments []payment) any {
	open := make(map[string]int)
	for _, v := range invoices {
		open[v.id] = v.cents
	}
	unpaid, unknown, differ := []string{}, []string{}, [][]any{}
	for _, p := range payments {
		cents, ok := open[p.reference]
		switch {
		case !ok:
			unknown = append(unknown, p.reference)
			continue
		case cents != p.cents:
			differ = append(differ, []any{p.reference, cents, p.cents})
		}
		delete(open, p.reference)
	}
	for id := range open {
		unpaid = append(unpaid, id)
	}
	slices.Sort(unpaid)
	slices.Sort(unknown)
	slices.SortFunc(differ, func(a, b []any) int { return cmp.Compare(a[0].(string), b[0].(string)) })
	return map[string]any{"unpaid": unpaid, "unknown": unknown, "differ": differ}
}

// outageOf is the index of the service that is down.
const outageOf = 3

var outageTask = Task{
	Name: "outage", Large: true, Servers: []string{"memory"},
	About:  "which services of the knowledge graph an outage reaches, and which of them have no owner",
	Tools:  []string{"memory.search_nodes"},
	Search: "search nodes of the knowledge graph",
	Want:   func(w *World) any { return reached(w.services, outageOf) },
	Direct: func(ctx context.Context, w *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"memory", "search_nodes", map[string]any{"query": "service"}})
		if err != nil {
			return nil, err
		}
		g, err := graphOf(texts[0])
		if err != nil {
			return nil, err
		}
		var services []service
		index := make(map[string]int)
		for i, e := range g.Entities {
			s := service{name: e.Name}
			for _, o := range e.Observations {
				fmt.Sscanf(o, "tier %d", &s.tier)
				if owner, ok := strings.CutPrefix(o, "owned by "); ok {
					s.owner = owner
				}
			}
			index[e.Name] = i
			services = append(services, s)
		}
		for _, r := range g.Relations {
			from := &services[index[r.From]]
			from.dependsOn = append(from.dependsOn, index[r.To])
		}
		return reached(services, index[w.services[outageOf].name]), nil
	},
}

// reached returns how many services depend on one, directly or not, in each tier, and the
// names of those without an owner.
func reached(services []service, down int) any {
	hit := map[int]bool{down: true}
	for again := true; again; {
		again = false
		for i, s := range services {
			if !hit[i] && slices.ContainsFunc(s.dependsOn, func(d int) bool { return hit[d] }) {
				hit[i], again = true, true
			}
		}
	}
	delete(hit, down)
	tiers, ownerless := make([]int, 3), []string{}
	for i := range hit {
		tiers[services[i].tier-1]++
		if services[i].owner == "" {
			ownerless = append(ownerless, services[i].name)
		}
	}
	slices.Sort(ownerless)
	return map[string]any{"tiers": tiers, "ownerless": ownerless}
}

var overtimeTask = Task{
	Name: "overtime", Large: true, Servers: []string{"files", "memory", "sql"},
	About:  "what hours beyond the contract cost: contracts in a file, tickets in the database, plans and managers in the graph",
	Tools:  []string{"files.read_text_file", "memory.search_nodes", "sql.execute_sql"},
	Search: "read file, search nodes, execute sql",
	Want: func(w *World) any {
		hours := make(map[string]int)
		for _, c := range w.customers {
			for _, h := range c.tickets {
				hours[c.name] += h
			}
		}
		return overtime(w.customers, hours)
	},
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"files", "read_text_file", map[string]any{"path": "contracts/hours.csv"}},
			Call{"memory", "search_nodes", map[string]any{"query": "customer"}},
			Call{"sql", "execute_sql", map[string]any{"sql": "SELECT customer, SUM(hours) AS hours FROM tickets GROUP BY customer"}})
		if err != nil {
			return nil, err
		}
		g, err := graphOf(texts[1])
		if err != nil {
			return nil, err
		}
		known := make(map[string]customer)
		for _, e := range g.Entities {
			known[e.Name] = customer{plan: strings.TrimPrefix(e.Observations[0], "plan "), manager: strings.TrimPrefix(e.Observations[1], "account of ")}
		}
		var customers []customer
		for _, f := range csvOf(texts[0]) {
			c := known[f[0]]
			c.name = f[0]
			c.included, _ = strconv.Atoi(f[1])
			c.rate, _ = strconv.Atoi(f[2])
			customers = append(customers, c)
		}
		rows, err := rowsOf(texts[2])
		hours := make(map[string]int)
		for _, r := range rows {
			hours[r.text("customer")] = r.number("hours")
		}
		return overtime(customers, hours), err
	},
}

// overtime returns the cost by plan and the five customers with the highest.
func overtime(customers []customer, hours map[string]int) any {
	plans, costs, managers := map[string]int{}, map[string]int{}, map[string]string{}
	for _, c := range customers {
		cost := max(0, hours[c.name]-c.included) * c.rate
		plans[c.plan] += cost
		costs[c.name], managers[c.name] = cost, c.manager
	}
	var first []any
	for _, name := range top(costs, 5) {
		first = append(first, []any{name, managers[name], costs[name]})
	}
	return map[string]any{"plans": plans, "top": first}
}

var auditTask = Task{
	Name: "audit", Large: true, Servers: []string{"files"},
	About:  "which of 190 manifests break the rules, as a report in a file",
	Tools:  []string{"files.list_directory", "files.read_text_file", "files.write_file"},
	Search: "list directory, read file, write file",
	Want: func(w *World) any {
		report := violations(w.manifests)
		n := 0
		for _, broken := range report {
			n += len(broken)
		}
		return map[string]any{"services": len(report), "violations": n}
	},
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		list, err := c.Ask(ctx, Call{"files", "list_directory", map[string]any{"path": "deploy"}})
		if err != nil {
			return nil, err
		}
		var paths []string
		for _, m := range listed.FindAllStringSubmatch(list[0], -1) {
			paths = append(paths, "deploy/"+m[1])
		}
		texts, err := c.Ask(ctx, Call{"files", "read_multiple_files", map[string]any{"paths": paths}})
		if err != nil {
			return nil, err
		}
		var all []manifest
		for part := range strings.SplitSeq(texts[0], "\n---\n") {
			_, text, _ := strings.Cut(part, ":\n") // below its path
			var m struct {
				Service, Image string
				Replicas       int
				Resources      struct{ MemoryMiB int }
				ReadinessProbe any
				Security       struct{ RunAsNonRoot bool } `json:"securityContext"`
			}
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				return nil, fmt.Errorf("parse a manifest: %w: %.100q", err, part)
			}
			all = append(all, manifest{service: m.Service, image: m.Image, replicas: m.Replicas, memory: m.Resources.MemoryMiB, probe: m.ReadinessProbe != nil, root: !m.Security.RunAsNonRoot})
		}
		report := violations(all)
		text, err := json.Marshal(report)
		if err != nil {
			return nil, err
		}
		if _, err := c.Ask(ctx, Call{"files", "write_file", map[string]any{"path": "reports/audit.json", "content": string(text)}}); err != nil {
			return nil, err
		}
		n := 0
		for _, broken := range report {
			n += len(broken)
		}
		return map[string]any{"services": len(report), "violations": n}, nil
	},
	Effect: func(dir string) (any, error) {
		b, err := os.ReadFile(filepath.Join(dir, "files", "reports", "audit.json"))
		var report any
		if err == nil {
			err = json.Unmarshal(b, &report)
		}
		return report, err
	},
	WantEffect: func(w *World) any { return violations(w.manifests) },
}

// violations returns the broken rules of each service that breaks some.
func violations(all []manifest) map[string][]string {
	report := make(map[string][]string)
	for _, m := range all {
		for _, rule := range []struct {
			name   string
			broken bool
		}{{"latest", strings.HasSuffix(m.image, ":latest")}, {"replicas", m.replicas < 2}, {"probe", !m.probe}, {"root", m.root}} {
			if rule.broken {
				report[m.service] = append(report[m.service], rule.name)
			}
		}
	}
	return report
}

var importTask = Task{
	Name: "import", Large: true, Servers: []string{"files", "memory"},
	About:  "260 contacts of a file into the knowledge graph, with their companies",
	Tools:  []string{"files.read_text_file", "memory.create_entities", "memory.create_relations"},
	Search: "read file, create entities, create relations",
	Want: func(w *World) any {
		return map[string]any{"contacts": len(w.contacts), "companies": len(companies(w.contacts)), "relations": len(w.contacts)}
	},
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"files", "read_text_file", map[string]any{"path": "contacts.csv"}})
		if err != nil {
			return nil, err
		}
		var all []contact
		for _, f := range csvOf(texts[0]) {
			all = append(all, contact{f[0], f[1], f[2], f[3], f[4]})
		}
		entities, relations := imported(all)
		made, err := c.Ask(ctx, Call{"memory", "create_entities", map[string]any{"entities": entities}})
		if err != nil {
			return nil, err
		}
		related, err := c.Ask(ctx, Call{"memory", "create_relations", map[string]any{"relations": relations}})
		if err != nil {
			return nil, err
		}
		n := strings.Count(made[0], `"contact"`)
		return map[string]any{"contacts": n, "companies": strings.Count(made[0], `"company"`), "relations": strings.Count(related[0], `"works_at"`)}, nil
	},
	Effect: func(dir string) (any, error) {
		f, err := os.Open(filepath.Join(dir, "memory.jsonl"))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		var left []string
		for d := json.NewDecoder(f); d.More(); {
			var e struct {
				Name, EntityType, From, To, RelationType string
				Observations                             []string
			}
			if err := d.Decode(&e); err != nil {
				return nil, err
			}
			if e.EntityType == "contact" || e.EntityType == "company" || e.RelationType == "works_at" {
				left = append(left, fmt.Sprint(e))
			}
		}
		slices.Sort(left)
		return left, nil
	},
	WantEffect: func(w *World) any {
		entities, relations := imported(w.contacts)
		var want []string
		for _, e := range entities {
			want = append(want, fmt.Sprint(struct {
				a, b, c, d, e string
				f             []string
			}{e.Name, e.EntityType, "", "", "", e.Observations}))
		}
		for _, r := range relations {
			want = append(want, fmt.Sprint(struct {
				a, b, c, d, e string
				f             []string
			}{"", "", r.From, r.To, r.RelationType, nil}))
		}
		slices.Sort(want)
		return want
	},
}

// companies returns the companies of contacts in the order of their first contact.
func companies(all []contact) (names []string) {
	for _, c := range all {
		if !slices.Contains(names, c.company) {
			names = append(names, c.company)
		}
	}
	return names
}

// imported returns what the import creates.
func imported(all []contact) (entities []entity, relations []relation) {
	for _, c := range all {
		entities = append(entities, entity{c.name, "contact", []string{"email " + c.email, "city " + c.city, "role " + c.role}})
		relations = append(relations, relation{c.name, c.company, "works_at"})
	}
	for _, name := range companies(all) {
		entities = append(entities, entity{name, "company", []string{}})
	}
	return entities, relations
}
