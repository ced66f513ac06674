//go:build linux

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// notRun lists the documents' commands that TestDocuments does not run, with the reason.
// The file in, if any, runs the command elsewhere: it contains has.
var notRun = []struct{ line, reason, in, has string }{
	{line: "make build", reason: "make demo begins with it", in: "Makefile", has: "demo: setup build"},
	{line: "make help", reason: "prints the Makefile's comments"},
	{line: "make attack", reason: "takes a quarter of an hour and the machine to itself", in: ".ci/run", has: "scripts/attack"},
	{line: "make chaos", reason: "takes an hour", in: "internal/chaos/chaos_test.go", has: "func TestChaos("},
	{line: "make chaos CHAOSFLAGS='-seed 7 -ops 5000'", reason: "takes minutes", in: "internal/chaos/chaos_test.go", has: "func TestChaos("},
	{line: "make soak", reason: "takes half an hour"},
	{line: "make soak SOAKFLAGS='-for 2m'", reason: "takes minutes"},
	{line: "make fuzz", reason: "takes half an hour; the tests run the seeds of all targets"},
	{line: "make test-vm", reason: "boots virtual machines for minutes, as root"},
	{line: "make test-kube", reason: "compiles and starts a Kubernetes cluster, as root"},
	{line: "make bench-kube", reason: "takes minutes", in: "internal/engine/kube/kubesim/scale/main_test.go", has: "func TestScale_"},
	{line: "scripts/test-kube -run NONE -bench .", reason: "compiles and starts a Kubernetes cluster, as root"},
	{line: "scripts/kube/image helper registry.example/team/glovebox-helper helper.tar", reason: "compiles", in: "scripts/test-kube", has: "scripts/kube/image helper"},
	{line: "scripts/kube/image server registry.example/team/glovebox server.tar", reason: "compiles", in: "scripts/test-kube", has: "scripts/kube/image server"},
	{line: "scripts/kube/image tree NAME DIRECTORY FILE", reason: "the words stand for names", in: "scripts/test-kube", has: "scripts/kube/image tree"},
	{line: "glovebox doctor --engine kube --kube-namespace glovebox --image python@sha256:DIGEST --kube-helper-image registry.example/team/glovebox-helper@sha256:DIGEST", reason: "needs a cluster", in: "e2e/kube/kube_test.go", has: `"doctor"`},
	{line: "glovebox serve --engine kube --kube-namespace glovebox --image python@sha256:DIGEST --kube-helper-image registry.example/team/glovebox-helper@sha256:DIGEST", reason: "needs a cluster", in: "e2e/kube/kube_test.go", has: `"serve"`},
	{line: "make test-microsandbox", reason: "boots a virtual machine for minutes, as root"},
	{line: "npm install -g @superradcompany/microsandbox-linux-x64-gnu@0.7.2", reason: "downloads; scripts/test-microsandbox fetches the package", in: "scripts/test-microsandbox", has: "@superradcompany/microsandbox-linux-x64-gnu@0.7.2"},
	{line: "glovebox doctor --engine microsandbox", reason: "needs msb", in: "internal/cli/testdata/script/microsandbox.txtar", has: "doctor --engine microsandbox"},
	{line: "glovebox serve --engine microsandbox", reason: "needs msb", in: "internal/cli/testdata/script/microsandbox.txtar", has: "serve --engine microsandbox"},
	{line: "make test-foreign", reason: "runs other projects' suites for an hour"},
	{line: "make test-foreign FOREIGNFLAGS='-only numpy'", reason: "runs another project's suite for minutes"},
	{line: "make bench", reason: "needs half an hour and a quiet machine"},
	{line: "make bench BENCHFLAGS='-quick -only warm'", reason: "needs a quiet machine"},
	{line: "make bench BENCHFLAGS='-only codemode'", reason: "needs packages from npm and a browser"},
	{line: "make bench-compare", reason: "needs the result of make bench"},
	{line: "make bench-store", reason: "needs the result of make bench, and changes the repository"},
	{line: "make update-gvisor", reason: "changes go.mod"},

	{line: "go -C examples/nsengine test ./...", reason: "compiles", in: "scripts/test", has: "examples/*/go.mod"},
	{line: "go generate ./internal/server/tools", reason: "changes the repository", in: "scripts/check", has: "go generate ./..."},
	{line: "go generate ./internal/attack", reason: "changes the repository", in: "scripts/check", has: "go generate ./..."},
	{line: "go generate ./internal/config", reason: "changes the repository", in: "scripts/check", has: "go generate ./..."},
	{line: "go generate ./internal/server/metrics", reason: "changes the repository", in: "scripts/check", has: "go generate ./..."},
	{line: "go run ./bench -list", reason: "compiles the benchmark"},
	{line: "scripts/setup bench", reason: "installs packages"},
	{line: "scripts/conformance -scenario tasks-lifecycle", reason: "downloads; make conformance runs all scenarios", in: ".ci/run", has: "make conformance"},
	{line: "scripts/conformance -scenario tools-list -spec-version 2025-06-18", reason: "downloads; make conformance runs all scenarios", in: ".ci/run", has: "make conformance"},
	{line: "scripts/conformance -scenario sse-retry", reason: "downloads; make conformance runs all scenarios", in: ".ci/run", has: "make conformance"},
	{line: "scripts/conformance -serve", reason: "downloads; serves the build that make conformance tests", in: ".ci/run", has: "make conformance"},
	{line: "conformance/node_modules/node-linux-*/bin/node conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js list", reason: "a program of the suite, which make conformance downloads"},

	{line: "glovebox attack", reason: "takes minutes", in: "internal/cli/attack_test.go", has: "func TestAttack("},
	{line: "glovebox attack --only escape", reason: "takes a minute", in: "internal/cli/attack_test.go", has: "func TestAttack("},
	{line: "glovebox attack --json", reason: "takes minutes", in: "internal/cli/attack_test.go", has: "func TestAttack("},

	{line: "glovebox run --network npm -- npm install lodash", reason: "downloads", in: "e2e/network_test.go", has: "npm install"},
	{line: "glovebox run --image python:3.13-slim -- python3 -c 'print(\"hello\")'", reason: "downloads", in: "internal/cli/testdata/script/image_oci.txtar", has: "run --image"},
	{line: "glovebox image pull python:3.13-slim", reason: "downloads", in: "internal/cli/testdata/script/image_oci.txtar", has: "image pull"},
	{line: "podman save my/app >app.tar && glovebox run --image ./app.tar -- app --version", reason: "needs an image of podman's", in: "internal/cli/testdata/script/image_oci.txtar", has: "run --image ./app.tar"},
	{line: "glovebox image rm python:3.13-slim", reason: "needs the image", in: "internal/cli/testdata/script/image_oci.txtar", has: "image rm"},
	{line: "glovebox doctor --image IMAGE", reason: "IMAGE stands for a name"},
	{line: "glovebox stdio --image ghcr.io/team/analysis:2026-01", reason: "downloads", in: "internal/cli/testdata/script/image_oci.txtar", has: "run --image"},

	{line: "glovebox mcp approvals revoke memory", reason: "needs an approval that a person gave", in: "internal/cli/mcpcli/testdata/script/approvals.txtar", has: "mcp approvals revoke"},

	{line: "sudo apt-get install python3-openpyxl python3-sklearn", reason: "installs packages"},
	{line: "~/venv/bin/pip install pandas matplotlib openpyxl pyarrow", reason: "downloads"},
	{line: "pip download -d wheels polars duckdb", reason: "downloads"},
	{line: "glovebox template build data --net pypi --run 'pip install polars duckdb' --preload polars,duckdb", reason: "downloads", in: "internal/cli/testdata/script/recipe.txtar", has: "template build net --net"},
	{line: "glovebox template from-snapshot 'after setup' prepared", reason: "needs a snapshot that a client saved", in: "internal/cli/testdata/script/recipe.txtar", has: "template from-snapshot 'after setup'"},
	{line: "python3 -m venv", reason: "names the command that the document shows below"},
	{line: "podman run --rm", reason: "names a row of the benchmark"},

	{line: "useradd --system --home-dir /var/lib/glovebox --shell /usr/sbin/nologin glovebox", reason: "changes the machine", in: "packaging/testdata/systemd", has: "docs/deploy.md"},
	{line: "install -d /etc/glovebox && install -m 640 -g glovebox packaging/glovebox.env /etc/glovebox/", reason: "needs the user", in: "packaging/testdata/systemd", has: "docs/deploy.md"},
	{line: "systemctl daemon-reload && systemctl enable --now glovebox", reason: "changes the machine", in: "packaging/testdata/systemd", has: "docs/deploy.md"},
	{line: "systemctl edit glovebox", reason: "opens an editor"},
	{line: "systemctl reload glovebox", reason: "needs the unit", in: "packaging/testdata/systemd", has: "systemctl reload glovebox"},
	{line: "docker build -f packaging/Dockerfile --build-arg VERSION=$(git describe --tags --always) -t glovebox .", reason: "needs Docker and images of a registry"},
	{line: "docker run -d --name glovebox --init --stop-timeout 150 " +
		"--security-opt seccomp=glovebox-seccomp.json --security-opt apparmor=unconfined " +
		"--cap-drop ALL --security-opt no-new-privileges --read-only " +
		"-v glovebox:/var/lib/glovebox -p 127.0.0.1:8775:8775 " +
		"-v /etc/glovebox/tokens.toml:/etc/glovebox/tokens.toml:ro " +
		"-e GLOVEBOX_TOKENS_FILE=/etc/glovebox/tokens.toml -e GLOVEBOX_BEHIND_PROXY=true glovebox", reason: "needs Docker and the image"},
}

