//go:build linux

package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// commandLimit bounds one command: npx is slow on a busy machine.
const commandLimit = 2 * time.Minute

// A reader follows a document: it types the commands in a directory that is the
// document's own and its HOME, with glovebox on the PATH and a fresh state directory.
// The directory has the files of testdata/documents/NAME.
type reader struct {
	t      *testing.T
	dir    string
	env    []string
	notRun *notRunLines
	token  string         // the last one that a command printed
	team   *serverProcess // for curl and the configurations of clients; nil until needed
}

// source is the directory of the repository.
const source = "../.."

func newReader(t *testing.T, document string, commands []docCommand, n *notRunLines) *reader {
	t.Helper()
	r := &reader{t: t, dir: t.TempDir(), notRun: n}
	// Boxes run as other users, who have to reach the virtual environments of documents.
	for up := r.dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		r.must(os.Chmod(up, 0o755))
	}
	t.Cleanup(func() { proctest.WaitUnused(t, r.dir, time.Minute) })
	if files := filepath.Join("testdata/documents", document); exists(files) {
		r.must(os.CopyFS(r.dir, os.DirFS(files)))
	}
	for _, dir := range []string{"bin", "usr/local/bin", "etc/glovebox", "etc/systemd/system"} {
		r.must(os.MkdirAll(filepath.Join(r.dir, dir), 0o755))
	}
	packaging, err := filepath.Abs(filepath.Join(source, "packaging"))
	r.must(err)
	r.must(os.Symlink(packaging, filepath.Join(r.dir, "packaging")))
	if slices.ContainsFunc(commands, func(c docCommand) bool { return strings.Contains(c.line+c.want, "npx") }) {
		r.must(os.Symlink(stock(t), filepath.Join(r.dir, "node_modules"))) // npx takes what is there
	}
	writeCertificate(t, filepath.Join(r.dir, "cert.pem"), filepath.Join(r.dir, "key.pem"), "reader")

	path, err := exec.LookPath("glovebox")
	r.must(err)
	// Servers of an mcp.json get little of the environment: the settings are in the program.
	// Servers take a free port; templates without libraries are built faster.
	script := fmt.Sprintf("#!/bin/sh\nexport GLOVEBOX_STATE_DIR='%s/state' GLOVEBOX_FINISH_TEMPLATES=false GLOVEBOX_POOL_SIZE=0 GLOVEBOX_PRELOAD=none\n"+
		"[ \"$1\" != serve ] || set -- \"$@\" --port 0\nexec '%s' \"$@\"\n", r.dir, path)
	r.must(os.WriteFile(filepath.Join(r.dir, "bin/glovebox"), []byte(script), 0o755))
	// Claude Code is not installed: this notes what it would receive.
	r.must(os.WriteFile(filepath.Join(r.dir, "bin/claude"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o755))

	r.env = append(os.Environ(), "HOME="+r.dir, "PATH="+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"),
		"GITHUB_MCP_URL="+searchServer(t), "HTTPS_PROXY=http://127.0.0.1:9") // no command reaches beyond this machine
	if document == "search.md" {
		api := perplexitytest.New(t)
		r.env = append(r.env, "PERPLEXITY_API_KEY="+perplexitytest.Key, "PERPLEXITY_BASE_URL="+api.URL)
	}
	return r
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (r *reader) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// searchServer serves an MCP server with the tool search_issues, in place of GitHub's.
func searchServer(t *testing.T) (url string) {
	s := mcp.NewServer(&mcp.Implementation{Name: "github", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "search_issues", Description: "Search issues"},
		func(_ context.Context, _ *mcp.CallToolRequest, in struct {
			Query string `json:"query"`
		}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "no issue about " + in.Query}}}, nil, nil
		})
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(h.Close)
	return h.URL
}

