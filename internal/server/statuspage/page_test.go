package statuspage

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// hostile are names that a client may give, or that a damaged record may hold.
var hostile = []string{
	`<script>document.title='pwned'</script>`,
	`"><img src=x onerror="document.title='pwned'">`,
	`</style></table><h1 id=pwned>pwned</h1>`,
	`javascript:alert(1)`,
	"\u202e\x00\x1b[31m\xff{{.Version}}",
	strings.Repeat("W", 500),
}

func example() *Page {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	p := &Page{
		Name: "Glovebox", Version: "1.2.3", Endpoint: "/mcp", State: Ready, Uptime: 76*time.Hour + 5*time.Minute, Subject: hostile[0],
		Tiles:  []Tile{{"running", 2, ""}, {"ready", 3, ""}, {"paused", 1, ""}, {"hibernated", 14, "on disk"}, {"MCP sessions", 5, ""}, {"calls under way", 2, ""}},
		Limits: []Limit{{"sessions", 3, 10, 3, "3 of 10, 3 idle"}, {"contexts", 48, 50, 1, "48 of 50, 1 idle"}, {"snapshots on disk", 3, 20, 0, "3.1 of 20 GiB"}},
		Pool:   []Pool{{"python, small", 3, 3, false}, {"node, small", 1, 3, true}},
		Boxes:  []Box{{"ctx-6f1c", "analysis", "context", "python", "small", "ready", now, now}},
		More:   7,
		Errors: []Error{{-32602, "invalid arguments", 12, now}, {0, "other errors", 1, now}},
		Versions: []Fact{
			{"Glovebox", "1.2.3 (abc)"}, {"gVisor", "v0.0.0-20260905035102-160fafc42237, 77 days old"}, {"Go", "go1.26.3"},
		},
	}
	for _, name := range hostile {
		p.Boxes = append(p.Boxes, Box{name, name, name, name, name, name, now, now})
		p.Why = append(p.Why, name)
	}
	return p
}