// needRoot are the commands that only root can run.
var needRoot = []string{"chown 1000 /etc/glovebox/tokens.toml"}

// clients are commands of clients that are not here. The test does what they tell the
// client to do.
var clients = []struct{ line, reason string }{
	{"claude mcp add glovebox -- glovebox stdio", "Claude Code needs an account"},
	{`claude mcp add --transport http glovebox http://127.0.0.1:8775/mcp --header "Authorization: Bearer $GLOVEBOX_TOKEN"`, "Claude Code needs an account"},
	{`claude mcp add glovebox -- glovebox stdio --tools "$PWD/mcp.json"`, "Claude Code needs an account"},
	{`claude mcp add all -- glovebox mcp serve --config "$PWD/mcp.json"`, "Claude Code needs an account"},
}

// interaction is what a person types at the questions of commands.
var interaction = map[string]string{
	"glovebox mcp call box.execute_code code='1 + 1'":                                       "y\n",
	`glovebox mcp call search.perplexity_search query="gVisor release notes" max_results=1`: "y\n",
	"glovebox mcp trust files":                                            "y\n",
	"glovebox mcp call everything.echo message=hello":                     "y\n",
	"glovebox mcp call github.search_issues query=bug --record bug.jsonl": "y\n",
}

// notRunLines notes which entries of the lists were met. Its methods may be called
// concurrently.
type notRunLines struct {
	mu  sync.Mutex
	met map[string]bool // guarded by mu
}

