package e2e

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
)

// apiToken is the value of the secret. It consists of parts, so that the memory of no
// other program has it by chance.
var apiToken = strings.Join([]string{"tok", "en-of-the-api-", "5d41402abc4b2a76"}, "")

// wheel returns a pure Python package with one variable.
func wheel(t *testing.T, name string, value int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	info := name + "-1.0.dist-info/"
	files := [][2]string{
		{name + ".py", fmt.Sprintf("value = %d\n", value)},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	record := info + "RECORD,,\n"
	for _, f := range files {
		record += f[0] + ",,\n"
	}
	for _, f := range append(files, [2]string{info + "RECORD", record}) {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// repository returns a directory with a bare repository repo.git of one commit.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := `git init -q work && cd work && echo 'from the repository' >README &&
		git add README && git -c user.name=x -c user.email=x@example.org commit -qm x && cd .. && git clone -q --bare work repo.git && git -C repo.git update-server-info`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		lacking(t, "no repository: %v: %s", err, out)
	}
	return dir
}

// outside serves, over TLS on loopback, what the box of TestComputer reaches: a package
// index, a repository, and an API that wants the token. It returns the addresses of
// glovebox's pins.
func outside(t *testing.T, ca *egresstest.CA) (pins string) {
	t.Helper()
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		lacking(t, "no git: %v", err)
	}
	mux := http.NewServeMux()
	file := wheel(t, "fourth", 4)
	mux.HandleFunc("index.example.org/simple/fourth/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<a href="/files/fourth-1.0-py3-none-any.whl">fourth-1.0-py3-none-any.whl</a>`)
	})
	mux.HandleFunc("index.example.org/files/fourth-1.0-py3-none-any.whl", func(w http.ResponseWriter, _ *http.Request) { w.Write(file) })
	mux.Handle("git.example.org/", &cgi.Handler{
		Path: path.Join(strings.TrimSpace(string(backend)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + repository(t), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	})
	mux.HandleFunc("api.example.org/whoami", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+apiToken {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, "welcome; your token is %s\n", apiToken)
	})
	srv := httptest.NewUnstartedServer(mux)
	names := []string{"index.example.org", "git.example.org", "api.example.org"}
	srv.TLS = ca.Config(names...)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	for _, name := range names {
		pins += fmt.Sprintf(",%s:443=%s", name, srv.Listener.Addr())
	}
	return pins[1:]
}

const computerRecipe = `[template.lab]
description = "three packages"
copy = ["wheels"]
run = ["pip install --no-index wheels/*.whl"]
preload = ["first", "second", "third"]
network = ["index.example.org", "git.example.org", "api.example.org"]
[template.lab.env]
PIP_INDEX_URL = "https://index.example.org/simple"
`

const computerPolicy = `[default]
allow = ["*.example.org"]

[secret.api]
hosts = ["api.example.org"]
as = "API_TOKEN"
file = "token"
`

// TestComputer has a stock client use a box as a computer: it starts from a recipe with
// three packages, installs a fourth, clones a repository, calls an API with a token that
// it cannot read, is refused other hosts, and goes on after its server has ended. All these
// hosts have certificates of an authority of the operator's.
func TestComputer(t *testing.T) {
	t.Parallel()
	clients(t)
	ca := egresstest.NewCA(t)
	pins, dir, files := outside(t, ca), state(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(files, "wheels"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"glovebox.toml": []byte(computerRecipe), "net.toml": []byte(computerPolicy), "token": []byte(apiToken + "\n"),
		"wheels/first-1.0-py3-none-any.whl": wheel(t, "first", 1), "wheels/second-1.0-py3-none-any.whl": wheel(t, "second", 2), "wheels/third-1.0-py3-none-any.whl": wheel(t, "third", 3),
	} {
		if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command(glovebox(t), "template", "build", "--file", filepath.Join(files, "glovebox.toml"))
	build.Env = append(os.Environ(), "GLOVEBOX_STATE_DIR="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the template: %v: %s", err, out)
	}

	settings := []string{"GLOVEBOX_NETWORK_FILE=" + filepath.Join(files, "net.toml"), "GLOVEBOX_EGRESS_PIN=" + pins, "GLOVEBOX_EGRESS_CA=" + ca.File}
	var p *process
	var c commandLine
	start := func() {
		t.Helper()
		p = launch(t, dir, settings...)
		c, _ = inspectorAt(t, environment(t, dir), p.url, "--transport", "http", "--protocol-era", "modern")
	}
	start()
	answers := func(tool string, args map[string]any, words ...string) *answer {
		t.Helper()
		args["session_id"] = "lab"
		got := c.call(t, tool, args)
		for _, w := range words {
			if !strings.Contains(got.text(), w) {
				t.Errorf("%s %v: got %q, want it to contain %q", tool, args, got.text(), w)
			}
		}
		return got
	}
	code := func(source string, words ...string) *answer {
		t.Helper()
		return answers("execute_code", map[string]any{"code": source}, words...)
	}
	command := func(line string, words ...string) *answer {
		t.Helper()
		return answers("execute_command", map[string]any{"command": line}, words...)
	}
	const call = `import os, urllib.request
request = urllib.request.Request("https://api.example.org/whoami", headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]})
print(os.environ["API_TOKEN"][:15], urllib.request.urlopen(request).read().decode())
`
	const control = "control-value-of-the-box-7d793037a076"

	answers("execute_code", map[string]any{"template": "lab", "code": "import first, second, third\ntotal = first.value + second.value + third.value\nprint(total)"},
		"6\n", "Network: api.example.org, git.example.org, index.example.org; everything else is refused.")
	command("pip install -q fourth && echo installed", "installed\n")
	refused := command("git clone -q https://git.example.org/repo.git && cat repo/README; curl -sS https://evil.example.com/ 2>&1",
		"from the repository", "Glovebox refused evil.example.com:443: no rule allows it (allowed: ")
	if refused.StructuredContent["network"] == nil {
		t.Errorf("a refused host: got %v", refused.StructuredContent)
	}
	for range 2 { // without the proxy, and soon after one another
		code("import socket\ntry: socket.create_connection(('evil.example.com', 443))\nexcept OSError as e: print(e)",
			"Glovebox refused evil.example.com: no rule allows it (allowed: ")
	}
	masked := code(fmt.Sprintf("import fourth\ntotal += fourth.value\nkept = %q\nprint(total)\n", control)+call, "10\n", "gbx-secret-api- welcome; your token is ", "****")

	found := 0
	for _, pid := range sentries(t, p.cmd.Process.Pid) {
		if has(t, pid, apiToken) {
			t.Error("the memory of the box has the token")
		}
		if has(t, pid, control) {
			found++
		}
	}
	if found == 0 {
		t.Error("the memory of the box does not have the control value, so that the search for the token shows nothing")
	}
	if !has(t, p.cmd.Process.Pid, apiToken) {
		t.Error("the memory of the server does not have the token, so that the search for it shows nothing")
	}

	p.stop(t) // the box hibernates
	start()
	again := code("print(total + fourth.value, kept)\n"+call, "14 "+control, "gbx-secret-api- welcome; your token is ", "****")
	command("git -C repo pull -q && echo pulled; curl -sS https://other.example.org/ 2>&1",
		"pulled\n", "Glovebox refused other.example.org:443: the template of this box allows less than the policy")
	for _, got := range []*answer{masked, again} {
		if strings.Contains(got.text(), apiToken) {
			t.Errorf("the box has read the token: %q", got.text())
		}
	}
	p.stop(t)
}