func TestWrite_Page(t *testing.T) {
	w := httptest.NewRecorder()
	if err := Write(w, http.StatusServiceUnavailable, example()); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("got status %d", w.Code)
	}
	body := w.Body.String()
	style := body[strings.Index(body, "<style>")+len("<style>") : strings.Index(body, "</style>")]
	for name, want := range map[string]string{
		"Content-Type":            "text/html; charset=utf-8",
		"Content-Security-Policy": "default-src 'none'; style-src 'sha256-" + digest(style) + "'",
		"X-Content-Type-Options":  "nosniff",
		"Cache-Control":           "no-store",
		"Referrer-Policy":         "no-referrer",
	} {
		if got := w.Header().Get(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for _, tag := range []string{"<script", "<img", "<h1 id", "onerror=\"", "href=\"javascript"} {
		if strings.Contains(body, tag) {
			t.Errorf("%s got past the escaping", tag)
		}
	}
	if got := regexp.MustCompile(`(?:src|href|url\()=?"?(?:https?:)?//`).FindString(body); got != "" {
		t.Errorf("the page loads something from elsewhere: %s", got)
	}
	for _, want := range []string{"3 d 4 h", "48 of 50", "1 of 3 ready – see the log", "-32602", "2026-03-04 05:06:07 UTC", "&lt;script&gt;"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", -time.Hour: "0 s", 999 * time.Millisecond: "0 s", 61 * time.Second: "1 min 1 s", time.Hour: "1 h",
		25 * time.Hour: "1 d 1 h", 24*time.Hour + time.Minute: "1 d", 1000 * 24 * time.Hour: "1000 d",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestBars(t *testing.T) {
	for _, test := range []struct {
		l    Limit
		want meter
	}{
		{Limit{Used: 1, Max: 0}, meter{0, false}},
		{Limit{Used: -1, Max: 10}, meter{0, false}},
		{Limit{Used: 9, Max: 10}, meter{90, true}},
		{Limit{Used: 1e300, Max: 1}, meter{100, true}},
		{Limit{Used: 10, Max: 10, Idle: 10}, meter{100, false}},
		{Limit{Used: 10, Max: 10, Idle: 1}, meter{100, true}},
	} {
		if got := test.l.Bar(); got != test.want {
			t.Errorf("%+v: got %+v, want %+v", test.l, got, test.want)
		}
	}
}

// chromium runs a browser on a page of the example and returns what it prints and
// what it complains of. The screenshot goes to a file.
func chromium(t *testing.T, url, shot string, args ...string) (dom, complaints string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
			t.Fatal("no chromium: scripts/setup test installs it")
		}
		t.Skip("no chromium: scripts/setup test installs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir=" + t.TempDir(), "--enable-logging=stderr",
	}, args...)
	if shot == "" {
		args = append(args, "--dump-dom")
	} else {
		args = append(args, "--screenshot="+shot)
	}
	cmd := exec.CommandContext(ctx, path, append(args, url)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.WaitDelay = 5 * time.Second
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("run chromium: %v\n%s", err, log.String())
	}
	return out.String(), strings.Join(regexp.MustCompile(`(?m)^.*CONSOLE.*$`).FindAllString(log.String(), -1), "\n")
}

// A real browser shows hostile names as text, runs and loads nothing, and applies the
// style in light and dark mode.
func TestPage_InBrowser(t *testing.T) {
	asked := make(chan string, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String()
		if err := Write(w, http.StatusOK, example()); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()

	dom, complaints := chromium(t, srv.URL, "")
	if complaints != "" {
		t.Errorf("the browser complains: %s", complaints)
	}
	for _, want := range []string{"<title>Glovebox – ready</title>", "&lt;script&gt;document.title='pwned'&lt;/script&gt;", "javascript:alert(1)"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, never := range []string{"<title>pwned", "<script", "<h1 id", "<img"} {
		if strings.Contains(dom, never) {
			t.Errorf("the page has %q", never)
		}
	}
	if n := strings.Count(dom, "<tr>"); n != strings.Count(render(t), "<tr>") {
		t.Errorf("the browser sees %d rows, other than were written", n)
	}

	dir := t.TempDir()
	if keep := os.Getenv("GLOVEBOX_TEST_SHOTS"); keep != "" { // to look at
		dir = keep
	}
	for name, test := range map[string]struct {
		args []string
		want color.RGBA
	}{
		"light":  {[]string{"--window-size=1200,1500"}, color.RGBA{0xf6, 0xf7, 0xf9, 0xff}},
		"dark":   {[]string{"--window-size=1200,1500", "--force-dark-mode", "--blink-settings=preferredColorScheme=0"}, color.RGBA{0x12, 0x15, 0x1a, 0xff}},
		"narrow": {[]string{"--window-size=500,1800"}, color.RGBA{0xf6, 0xf7, 0xf9, 0xff}},
	} {
		shot := filepath.Join(dir, name+".png")
		if _, complaints := chromium(t, srv.URL, shot, test.args...); complaints != "" {
			t.Errorf("%s: the browser complains: %s", name, complaints)
		}
		img := decode(t, shot)
		if got := color.RGBAModel.Convert(img.At(2, 2)); got != test.want {
			t.Errorf("%s: the background is %v, want %v", name, got, test.want)
		}
	}
	close(asked)
	for url := range asked {
		if url != "/" {
			t.Errorf("the page loads %s", url)
		}
	}
}

func render(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	if err := Write(w, http.StatusOK, example()); err != nil {
		t.Fatal(err)
	}
	return w.Body.String()
}

func decode(t *testing.T, path string) image.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func FuzzWrite(f *testing.F) {
	for _, name := range hostile {
		f.Add(name)
	}
	tags := func(name string) int {
		w := httptest.NewRecorder()
		if err := Write(w, 200, &Page{Subject: name, Why: []string{name}, Boxes: []Box{{ID: name, Name: name}}, Versions: []Fact{{name, name}}}); err != nil {
			return -1
		}
		return strings.Count(w.Body.String(), "<")
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name != "" && tags(name) != tags("x") {
			t.Errorf("%q changes the number of tags", name)
		}
	})
}
