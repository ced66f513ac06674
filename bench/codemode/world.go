// Package codemode has the tasks that compare direct tool calls with code mode: data made
// from a seed, twelve tasks over real MCP servers, and the count of the tokens that pass
// through the model. It starts nothing.
package codemode

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A World is the data behind the servers. The same seed gives the same World. Its fields
// are read-only, except Site.
type World struct {
	Site string // the address of Pages; set by the server of the pages

	logs      []logLine
	invoices  []invoice
	payments  []payment
	services  []service
	customers []customer
	products  []product
	quotes    []quote
	manifests []manifest
	contacts  []contact
}

type logLine struct {
	at     time.Time
	host   int
	method string
	route  string // with :id
	id     int
	status int
	took   int // milliseconds
}

type invoice struct {
	id       string
	customer string
	cents    int
	due      string
}

type payment struct {
	day       string
	reference string
	cents     int
	payer     string
}

type service struct {
	name      string
	tier      int
	owner     string // "" for none
	dependsOn []int
}

type customer struct {
	name     string
	plan     string
	manager  string
	included int // hours
	rate     int // per hour
	tickets  []int
}

type product struct {
	sku, name, category string
	cents, stock        int
	rating              int // tenths
}

type quote struct {
	sku         string
	cents, days int
}

type manifest struct {
	service, owner, image string
	replicas, memory      int
	probe, root           bool
}

type contact struct {
	name, email, company, city, role string
}

// NewWorld makes a World of a seed.
func NewWorld(seed uint64) *World {
	r := rand.New(rand.NewPCG(seed, 12))
	w := &World{}
	w.makeLogs(r)
	w.makeInvoices(r)
	w.makeServices(r)
	w.makeCustomers(r)
	w.makeProducts(r)
	w.makeManifests(r)
	w.makeContacts(r)
	return w
}