func (n *notRunLines) meet(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.met[line] = true
}

// has reports whether a line is not to be run.
func (n *notRunLines) has(line string) bool {
	n.meet(line)
	for _, e := range notRun {
		if e.line == line {
			return true
		}
	}
	for _, l := range needRoot {
		if l == line {
			return os.Geteuid() != 0
		}
	}
	return false
}

// client reports whether a line of a client is listed.
func (n *notRunLines) client(line string) bool {
	n.meet(line)
	for _, c := range clients {
		if c.line == line {
			return true
		}
	}
	return false
}

// checkUnused fails if an entry is in no document, or if the file that it names for its
// command does not run it.
func (n *notRunLines) checkUnused(t *testing.T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	for _, e := range notRun {
		lines = append(lines, e.line)
		if e.reason == "" {
			t.Errorf("%q has no reason", e.line)
		}
		if e.in == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(source, e.in))
		if err != nil || !strings.Contains(string(text), e.has) {
			t.Errorf("%q: %s does not run it: %v", e.line, e.in, err)
		}
	}
	for _, c := range clients {
		lines = append(lines, c.line)
	}
	lines = append(lines, needRoot...)
	for line := range interaction {
		lines = append(lines, line)
	}
	for _, line := range lines {
		if !n.met[line] {
			t.Errorf("no document has the command %q", line)
		}
	}
}