var (
	// placeholder stands for something of the reader's; ARG is a fine argument.
	placeholder = regexp.MustCompile(`[ =](CLASS|SERVER|DIR|FILE|NAME|ID|URL)\b|.…`)
	// ownServer matches the commands that serve until they are stopped.
	ownServer = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*glovebox (serve|stdio|mcp serve|search stdio)( |$)`)
	// printedToken is what glovebox token new prints.
	printedToken = regexp.MustCompile(`(?m)^\S{20,}$`)
)

// follow runs a command, or writes a file.
func (r *reader) follow(c docCommand) {
	t := r.t
	t.Helper()
	if !c.inline {
		c.line = strings.TrimSuffix(c.line, " …")
	}
	words := strings.Fields(c.line)
	if c.file == "" {
		checkSyntax(t, c.line)
	}
	switch {
	case c.file != "":
		if !filepath.IsLocal(c.file) {
			t.Fatalf("the document names a file outside of its directory: %s", c.file)
		}
		r.must(os.WriteFile(filepath.Join(r.dir, c.file), []byte(c.want), 0o600))
	case words[0] == "make":
		r.target(c.line, words)
	case r.notRun.has(c.line):
	case c.inline && (isName(words) || placeholder.MatchString(c.line)):
	case words[0] == "claude":
		r.client(c.line)
	case ownServer.MatchString(c.line):
		if words[1] == "serve" || slices.Contains(words, "--listen") {
			r.serve(c.line)
		} else {
			r.speak(c.line)
		}
	default:
		r.run(c)
	}
}

// isName reports whether a sentence names a command, instead of showing how it is used.
func isName(words []string) bool {
	if words[0] != "glovebox" {
		return len(words) <= 2
	}
	_, rest, err := (&app{lookup: os.LookupEnv}).root().Find(words[1:])
	return err == nil && len(rest) == 0 && len(words) <= 3
}

// target checks that make knows a target, and that CI runs it unless it is listed.
func (r *reader) target(line string, words []string) {
	r.t.Helper()
	if out, err := exec.Command("sh", "-c", strings.Replace(line, "make", "make -n -C "+source, 1)).CombinedOutput(); err != nil {
		r.t.Errorf("$ %s\n%s\n%v", line, out, err)
	}
	ci, err := os.ReadFile(filepath.Join(source, ".ci/run"))
	r.must(err)
	if len(words) > 1 && !regexp.MustCompile(`(?m)^make `+regexp.QuoteMeta(words[1])+`( |$)`).Match(ci) && !r.notRun.has(line) {
		r.t.Errorf("%q: .ci/run does not run it, and it is not in notRun with a reason", line)
	}
}

// slow is what a command prints on a slow machine only.
var slow = regexp.MustCompile(`(?m)^level=WARN msg="mcp server is still starting;.*\n`)

// run runs a command. It must print the output that the document shows or, if it shows
// none, succeed.
func (r *reader) run(c docCommand) {
	r.t.Helper()
	got, err := r.shell(r.here(c.line), interaction[c.line])
	got = slow.ReplaceAllString(got, "")
	switch {
	case c.want != "" && !shown(c.want, got):
		r.t.Fatalf("$ %s\nprints\n%s\nand the document shows\n%s", c.line, got, c.want)
	case c.want == "" && err != nil:
		r.t.Errorf("$ %s\n%s\n%v", c.line, got, err)
	}
	if strings.HasPrefix(c.line, "glovebox token new") {
		r.token = printedToken.FindString(got)
	}
}

// here returns a line for this machine: without the rights of root, below the reader's
// directory, with the address of a server that runs.
func (r *reader) here(line string) string {
	if strings.Contains(line, "127.0.0.1:8775") {
		line = strings.ReplaceAll(line, "http://127.0.0.1:8775/mcp", r.shared().endpoint)
		line = strings.ReplaceAll(line, "http://127.0.0.1:8775", strings.TrimSuffix(r.shared().endpoint, "/mcp"))
	}
	return strings.NewReplacer(
		"sudo ", "", "/etc/glovebox", r.dir+"/etc/glovebox", "/etc/systemd", r.dir+"/etc/systemd", "/usr/local/bin", r.dir+"/usr/local/bin",
		"--listen 127.0.0.1:8776", "--listen 127.0.0.1:0",
		"PERPLEXITY_API_KEY=pplx-your-key ", "",
		"-m venv ~", "-m venv --without-pip ~", // Debian has pip in a package of its own, and setting it up takes half a minute
	).Replace(line)
}

// shell runs a line and returns its output. With input, a person types it at a terminal.
func (r *reader) shell(line, input string) (string, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = r.dir, r.env
	if input == "" {
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			r.t.Fatalf("$ %s\n%v after %v:\n%s", line, err, commandLimit, out)
		}
		return strings.TrimRight(string(out), "\n"), err
	}
	master, slave := terminalPair(r.t)
	defer master.Close()
	defer slave.Close()
	cmd.Stdin, cmd.Stderr = slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	go io.Copy(io.Discard, master) // ends when master is closed
	if _, err := io.WriteString(master, input); err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.Output()
	return strings.TrimRight(string(out), "\n"), err
}

