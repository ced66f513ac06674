// Package statuspage renders the page that the server shows in a browser: HTML without
// scripts that loads nothing. The caller supplies the figures.
package statuspage

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the template and the style
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Page is the content. Texts may be of any origin: they are escaped.
type Page struct {
	Name, Version string
	Endpoint      string
	State         State
	Why           []string // reasons for not being ready
	Uptime        time.Duration
	Subject       string // the authenticated user; empty without authentication

	Tiles    []Tile
	Limits   []Limit
	Pool     []Pool
	NoBoxes  bool  // the user may not see boxes, not even own ones
	Boxes    []Box // of the user
	More     int   // boxes that are not shown
	Errors   []Error
	Versions []Fact
	Settings []Fact
}

// State is the state of the server. It is a closed set.
type State string

// The closed set of states.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Degraded State = "not ready"
	Draining State = "stopping"
)

// Tile is one figure in large type.
type Tile struct {
	Label string
	Value int
	Note  string
}

// Limit is the use of a limited resource.
type Limit struct {
	Label     string
	Used, Max float64
	Idle      float64 // the part of Used that is freed on demand
	Text      string  // "3 of 10"
}

// Pool describes the boxes of one kind that are kept ready.
type Pool struct {
	Kind          string
	Ready, Wanted int
	Trouble       bool // the last attempt to create one failed
}

// Box is one box of the user.
type Box struct {
	ID, Name, Kind, Template, Flavor, State string
	Created, Used                           time.Time
}

// Error is the number of protocol errors with one code.
type Error struct {
	Code    int64
	Meaning string
	Count   int64
	Last    time.Time
}

// Fact is a name with its value.
type Fact struct{ Name, Value string }

var (
	//go:embed page.html
	html string
	//go:embed page.css
	css string

	// page is parsed on first use: the processes of boxes run this program too and never
	// need it.
	page = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("page").Funcs(template.FuncMap{"clock": clock, "span": Span}).Parse(html))
	})

	// policy allows the one style and nothing else: markup that got past the escaping
	// could not load or run anything.
	policy = "default-src 'none'; style-src 'sha256-" + digest(css) + "'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Write sends the page with an HTTP status. It fails if the client is gone or, before
// anything is sent, if the page cannot be rendered.
func Write(w http.ResponseWriter, status int, p *Page) error {
	var b bytes.Buffer
	if err := page().Execute(&b, struct {
		*Page
		Style template.CSS
		Now   time.Time
	}{p, template.CSS(css), time.Now().UTC()}); err != nil {
		return fmt.Errorf("draw the status page: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, err := w.Write(b.Bytes())
	return err
}

// clock formats a time with its time zone.
func clock(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05") + " UTC"
}

// Span formats a duration in its two largest units: "3 d 4 h".
func Span(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	var parts []string
	for _, u := range units {
		if n := d / u.size; n > 0 && len(parts) < 2 {
			parts = append(parts, fmt.Sprintf("%d %s", n, u.name))
		} else if len(parts) > 0 {
			break
		}
		d %= u.size
	}
	if parts == nil {
		return "0 s"
	}
	return strings.Join(parts, " ")
}

// meter is a bar of the page.
type meter struct {
	Percent int
	Warn    bool
}

// Bar is the used part. It warns if nearly all of it is in use and cannot be freed on
// demand.
func (l Limit) Bar() meter {
	return meter{percent(l.Used, l.Max), percent(l.Used-l.Idle, l.Max) >= 90}
}

// Bar is the ready part.
func (p Pool) Bar() meter { return meter{percent(float64(p.Ready), float64(p.Wanted)), p.Trouble} }

// percent returns used as a percentage of max, from 0 to 100.
func percent(used, max float64) int {
	if max <= 0 || used <= 0 {
		return 0
	}
	return int(min(100, 100*used/max+.5))
}
