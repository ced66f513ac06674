package archtest

import (
	"slices"
	"strings"
	"testing"
)

// row says what a package may import directly, not counting its tests.
type row struct {
	pkg    string   // below the module
	ours   []string // of our packages
	others []string // prefixes of what is neither ours nor in the standard library
	never  []string // prefixes in the standard library
}

const (
	sys    = "golang.org/x/sys/"
	gvisor = "gvisor.dev/gvisor/"
	sdk    = "github.com/modelcontextprotocol/go-sdk/"
)

// table has a row for every package. Imports point down: a package may import
// what stands further down and nothing that stands beside it.
var table = []row{
	// Programs.
	{pkg: "cmd/glovebox", ours: []string{"internal/cli"}},
	{pkg: "cmd/glovebox-guest", ours: []string{"internal/guest"}},
	{pkg: "internal/cli",
		ours: []string{
			"engine", "internal/auth", "internal/clihelp", "internal/codemode", "internal/config", "internal/engine/gvisor", "internal/filewatch", "internal/gcpace", "internal/guest", "internal/guestbin",
			"internal/image", "internal/gateway", "internal/link", "internal/machine", "internal/mcpcli", "internal/mcpserver", "internal/mcpserver/statuspage", "internal/metrics",
			"internal/pool", "internal/sandbox", "internal/snapshot",
			"internal/template", "internal/tools", "internal/tracing/otlp", "internal/wire", "mcpkit", "mcpkit/nearest",
		},
		others: []string{sdk, "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/", "gopkg.in/natefinch/lumberjack.v2"}},

	{pkg: "internal/metrics",
		ours:   []string{"internal/mcpserver", "internal/pool", "internal/sandbox"},
		others: []string{"github.com/prometheus/client_golang/"}},
	{pkg: "internal/metrics/docgen", ours: []string{"internal/metrics"}},

	{pkg: "internal/tracing/otlp", ours: []string{"internal/tracing"}, others: []string{"go.opentelemetry.io/otel/"}},

	// The server.
	{pkg: "internal/mcpserver",
		ours: []string{
			"internal/auth", "internal/mcpserver/envelope", "internal/mcpserver/statuspage", "internal/mcpserver/stdio", "internal/mcpserver/switches", "internal/mcpserver/tasks",
			"internal/sandbox", "internal/tools", "internal/tracing",
		},
		others: []string{sdk, sys, "github.com/hashicorp/golang-lru/v2", "golang.org/x/time/"}},
	{pkg: "internal/mcpserver/statuspage"},
	{pkg: "internal/mcpserver/stdio", ours: []string{"internal/mcpserver/envelope"}, others: []string{sdk, sys}},
	{pkg: "internal/mcpserver/switches"}, // what it imports is initialized before it
	{pkg: "internal/mcpserver/tasks", others: []string{sdk}},
	{pkg: "internal/mcpserver/envelope", others: []string{sdk}},
	{pkg: "internal/tools",
		ours:   []string{"internal/sandbox", "mcpkit/nearest"},
		others: []string{sdk, "github.com/google/jsonschema-go/"},
		never:  []string{"net/http"}}, // transports are the server's
	{pkg: "internal/auth", ours: []string{"internal/filewatch"},
		others: []string{"github.com/go-jose/go-jose/v4", "github.com/gofrs/flock", "github.com/pelletier/go-toml/v2"}},
	{pkg: "internal/filewatch"},
	{pkg: "internal/gcpace"},
	{pkg: "internal/config", ours: []string{"mcpkit/nearest"}, others: []string{"github.com/spf13/pflag", "github.com/tailscale/hujson"}},

	// Boxes.
	{pkg: "internal/sandbox",
		ours: []string{
			"engine", "internal/image", "internal/link", "internal/machine", "internal/pool", "internal/snapshot", "internal/template",
			"internal/tracing", "internal/wire", "mcpkit/statefile",
		},
		others: []string{"github.com/google/uuid", "github.com/hashicorp/golang-lru/v2", "golang.org/x/sync/", "golang.org/x/time/"}},
	{pkg: "internal/tracing", others: []string{"go.opentelemetry.io/otel/"}, never: []string{"net/http"}},
	{pkg: "internal/pool", ours: []string{"engine", "internal/machine"}},
	{pkg: "internal/template", ours: []string{"engine", "internal/machine"}, others: []string{sys}},
	{pkg: "internal/snapshot", others: []string{sys, "github.com/google/uuid"}},
	{pkg: "internal/machine", ours: []string{"engine", "internal/link", "internal/wire"}},
	{pkg: "internal/engine/gvisor",
		ours:   []string{"engine", "internal/engine/stdiolink", "internal/gcpace", "internal/image"},
		others: []string{sys, gvisor, "github.com/opencontainers/runtime-spec/"},
		never:  []string{"net/http"}},
	{pkg: "internal/engine/process",
		ours:   []string{"engine", "internal/engine/stdiolink"},
		others: []string{sys}},
	{pkg: "internal/engine/stdiolink", others: []string{sys}},
	{pkg: "internal/image", ours: []string{"engine"}},
	{pkg: "internal/guestbin", ours: []string{"engine"}},
	{pkg: "internal/link", ours: []string{"internal/wire"}}, // of an engine it wants only a Dial

	// What runs inside guests, beside hostile code.
	{pkg: "internal/guest",
		ours:   []string{"internal/guest/asuser", "internal/guest/files", "internal/guest/kernel", "internal/guest/rawio", "internal/wire"},
		others: []string{sys}},
	{pkg: "internal/guest/asuser", others: []string{sys}},
	{pkg: "internal/guest/files", ours: []string{"internal/wire"}, others: []string{sys}},
	{pkg: "internal/guest/kernel", ours: []string{"internal/guest/rawio", "internal/wire"}, others: []string{sys}},
	{pkg: "internal/guest/rawio", others: []string{sys}},
	{pkg: "internal/wire"},

	// What other programs import.
	{pkg: "engine"},
	{pkg: "engine/enginetest", ours: []string{"engine", "internal/link", "internal/wire"}},
	{pkg: "engine/enginetest/probe"},

	// The client kit.
	{pkg: "internal/gateway", ours: []string{"internal/offer", "mcpkit", "mcpkit/outbound"}, others: []string{sdk, "github.com/yosida95/uritemplate/v3"}},
	{pkg: "internal/gateway/gatewaytest", others: []string{sdk}},
	{pkg: "internal/offer", ours: []string{"mcpkit/statefile"}, others: []string{sdk}},
	{pkg: "internal/mcpcli",
		ours:   []string{"internal/clihelp", "internal/gateway", "internal/offer", "mcpkit", "mcpkit/cassette", "mcpkit/child", "mcpkit/consent", "mcpkit/login", "mcpkit/mcpjson", "mcpkit/nearest", "mcpkit/outbound"},
		others: []string{sdk, "github.com/spf13/cobra", "golang.org/x/term"}},
	{pkg: "internal/clihelp", others: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term"}},
	{pkg: "mcpkit/mcpjson", ours: []string{"mcpkit/nearest"}, others: []string{"github.com/pelletier/go-toml/v2", "github.com/tailscale/hujson"}},
	{pkg: "mcpkit",
		ours:   []string{"mcpkit/cassette", "mcpkit/child", "mcpkit/mcpjson", "mcpkit/outbound", "mcpkit/partlog", "mcpkit/statefile", "mcpkit/stream"},
		others: []string{sdk, "golang.org/x/sync/"}},
	{pkg: "mcpkit/cassette", ours: []string{"mcpkit/mcpjson", "mcpkit/stream"}, others: []string{sdk}},
	{pkg: "mcpkit/login",
		ours:   []string{"mcpkit/mcpjson", "mcpkit/outbound", "mcpkit/statefile"},
		others: []string{sdk, "github.com/go-jose/go-jose/v4", "github.com/google/uuid", "golang.org/x/oauth2", "golang.org/x/sync/"}},
	{pkg: "mcpkit/child", ours: []string{"mcpkit/stream"}, others: []string{sdk, sys}},
	{pkg: "mcpkit/consent", ours: []string{"mcpkit/statefile"}},
	{pkg: "mcpkit/nearest"},
	{pkg: "mcpkit/outbound"},
	{pkg: "mcpkit/partlog"},
	{pkg: "mcpkit/stream", others: []string{sdk}},
	{pkg: "mcpkit/statefile", others: []string{"github.com/gofrs/flock"}},

	// Tests and what is run by hand.
	{pkg: "internal/archtest"},
	{pkg: "internal/proctest", others: []string{sys}},
	{pkg: "packaging"},
	{pkg: "scripts"},
	{pkg: "internal/guest/isolated"},
	{pkg: "internal/pool/isolated"},
	{pkg: "internal/guestbin/guesttest", ours: []string{"engine", "internal/guestbin"}},
	{pkg: "internal/tools/toolstest",
		ours: []string{"engine", "internal/engine/process", "internal/guestbin/guesttest", "internal/image", "internal/machine", "internal/sandbox"}},
	{pkg: "internal/logintest", others: []string{sdk}},
	{pkg: "internal/config/docgen", ours: []string{"internal/config"}},
	{pkg: "bench", ours: []string{"bench/proc", "bench/report", "mcpkit", "mcpkit/mcpjson"}, others: []string{sdk}},
	{pkg: "bench/proc", others: []string{sys}},
	{pkg: "bench/report"},
	{pkg: "bench/peers/echo", others: []string{sdk}},
	{pkg: "conformance", ours: []string{"conformance/fixtures", "internal/mcpserver", "internal/sandbox", "internal/tools"}},
	{pkg: "conformance/client", ours: []string{"internal/logintest", "mcpkit", "mcpkit/login", "mcpkit/mcpjson", "mcpkit/outbound"},
		others: []string{sdk, "github.com/gofrs/flock"}},
	{pkg: "conformance/fixtures", ours: []string{"internal/mcpserver", "internal/mcpserver/tasks"}, others: []string{sdk}},
	{pkg: "e2e"},
	{pkg: "e2e/foreign"},
	{pkg: "examples/demo", others: []string{sdk}},
}

// reach says what a package must not import, not even through others.
var reach = []struct {
	pkg   string
	never []string
	why   string
}{
	{"cmd/glovebox", testOnly, "it must not be in what we ship"},
	{"cmd/glovebox-guest", append([]string{"net/http", "crypto/tls", sdk, gvisor, module + "/engine"}, testOnly...), "the agent is small and runs beside hostile code"},
	{"engine", []string{"net", "golang.org/", "github.com/"}, "it is imported by other programs"},
	{"internal/wire", []string{"net", "golang.org/", "github.com/"}, "both ends link it"},
	{"internal/link", []string{module + "/engine", "net/http"}, "it works over any stream"},
	{"internal/sandbox", []string{module + "/internal/engine", gvisor, sdk}, "which engine it has is for others to choose"},
	{"internal/tools", []string{module + "/internal/engine", gvisor}, "tools know boxes, not engines"},
	{"internal/engine/gvisor", []string{module + "/internal/sandbox", module + "/internal/link", sdk}, "engines know nothing of what is above"},
	{"engine/enginetest", []string{module + "/internal/engine", gvisor}, "the suite knows no engine"},
	{"mcpkit/outbound", []string{module + "/", "golang.org/", "github.com/"}, "anybody may use it by itself"},
	{"mcpkit/mcpjson", []string{module + "/internal", module + "/engine", "net/http", "os/exec"}, "it reads definitions and acts on none"},
	{"mcpkit", []string{module + "/internal", module + "/engine", gvisor}, "it is a library of its own"},
}

// testOnly is what only tests link.
var testOnly = []string{
	"testing", module + "/internal/engine/process", module + "/engine/enginetest",
	module + "/internal/guestbin/guesttest", module + "/internal/logintest", module + "/internal/tools/toolstest",
	module + "/internal/gateway/gatewaytest",
}

func TestImports(t *testing.T) {
	rows := make(map[string]row)
	for _, r := range table {
		if _, twice := rows[r.pkg]; twice {
			t.Errorf("%s has two rows", r.pkg)
		}
		rows[r.pkg] = r
	}
	for _, p := range ourPackages(t) {
		r, ok := rows[p.rel()]
		if !ok {
			t.Errorf("%s has no row in the table of imports_test.go: say there what it may import", p.rel())
			continue
		}
		delete(rows, p.rel())
		for _, imp := range p.Imports {
			if !r.allows(imp) {
				t.Errorf("%s imports %s, which its row does not allow", p.rel(), strings.TrimPrefix(imp, module+"/"))
			}
		}
	}
	for pkg := range rows {
		t.Errorf("%s has a row in the table and does not exist", pkg)
	}
}

func (r row) allows(imp string) bool {
	switch {
	case strings.HasPrefix(imp, module+"/"):
		return slices.Contains(r.ours, strings.TrimPrefix(imp, module+"/"))
	case standard(imp):
		return !slices.ContainsFunc(r.never, func(p string) bool { return below(imp, p) })
	}
	return slices.ContainsFunc(r.others, func(p string) bool { return below(imp, p) })
}

// below reports whether imp is the package prefix or one below it.
func below(imp, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return imp == prefix || strings.HasPrefix(imp, prefix+"/")
}

// standard reports whether imp is of the standard library.
func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func TestReach(t *testing.T) {
	graph := make(map[string][]string)
	for _, p := range allPackages(t) {
		graph[p.ImportPath] = p.Imports
	}
	for _, r := range reach {
		start := module + "/" + r.pkg
		if graph[start] == nil {
			continue // not there yet
		}
		from := map[string]string{start: ""}
		for todo := []string{start}; len(todo) > 0; todo = todo[1:] {
			for _, imp := range graph[todo[0]] {
				if _, seen := from[imp]; seen {
					continue
				}
				from[imp] = todo[0]
				todo = append(todo, imp)
				if slices.ContainsFunc(r.never, func(p string) bool { return reached(imp, p) }) {
					t.Errorf("%s imports %s: %s\n\t%s", r.pkg, imp, r.why, path(from, imp))
				}
			}
		}
	}
}

// reached reports whether imp is what must not be reached. Of the standard
// library's "net" only the package itself is meant.
func reached(imp, prefix string) bool {
	if standard(prefix) {
		return imp == prefix
	}
	return below(imp, prefix)
}

// path tells how imp was reached.
func path(from map[string]string, imp string) string {
	var steps []string
	for ; imp != ""; imp = from[imp] {
		steps = append(steps, strings.TrimPrefix(imp, module+"/"))
	}
	slices.Reverse(steps)
	return strings.Join(steps, " > ")
}