var (
	firstNames = []string{"Ada", "Bruno", "Carla", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Keiko", "Liam", "Mara", "Nils", "Olga", "Pedro", "Rosa", "Sven", "Tara", "Yusuf"}
	lastNames  = []string{"Almeida", "Berger", "Costa", "Dubois", "Eriksen", "Fischer", "Garcia", "Haddad", "Ivanov", "Jansen", "Kowalski", "Lindgren", "Moreau", "Novak", "Okafor", "Petrov", "Rossi", "Schmidt", "Tanaka", "Weber"}
	cities     = []string{"Antwerp", "Bergen", "Cork", "Dresden", "Espoo", "Faro", "Ghent", "Haarlem"}
	teams      = []string{"platform", "payments", "search", "mobile", "data", "identity"}
)

func one[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

func (w *World) makeLogs(r *rand.Rand) {
	routes := []struct {
		method, path string
		failing      int // per mille
	}{
		{"GET", "/api/orders/:id", 8}, {"POST", "/api/orders", 70}, {"GET", "/api/products/:id", 4}, {"GET", "/api/search", 25},
		{"POST", "/api/cart/:id/items", 15}, {"GET", "/api/invoices/:id/pdf", 120}, {"PUT", "/api/profile/:id", 45}, {"GET", "/health", 0},
	}
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for day := range 14 {
		for i := range 100 {
			route := one(r, routes)
			failing := route.failing
			if day == 9 {
				failing *= 4
			}
			status := []int{200, 200, 200, 201, 304, 404}[r.IntN(6)]
			if r.IntN(1000) < failing {
				status = 500 + r.IntN(4)
			}
			w.logs = append(w.logs, logLine{
				at: begin.AddDate(0, 0, day).Add(time.Duration(i)*13*time.Minute + time.Duration(r.IntN(700))*time.Second), host: 1 + r.IntN(6),
				method: route.method, route: route.path, id: 1000 + r.IntN(9000), status: status, took: 5 + r.IntN(400),
			})
		}
	}
}

func (w *World) makeInvoices(r *rand.Rand) {
	for i := range 960 {
		due := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, r.IntN(90))
		v := invoice{fmt.Sprintf("INV-%05d", 20417+7*i), one(r, firstNames) + " " + one(r, lastNames), 1000 + r.IntN(250000), due.Format(time.DateOnly)}
		w.invoices = append(w.invoices, v)
		p := payment{due.AddDate(0, 0, r.IntN(20)-10).Format(time.DateOnly), v.id, v.cents, v.customer}
		switch n := r.IntN(100); {
		case n < 2: // not paid
			continue
		case n < 4: // part of it
			p.cents -= 100 + r.IntN(800)
		case n < 5: // a reference of no invoice
			p.reference = fmt.Sprintf("INV-%05d", 20418+7*i)
		}
		w.payments = append(w.payments, p)
	}
	r.Shuffle(len(w.payments), func(i, j int) { w.payments[i], w.payments[j] = w.payments[j], w.payments[i] })
}

func (w *World) makeServices(r *rand.Rand) {
	for i := range 420 {
		s := service{name: fmt.Sprintf("%s-%03d", one(r, []string{"auth", "billing", "cart", "feed", "geo", "mail", "quota", "report"}), i), tier: 1 + r.IntN(3)}
		if r.IntN(12) > 0 {
			s.owner = one(r, teams)
		}
		for range min(i, 1+r.IntN(3)) {
			if d := r.IntN(i); !slices.Contains(s.dependsOn, d) {
				s.dependsOn = append(s.dependsOn, d)
			}
		}
		w.services = append(w.services, s)
	}
}

func (w *World) makeCustomers(r *rand.Rand) {
	for i := range 580 {
		c := customer{name: fmt.Sprintf("C-%04d", 3000+13*i), plan: one(r, []string{"bronze", "silver", "gold"}), manager: one(r, firstNames) + " " + one(r, lastNames), included: 5 * (1 + r.IntN(8)), rate: 80 + 5*r.IntN(12)}
		for range 1 + r.IntN(8) {
			c.tickets = append(c.tickets, 1+r.IntN(9))
		}
		w.customers = append(w.customers, c)
	}
}

func (w *World) makeProducts(r *rand.Rand) {
	nouns := []string{"Kettle", "Lamp", "Chair", "Shelf", "Clock", "Mirror", "Basket", "Teapot"}
	adjectives := []string{"Oak", "Steel", "Linen", "Copper", "Glass", "Walnut", "Enamel", "Wool"}
	for i := range 480 {
		p := product{fmt.Sprintf("SKU-%05d", 10007+31*i), one(r, adjectives) + " " + one(r, nouns), one(r, []string{"kitchen", "living", "office", "garden"}), 500 + r.IntN(20000), r.IntN(40), 20 + r.IntN(31)}
		w.products = append(w.products, p)
		q := quote{p.sku, p.cents, 1 + r.IntN(20)}
		switch n := r.IntN(100); {
		case n < 3: // no longer offered
			continue
		case n < 8:
			q.cents += 1 + r.IntN(900)
		}
		w.quotes = append(w.quotes, q)
	}
}

func (w *World) makeManifests(r *rand.Rand) {
	for i := range 190 {
		name := fmt.Sprintf("%s-%03d", one(r, []string{"api", "worker", "cron", "proxy", "stream"}), i)
		tag := fmt.Sprintf("1.%d.%d", r.IntN(30), r.IntN(10))
		if r.IntN(14) == 0 {
			tag = "latest"
		}
		w.manifests = append(w.manifests, manifest{name, one(r, teams), "registry.example/" + name + ":" + tag, 1 + r.IntN(6), 64 << r.IntN(6), r.IntN(15) > 0, r.IntN(16) == 0})
	}
}

func (w *World) makeContacts(r *rand.Rand) {
	used := make(map[string]bool)
	for len(w.contacts) < 260 {
		first, last := one(r, firstNames), one(r, lastNames)
		if used[first+last] {
			continue
		}
		used[first+last] = true
		company := one(r, []string{"Nordlicht", "Bluebird", "Castor", "Delphi", "Evergreen", "Fjord", "Granit", "Helios"}) + " " + one(r, []string{"Labs", "Logistics", "Partners", "Works"})
		w.contacts = append(w.contacts, contact{first + " " + last, strings.ToLower(first + "." + last + "@example.org"), company, one(r, cities), one(r, []string{"buyer", "engineer", "director", "analyst"})})
	}
}

func (l logLine) String() string {
	return fmt.Sprintf("%s web-%d %s %s %d %dms", l.at.Format(time.RFC3339), l.host, l.method, strings.ReplaceAll(l.route, ":id", fmt.Sprint(l.id)), l.status, l.took)
}

// Write writes the directory that the server "files" offers, to dir/files, the data of
// "memory" to dir/memory.jsonl, and the statements that fill the database of "sql" to
// dir/schema.sql.
func (w *World) Write(dir string) error {
	files := w.files()
	files["../memory.jsonl"] = w.memory()
	files["../schema.sql"] = w.schema()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, "files", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(dir, "files", "reports"), 0o755)
}

