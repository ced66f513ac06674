package archtest

import (
	"slices"
	"strings"
	"testing"
)

// A rule says which packages the packages of a subtree may import directly, apart
// from the subtree itself and not counting tests. The longest matching tree applies.
type rule struct {
	tree   string   // a package below the module, and all packages below it
	ours   []string // our packages; with a trailing slash, also those below
	others []string // prefixes of packages that are neither ours nor in the standard library
	never  []string // prefixes of packages in the standard library
}

const (
	sys    = "golang.org/x/sys/"
	gvisor = "gvisor.dev/gvisor/"
	sdk    = "github.com/modelcontextprotocol/go-sdk/"
)

// rules has a rule for every package. A permission that no package of the tree uses
// fails the test.
var rules = []rule{
	// Programs.
	{tree: "cmd/glovebox", ours: []string{"internal/cli"}},
	{tree: "cmd/glovebox-guest", ours: []string{"internal/guest/agent", "internal/guest/pod"}},
	{tree: "cmd/glovebox-pod", ours: []string{"internal/guest/pod"}},
	{tree: "internal/cli",
		ours:   []string{"engine", "engine/hostdisk", "internal/attack", "internal/box/", "internal/codemode/", "internal/config", "internal/egress/", "internal/filewatch", "internal/fleet", "internal/gateway", "internal/gctune", "internal/guest/", "internal/logkey", "internal/nearest", "internal/owned", "internal/perplexity", "internal/plural", "internal/posture", "internal/recipe", "internal/regular", "internal/server/", "internal/tracing/otlp", "internal/untar", "internal/visible", "mcpkit/outbound/address"},
		others: []string{sdk, "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/", "gopkg.in/natefinch/lumberjack.v2"}},
	{tree: "internal/cli/mcpcli",
		ours:   []string{"internal/codemode/approval", "internal/config", "internal/gateway/", "internal/lazyregexp", "internal/logkey", "internal/nearest", "internal/plural", "internal/truncate", "internal/visible", "mcpkit/"},
		others: []string{sdk, "github.com/spf13/cobra", "golang.org/x/term"}},
	{tree: "internal/cli/engines", ours: []string{"engine", "internal/engine/gvisor", "internal/engine/kube", "internal/engine/microsandbox", "internal/fleet"}}, // the one place that knows concrete engines
	{tree: "internal/cli/help", others: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term"}},
	{tree: "internal/config", ours: []string{"internal/egress/floor", "internal/egress/policy", "internal/egress/resolve", "internal/lazyregexp", "internal/nearest", "internal/owned"}, others: []string{"github.com/pelletier/go-toml/v2", "github.com/spf13/pflag", "github.com/tailscale/hujson"}},

	// Attacks on boxes and servers.
	{tree: "internal/attack", ours: []string{"engine", "internal/box", "internal/box/image/oci", "internal/box/machine", "internal/box/volume", "internal/cli/mcpcli", "internal/codemode", "internal/egress", "internal/egress/policy", "internal/egress/resolve", "internal/egress/secret", "internal/gateway", "internal/gateway/listing", "internal/gateway/pin", "internal/guest/client", "internal/guest/protocol", "mcpkit/"}, others: []string{sdk, sys, "golang.org/x/net/dns/dnsmessage", "golang.org/x/net/http2"}},

	{tree: "internal/recipe", ours: []string{"internal/egress/policy", "internal/nearest"}, others: []string{"github.com/google/jsonschema-go/", "github.com/pelletier/go-toml/v2"}},

	// The server.
	{tree: "internal/server",
		ours:   []string{"internal/box", "internal/fleet", "internal/logkey", "internal/loglimit", "internal/plainjson", "internal/revision", "internal/tracing", "internal/truncate", "mcpkit/outbound/address"},
		others: []string{sdk, sys, "github.com/hashicorp/golang-lru/v2", "golang.org/x/time/"}},
	{tree: "internal/server/auth", ours: []string{"internal/filewatch", "internal/logkey", "internal/owned", "internal/regular", "internal/syncfile", "internal/truncate"},
		others: []string{"github.com/go-jose/go-jose/v4", "github.com/gofrs/flock", "github.com/pelletier/go-toml/v2"}},
	{tree: "internal/server/metrics",
		ours:   []string{"internal/box/", "internal/egress", "internal/server"},
		others: []string{"github.com/prometheus/client_golang/"}},
	{tree: "internal/server/tools",
		ours:   []string{"internal/box", "internal/codemode/", "internal/logkey", "internal/nearest", "internal/plainjson", "internal/plural", "internal/revision", "internal/truncate", "internal/visible"},
		others: []string{sdk, "github.com/google/jsonschema-go/"},
		never:  []string{"net/http"}}, // transports are the server's
	{tree: "internal/server/tools/toolstest",
		ours: []string{"engine", "internal/box/", "internal/engine/process", "internal/guest/embed/embedtest"}},
	{tree: "internal/tracing", others: []string{"go.opentelemetry.io/otel/"}},

	// Boxes.
	{tree: "internal/fleet", ours: []string{"engine", "internal/lazyregexp", "mcpkit/outbound/address"}},
	{tree: "internal/box",
		ours: []string{"engine", "engine/hostdisk", "internal/crc32c", "internal/fairlru", "internal/fleet", "internal/guest/client", "internal/guest/protocol", "internal/lazyregexp", "internal/logkey", "internal/owned", "internal/plainjson", "internal/plural", "internal/statefile", "internal/syncfile", "internal/tracing", "internal/truncate", "internal/visible"},
		others: []string{
			sys, "github.com/google/uuid", "golang.org/x/sync/", "golang.org/x/time/",
		}},
	{tree: "internal/box/image/oci",
		ours:   []string{"engine", "engine/hostdisk", "internal/box/image", "internal/box/machine", "internal/erofs", "internal/lazyregexp", "internal/owned", "internal/regular", "internal/statefile", "mcpkit/outbound/address"},
		others: []string{"github.com/gofrs/flock", "github.com/google/go-containerregistry/pkg/", "github.com/klauspost/compress/zstd"},
		never:  []string{"os/exec"}},
	{tree: "internal/box/image/remote",
		ours:   []string{"engine", "internal/box/image", "internal/box/machine", "internal/guest/client", "internal/guest/protocol", "internal/lazyregexp", "internal/statefile"},
		others: []string{"github.com/google/uuid"}},
	{tree: "internal/engine/gvisor",
		ours:   []string{"engine", "engine/hostdisk", "internal/crc32c", "internal/engine/guests", "internal/engine/stdiolink", "internal/erofs", "internal/gctune", "internal/logkey", "internal/owned", "internal/plural", "internal/posture", "internal/regular", "internal/truncate"},
		others: []string{sys, gvisor, "github.com/opencontainers/runtime-spec/"},
		never:  []string{"net/http"}},
	{tree: "internal/engine/guests", ours: []string{"engine"}},
	{tree: "internal/engine/kube",
		ours:   []string{"engine", "internal/engine/guests", "internal/engine/remote", "internal/fleet", "internal/lazyregexp", "internal/logkey", "internal/truncate", "internal/visible"},
		others: []string{"golang.org/x/time/"},
		never:  []string{"os/exec"}},
	{tree: "internal/engine/kube/kubeapi",
		ours:   []string{"internal/engine/kube/kubeconfig", "internal/truncate", "internal/visible"},
		others: []string{"github.com/coder/websocket"},
		never:  []string{"os/exec"}},
	{tree: "internal/engine/kube/kubeconfig",
		ours:   []string{"internal/nearest", "internal/truncate", "internal/visible"},
		others: []string{"go.yaml.in/yaml/v3"}},
	{tree: "internal/engine/kube/kubesim"}, // it knows the API, not the engine
	{tree: "internal/engine/kube/kubesim/scale", ours: []string{"engine", "internal/engine/kube", "internal/engine/kube/kubeconfig", "internal/engine/kube/kubesim", "internal/fleet"}},
	{tree: "internal/engine/microsandbox",
		ours:   []string{"engine", "engine/hostdisk", "internal/engine/guests", "internal/engine/remote", "internal/guest/embed", "internal/guest/pod", "internal/lazyregexp", "internal/logkey", "internal/owned", "internal/truncate", "internal/visible"},
		others: []string{sys}},
	{tree: "internal/engine/process", ours: []string{"engine", "internal/engine/guests", "internal/engine/stdiolink", "internal/logkey"}, others: []string{sys}},
	{tree: "internal/engine/remote", ours: []string{"engine", "internal/engine/guests", "internal/guest/podlink", "internal/logkey"}},
	{tree: "internal/engine/stdiolink", others: []string{sys}},

	// The network of boxes.
	{tree: "internal/egress",
		ours:   []string{"internal/guest/protocol", "internal/logkey", "internal/loglimit"},
		others: []string{"golang.org/x/net/publicsuffix", "golang.org/x/time/rate"}},
	{tree: "internal/egress/webserve"},
	{tree: "internal/egress/policy", ours: []string{"mcpkit/outbound/address"}},
	{tree: "internal/egress/floor", ours: []string{"mcpkit/outbound/address"}},
	{tree: "internal/egress/resolve", ours: []string{"internal/egress/floor", "internal/egress/policy"}},
	{tree: "internal/egress/peek"},
	{tree: "internal/egress/socks"},
	{tree: "internal/egress/secret",
		ours: []string{"internal/egress", "internal/egress/authority", "internal/egress/policy", "internal/egress/redact", "internal/egress/webserve", "internal/lazyregexp", "internal/logkey", "internal/loglimit", "internal/owned", "internal/visible"}},
	{tree: "internal/egress/authority"},
	{tree: "internal/egress/redact"},
	{tree: "internal/egress/egresstest", others: []string{"golang.org/x/net/dns/dnsmessage"}},

	// Guests: the agent inside, the protocol, and the host's side of it.
	{tree: "internal/guest/agent", ours: []string{"internal/guest/protocol"}, others: []string{sys, "golang.org/x/net/dns/dnsmessage"}},
	{tree: "internal/guest/protocol"},
	{tree: "internal/guest/client", ours: []string{"internal/guest/protocol"}}, // any stream will do; it needs no engine
	{tree: "internal/guest/pod", ours: []string{"internal/engine/stdiolink", "internal/guest/podlink"}, others: []string{sys}},
	{tree: "internal/guest/podlink"},
	{tree: "internal/guest/embed", ours: []string{"engine", "internal/owned", "internal/syncfile"}},

	// Public packages.
	{tree: "engine"},
	{tree: "engine/hostdisk"},
	{tree: "engine/enginetest", ours: []string{"engine", "internal/guest/client", "internal/guest/embed/embedtest", "internal/guest/protocol"}},
	{tree: "mcpkit",
		ours: []string{"internal/lazyregexp", "internal/revision", "internal/statefile", "internal/truncate", "internal/visible"},
		others: []string{
			sdk, sys, "github.com/go-jose/go-jose/v4", "github.com/google/uuid", "golang.org/x/net/publicsuffix", "golang.org/x/oauth2", "golang.org/x/sync/",
		}},
	{tree: "mcpkit/mcpjson", ours: []string{"internal/lazyregexp", "internal/nearest", "internal/truncate", "mcpkit/internal/redact"}, others: []string{"github.com/pelletier/go-toml/v2", "github.com/tailscale/hujson"}},
	{tree: "mcpkit/outbound"},

	// The gateway.
	{tree: "internal/gateway",
		ours:   []string{"internal/logkey", "internal/revision", "internal/statefile", "internal/truncate", "internal/visible", "mcpkit", "mcpkit/outbound"},
		others: []string{sdk, "github.com/yosida95/uritemplate/v3", "golang.org/x/time/rate"}},

	// Web search.
	{tree: "internal/perplexity",
		ours:   []string{"internal/lazyregexp", "internal/logkey", "internal/nearest", "internal/plainjson", "internal/truncate", "internal/visible", "mcpkit/outbound"},
		others: []string{sdk, "github.com/google/jsonschema-go/", "github.com/hashicorp/golang-lru/v2", "golang.org/x/time/"}},

	// Code mode.
	{tree: "internal/codemode",
		ours:   []string{"internal/fairlru", "internal/gateway", "internal/gateway/pin", "internal/guest/protocol", "internal/lazyregexp", "internal/logkey", "internal/loglimit", "internal/nearest", "internal/plainjson", "internal/plural", "internal/statefile", "internal/truncate", "internal/visible", "mcpkit", "mcpkit/outbound"},
		others: []string{sdk, "github.com/google/jsonschema-go/", "github.com/hashicorp/golang-lru/v2", "golang.org/x/time/"}},

	// Small packages for all of the above.
	{tree: "internal/erofs"},
	{tree: "internal/erofs/erofstest", ours: []string{"internal/erofs"}},
	{tree: "internal/filewatch"},
	{tree: "internal/crc32c"},
	{tree: "internal/gctune"},
	{tree: "internal/logkey"},
	{tree: "internal/loglimit", others: []string{"github.com/hashicorp/golang-lru/v2", "golang.org/x/time/rate"}},
	{tree: "internal/nearest"},
	{tree: "internal/owned", others: []string{sys}},
	{tree: "internal/plainjson"},
	{tree: "internal/plural"},
	{tree: "internal/regular"},
	{tree: "internal/posture"},
	{tree: "internal/revision", others: []string{sdk}},
	{tree: "internal/statefile", ours: []string{"internal/owned", "internal/syncfile"}, others: []string{"github.com/gofrs/flock"}},
	{tree: "internal/syncfile"},
	{tree: "internal/untar"},
	{tree: "internal/fairlru", others: []string{"github.com/hashicorp/golang-lru/v2"}},
	{tree: "internal/lazyregexp"},
	{tree: "internal/truncate"},
	{tree: "internal/visible"},

	// Tests, and programs run by hand.
	{tree: "internal/archtest"},
	{tree: "internal/chaos"},
	{tree: "internal/polltest"},
	{tree: "internal/proctest", others: []string{sys}},
	{tree: "internal/logintest", others: []string{sdk}},
	{tree: "packaging"},
	{tree: "internal/retrylist"},
	{tree: "scripts", ours: []string{"internal/retrylist"}},
	{tree: "bench", ours: []string{"mcpkit", "mcpkit/mcpjson"}, others: []string{sdk, sys}},
	{tree: "conformance",
		ours:   []string{"internal/box", "internal/logintest", "internal/retrylist", "internal/server", "internal/server/tasks", "internal/server/tools", "internal/truncate", "mcpkit/"},
		others: []string{sdk, "github.com/gofrs/flock"}},
	{tree: "e2e"},
	{tree: "e2e/soak", others: []string{sdk}},
	{tree: "examples/demo", others: []string{sdk}},
}

// reach lists packages that a package must not import, not even through others.
var reach = []struct {
	pkg   string
	never []string
	why   string
}{
	{"cmd/glovebox", testOnly, "the shipped program contains no test code"},
	{"cmd/glovebox-guest", append([]string{"net/http", "crypto/tls", sdk, gvisor, module + "/engine"}, testOnly...), "the agent is small and runs beside hostile code"},
	{"cmd/glovebox-pod", append([]string{"net/http", "crypto/tls", sdk, gvisor, module + "/engine"}, testOnly...), "the helper is small and runs beside hostile code"},
	{"engine", []string{"net", "golang.org/", "github.com/"}, "other programs import it"},
	{"internal/guest/protocol", []string{"net", "golang.org/", "github.com/"}, "both ends link it"},
	{"internal/guest/client", []string{module + "/engine", "net/http"}, "it works over any stream"},
	{"internal/egress", []string{module + "/internal/box", module + "/internal/server", module + "/internal/guest/client", module + "/engine", gvisor, sdk}, "the gate knows connections, not boxes"},
	{"internal/box", []string{module + "/internal/engine", gvisor, sdk}, "the caller chooses the engine"},
	{"internal/server/tools", []string{module + "/internal/engine", gvisor}, "tools know boxes, not engines"},
	{"internal/engine/gvisor", []string{module + "/internal/box/machine", module + "/internal/guest", sdk}, "engines know nothing of the layers above"},
	{"engine/enginetest", []string{module + "/internal/engine", gvisor}, "the suite knows no engine"},
	{"internal/perplexity", []string{module + "/internal/box", module + "/internal/server", module + "/engine", gvisor}, "it works without boxes"},
	{"mcpkit/outbound", []string{module + "/internal", "golang.org/", "github.com/"}, "it stands alone"},
	{"mcpkit/mcpjson", []string{module + "/internal/statefile", module + "/engine", "net/http", "os/exec"}, "it reads definitions and acts on none"},
	{"mcpkit", []string{module + "/internal/box", module + "/internal/server", module + "/engine", gvisor}, "it is a library of its own"},
}

// testOnly lists packages that only tests link.
var testOnly = []string{
	"testing", module + "/internal/engine/process", module + "/engine/enginetest",
	module + "/internal/erofs/erofstest", module + "/internal/guest/embed/embedtest", module + "/internal/logintest", module + "/internal/server/tools/toolstest",
	module + "/internal/egress/egresstest", module + "/internal/engine/kube/kubesim", module + "/internal/gateway/gatewaytest", module + "/internal/perplexity/perplexitytest",
}

func TestImports_FollowRules(t *testing.T) {
	used := make(map[string]bool) // permissions, as tree + " " + permission
	seen := make(map[string]bool) // trees with a package
	for _, p := range ourPackages(t) {
		r, ok := ruleOf(p.rel())
		if !ok {
			t.Errorf("%s has no rule in imports_test.go: add one", p.rel())
			continue
		}
		seen[r.tree] = true
		for _, imp := range p.Imports {
			permission, ok := r.allows(imp)
			if !ok {
				t.Errorf("%s imports %s, which the rule of %s does not allow", p.rel(), strings.TrimPrefix(imp, module+"/"), r.tree)
			}
			used[r.tree+" "+permission] = true
		}
	}
	for i, r := range rules {
		if slices.ContainsFunc(rules[:i], func(o rule) bool { return o.tree == r.tree }) {
			t.Errorf("%s has two rules", r.tree)
		}
		if !seen[r.tree] {
			t.Errorf("the rule of %s applies to no package: delete it", r.tree)
		}
		for _, permission := range slices.Concat(r.ours, r.others) {
			if !used[r.tree+" "+permission] {
				t.Errorf("the rule of %s allows %s, which no package of the tree imports: delete it", r.tree, permission)
			}
		}
	}
}

// ruleOf returns the rule with the longest tree that has the package.
func ruleOf(pkg string) (best rule, ok bool) {
	for _, r := range rules {
		if below(pkg, r.tree) && (!ok || len(r.tree) > len(best.tree)) {
			best, ok = r, true
		}
	}
	return best, ok
}

// allows returns the permission that lets packages of the tree import imp; it is
// empty for the standard library and the tree itself.
func (r rule) allows(imp string) (permission string, ok bool) {
	list, match := r.others, below
	if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
		if below(ours, r.tree) {
			return "", true
		}
		imp, list = ours, r.ours
		match = func(imp, permission string) bool {
			return imp == permission || strings.HasSuffix(permission, "/") && below(imp, permission)
		}
	} else if standard(imp) {
		return "", !slices.ContainsFunc(r.never, func(p string) bool { return below(imp, p) })
	}
	i := slices.IndexFunc(list, func(p string) bool { return match(imp, p) })
	if i < 0 {
		return "", false
	}
	return list[i], true
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

func TestImports_NotReached(t *testing.T) {
	graph := make(map[string][]string)
	for _, p := range allPackages(t) {
		graph[p.ImportPath] = p.Imports
	}
	for _, r := range reach {
		start := module + "/" + r.pkg
		if _, ok := graph[start]; !ok {
			t.Errorf("%s is not a package: delete its line", r.pkg)
		}
		for _, never := range r.never {
			if ours, ok := strings.CutPrefix(never, module+"/"); ok && !slices.ContainsFunc(ourPackages(t), func(p *pkg) bool { return below(p.rel(), ours) }) {
				t.Errorf("%s must not import %s, which does not exist: delete it", r.pkg, ours)
			}
		}
		from := map[string]string{start: ""}
		for todo := []string{start}; len(todo) > 0; todo = todo[1:] {
			for _, imp := range graph[todo[0]] {
				if _, seen := from[imp]; seen {
					continue
				}
				from[imp] = todo[0]
				todo = append(todo, imp)
				if !below(imp, start) && slices.ContainsFunc(r.never, func(p string) bool { return reached(imp, p) }) {
					t.Errorf("%s imports %s: %s\n\t%s", r.pkg, imp, r.why, path(from, imp))
				}
			}
		}
	}
}

// reached reports whether imp is a forbidden package. A prefix in the standard
// library, such as "net", means that package only.
func reached(imp, prefix string) bool {
	if standard(prefix) {
		return imp == prefix
	}
	return below(imp, prefix)
}

// path returns the chain of imports that leads to imp.
func path(from map[string]string, imp string) string {
	var steps []string
	for ; imp != ""; imp = from[imp] {
		steps = append(steps, strings.TrimPrefix(imp, module+"/"))
	}
	slices.Reverse(steps)
	return strings.Join(steps, " > ")
}
