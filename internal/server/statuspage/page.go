// Package statuspage draws what a person sees who opens the server in a browser:
// one page of HTML that needs no script and loads nothing. It knows nothing of
// where the figures come from.
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

// Page is what is told. Texts are escaped; they may be of any origin.
type Page struct {
	Name, Version string
	Endpoint      string
	State         State
	Why           []string // that it is not ready
	Uptime        time.Duration
	Subject       string // who is asking; empty: nobody in particular

	Tiles    []Tile
	Limits   []Limit
	Pool     []Pool
	NoBoxes  bool  // who is asking may not see boxes, not even their own
	Boxes    []Box // of who is asking
	More     int   // boxes that are not shown
	Errors   []Error
	Versions []Fact
	Settings []Fact
}

// State is what the server does. It is a closed set.
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

// Limit is how much of something is used.
type Limit struct {
	Label     string
	Used, Max float64
	Idle      float64 // of Used: what is freed when something else needs it
	Text      string  // "3 of 10"
}

// Pool is how one kind of box stands ready.
type Pool struct {
	Kind          string
	Ready, Wanted int
	Trouble       bool // the last attempt to make one failed
}

// Box is one box of the person who looks.
type Box struct {
	ID, Name, Kind, Template, Flavor, State string
	Created, Used                           time.Time
}

// Error is how often the protocol answered with one code.
type Error struct {
	Code    int64
	Meaning string
	Count   int64
	Last    time.Time
}

// Fact is a name and what it is.
type Fact struct{ Name, Value string }

var (
	//go:embed page.html
	html string
	//go:embed page.css
	css string

	// page is read when it is first asked for: the processes of boxes are this
	// program too, and never are.
	page = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("page").Funcs(template.FuncMap{"clock": clock, "span": Span}).Parse(html))
	})

	// policy allows the one style and nothing else: not even what were to get past
	// the escaping could load or run anything.
	policy = "default-src 'none'; style-src 'sha256-" + digest(css) + "'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Write sends the page with the status of HTTP. An error says that the client is gone
// or, with nothing sent, that the page cannot be drawn.
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

// clock writes a time as a person in any time zone understands it.
func clock(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05") + " UTC"
}

// Span writes a duration in its two largest units: "3 d 4 h".
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

// Bar is the part that is used. It warns if nearly all of it is in use by something
// that does not make room.
func (l Limit) Bar() meter {
	return meter{percent(l.Used, l.Max), percent(l.Used-l.Idle, l.Max) >= 90}
}

// Bar is the part that is ready.
func (p Pool) Bar() meter { return meter{percent(float64(p.Ready), float64(p.Wanted)), p.Trouble} }

// percent is the part of max that used is, from 0 to 100.
func percent(used, max float64) int {
	if max <= 0 || used <= 0 {
		return 0
	}
	return int(min(100, 100*used/max+.5))
}