// files returns the files of the server "files" by path.
func (w *World) files() map[string]string {
	files := make(map[string]string)
	for _, l := range w.logs {
		files["logs/"+l.at.Format(time.DateOnly)+".log"] += l.String() + "\n"
	}
	var b strings.Builder
	b.WriteString("date,reference,amount_cents,payer\n")
	for _, p := range w.payments {
		fmt.Fprintf(&b, "%s,%s,%d,%s\n", p.day, p.reference, p.cents, p.payer)
	}
	files["bank/payments.csv"] = b.String()
	b.Reset()
	b.WriteString("customer,included_hours,rate_per_hour\n")
	for _, c := range w.customers {
		fmt.Fprintf(&b, "%s,%d,%d\n", c.name, c.included, c.rate)
	}
	files["contracts/hours.csv"] = b.String()
	for _, m := range w.manifests {
		files["deploy/"+m.service+".json"] = m.String()
	}
	b.Reset()
	b.WriteString("name,email,company,city,role\n")
	for _, c := range w.contacts {
		fmt.Fprintf(&b, "%s,%s,%s,%s,%s\n", c.name, c.email, c.company, c.city, c.role)
	}
	files["contacts.csv"] = b.String()
	files["notes/2026-02-planning.md"] = "# Planning\n\nHeld on 2026-02-11 in Ghent.\n\n" + strings.Repeat("* an item of the agenda\n", 12)
	files["notes/2026-03-review.md"] = "# Review\n\nHeld on 2026-03-18 in Bergen.\n\n" + strings.Repeat("* an item of the agenda\n", 12)
	return files
}

func (m manifest) String() string {
	probe := ""
	if m.probe {
		probe = "\n  \"readinessProbe\": {\"path\": \"/ready\", \"port\": 8080, \"periodSeconds\": 10},"
	}
	return fmt.Sprintf(`{
  "service": %q,
  "owner": %q,
  "image": %q,
  "replicas": %d,
  "resources": {"cpu": "250m", "memoryMiB": %d},
  "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],%s
  "securityContext": {"runAsNonRoot": %t, "readOnlyRootFilesystem": true},
  "env": {"LOG_LEVEL": "info", "REGION": "eu-west-1", "OTEL_SERVICE_NAME": %q}
}
`, m.service, m.owner, m.image, m.replicas, m.memory, probe, !m.root, m.service)
}