// terminalPair returns the two ends of a terminal.
func terminalPair(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// start starts a server by a line, and returns when it tells its address.
func (r *reader) start(line string) *serverProcess {
	r.t.Helper()
	s := &serverProcess{t: r.t, cmd: exec.Command("sh", "-c", "exec "+r.here(line))}
	s.cmd.Dir, s.cmd.Env, s.cmd.Stdout = r.dir, r.env, &s.stdout
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := s.cmd.StderrPipe()
	r.must(err)
	r.must(s.cmd.Start())
	found := s.follow(stderr, regexp.MustCompile(`https?://127\.0\.0\.1:\d+/mcp`))
	r.t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait() // an error if it has ended
	})
	select {
	case s.endpoint = <-found:
	case log := <-s.log:
		r.t.Fatalf("$ %s\n%s\nthe server has ended", line, log)
	case <-time.After(5 * time.Minute):
		r.t.Fatalf("$ %s\nno address after five minutes", line)
	}
	return s
}

// shared returns the server of the document's curl lines and clients. It requires the
// token GLOVEBOX_TOKEN.
func (r *reader) shared() *serverProcess {
	r.t.Helper()
	if r.team == nil {
		out, err := r.shell("glovebox token new --name reader --tokens-file reader.toml", "")
		if err != nil {
			r.t.Fatal(out, err)
		}
		r.env = append(r.env, "GLOVEBOX_TOKEN="+printedToken.FindString(out))
		r.team = r.start("glovebox serve --tokens-file reader.toml")
		polltest.Until(r.t, time.Minute, "the server is ready", func() bool {
			res, err := http.Get(strings.TrimSuffix(r.team.endpoint, "/mcp") + "/ready")
			if err != nil {
				return false
			}
			res.Body.Close()
			return res.StatusCode == http.StatusOK
		})
		r.t.Cleanup(r.team.stop)
	}
	return r.team
}

// serve starts a server that listens, asks for its health and, if it has no token that
// is unknown here, for its tools, and stops it.
func (r *reader) serve(line string) {
	r.t.Helper()
	s := r.start(line)
	web := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer web.CloseIdleConnections()
	client := &http.Client{Transport: bearer{r.token, web}}
	if !strings.Contains(line, " mcp ") {
		res, err := client.Get(strings.TrimSuffix(s.endpoint, "/mcp") + "/health")
		if err != nil {
			r.t.Fatalf("$ %s\n%v", line, err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			r.t.Errorf("$ %s\nhealth: %s", line, res.Status)
		}
	}
	if !strings.Contains(line, "--oidc-issuer") {
		r.hasTools(line, &mcp.StreamableClientTransport{Endpoint: s.endpoint, HTTPClient: client})
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 {
		r.t.Errorf("$ %s\n%s\nexit code %d", line, log, code)
	}
}

// bearer adds a token, if there is one, to requests.
type bearer struct {
	token string
	http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.RoundTripper.RoundTrip(req)
}

// speak starts a server as clients do, over standard input and output.
func (r *reader) speak(line string) {
	r.t.Helper()
	cmd := exec.Command("sh", "-c", "exec "+r.here(line))
	cmd.Dir, cmd.Env = r.dir, r.env
	r.hasTools(line, &mcp.CommandTransport{Command: cmd})
}

// hasTools connects to a server, and fails if it has no tools.
func (r *reader) hasTools(line string, transport mcp.Transport) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), commandLimit)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "reader", Version: "1"}, nil).Connect(ctx, transport, nil)
	if err != nil {
		r.t.Fatalf("$ %s\n%v", line, err)
	}
	defer session.Close()
	polltest.Until(r.t, time.Minute, "tools of "+line, func() bool { // a gateway asks its servers meanwhile
		res, err := session.ListTools(ctx, nil)
		if err != nil {
			r.t.Fatalf("$ %s\n%v", line, err)
		}
		return len(res.Tools) > 0
	})
}

// client acts as a configured client does: it starts the command after --, or connects
// to the URL with the headers.
func (r *reader) client(line string) {
	r.t.Helper()
	if !r.notRun.client(line) {
		r.t.Errorf("%q: the program is not here, and the line is not listed", line)
	}
	out, err := r.shell(r.here(line), "")
	r.must(err)
	told := strings.Split(out, "\n")
	if i := slices.Index(told, "--"); i >= 0 {
		for j, word := range told {
			told[j] = "'" + word + "'"
		}
		r.speak(strings.Join(told[i+1:], " "))
		return
	}
	url, web := "", bearer{RoundTripper: http.DefaultTransport}
	for i, word := range told {
		if strings.HasPrefix(word, "http://") {
			url = word
		}
		if token, ok := strings.CutPrefix(word, "Authorization: Bearer "); ok && told[i-1] == "--header" {
			web.token = token
		}
	}
	r.hasTools(line, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: web}})
}