// memory returns the knowledge graph in the format of server-memory.
func (w *World) memory() string {
	var b strings.Builder
	entity := func(name, kind string, observations ...string) {
		fmt.Fprintf(&b, "{\"type\":\"entity\",\"name\":%q,\"entityType\":%q,\"observations\":[\"%s\"]}\n", name, kind, strings.Join(observations, `","`))
	}
	for _, s := range w.services {
		observations := []string{fmt.Sprintf("tier %d", s.tier)}
		if s.owner != "" {
			observations = append(observations, "owned by "+s.owner)
		}
		entity(s.name, "service", observations...)
	}
	for _, c := range w.customers {
		entity(c.name, "customer", "plan "+c.plan, "account of "+c.manager)
	}
	entity("Rotterdam office", "place", "opened in 2019")
	for _, s := range w.services {
		for _, d := range s.dependsOn {
			fmt.Fprintf(&b, "{\"type\":\"relation\",\"from\":%q,\"to\":%q,\"relationType\":\"depends_on\"}\n", s.name, w.services[d].name)
		}
	}
	return b.String()
}

// schema returns the statements that fill the database.
func (w *World) schema() string {
	var b strings.Builder
	b.WriteString(`BEGIN;
CREATE TABLE invoices (id TEXT PRIMARY KEY, customer TEXT, amount_cents INTEGER, due TEXT);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer TEXT, hours INTEGER);
CREATE TABLE products (sku TEXT PRIMARY KEY, name TEXT, price_cents INTEGER, stock INTEGER);
`)
	for _, v := range w.invoices {
		fmt.Fprintf(&b, "INSERT INTO invoices VALUES ('%s', '%s', %d, '%s');\n", v.id, v.customer, v.cents, v.due)
	}
	for _, c := range w.customers {
		for _, hours := range c.tickets {
			fmt.Fprintf(&b, "INSERT INTO tickets (customer, hours) VALUES ('%s', %d);\n", c.name, hours)
		}
	}
	for _, p := range w.products {
		fmt.Fprintf(&b, "INSERT INTO products VALUES ('%s', '%s', %d, %d);\n", p.sku, p.name, p.cents, p.stock)
	}
	b.WriteString("COMMIT;\n")
	return b.String()
}

// pageRows is how many rows a page of the site has.
const pageRows = 60

// ServeHTTP serves the pages for the server "browser": /shop?page=N and /supplier?page=N.
func (w *World) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	var head []string
	var rows [][]string
	switch in.URL.Path {
	case "/shop":
		head = []string{"SKU", "Name", "Category", "Price", "Stock", "Rating"}
		for _, p := range w.products {
			rows = append(rows, []string{p.sku, p.name, p.category, money(p.cents), fmt.Sprint(p.stock), fmt.Sprintf("%d.%d", p.rating/10, p.rating%10)})
		}
	case "/supplier":
		head = []string{"SKU", "Price", "Days"}
		for _, q := range w.quotes {
			rows = append(rows, []string{q.sku, money(q.cents), fmt.Sprint(q.days)})
		}
	default:
		http.NotFound(out, in)
		return
	}
	page := 1
	fmt.Sscan(in.URL.Query().Get("page"), &page)
	pages := (len(rows) + pageRows - 1) / pageRows
	if page < 1 || page > pages {
		http.NotFound(out, in)
		return
	}
	cells := func(tag string, row []string) string {
		return "<tr><" + tag + ">" + strings.Join(row, "</"+tag+"><"+tag+">") + "</" + tag + "></tr>\n"
	}
	fmt.Fprintf(out, "<!doctype html><html lang=en><link rel=icon href=data:,><title>Page %d of %d</title><h1>Page %d of %d</h1>\n<table><thead>%s</thead><tbody>\n", page, pages, page, pages, cells("th", head))
	for _, row := range rows[(page-1)*pageRows : min(len(rows), page*pageRows)] {
		fmt.Fprint(out, cells("td", row))
	}
	fmt.Fprint(out, "</tbody></table></html>\n")
}

func money(cents int) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// top sorts keys by a value, the largest first, then by name, and returns the first n.
func top(values map[string]int, n int) []string {
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	return keys[:min(n, len(keys))]
}
