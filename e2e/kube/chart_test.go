package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// release is the chart, installed on the cluster: servers in one namespace, which enforces
// the profile restricted, and boxes in another one.
type release struct {
	*program
	token   string
	metrics string   // a token of the scope metrics
	tool    string   // helm
	values  []string // flags of helm
}

const (
	serversIn = "chart"
	boxesIn   = "chart-boxes"
	// chartWait bounds what a cluster of two busy processors does in seconds.
	chartWait = 4 * time.Minute
)

// install installs the chart with one server, and removes it at the end.
func install(t *testing.T) *release {
	t.Helper()
	r := &release{program: onCluster(t)}
	chart, image := os.Getenv("GLOVEBOX_TEST_CHART"), os.Getenv("GLOVEBOX_TEST_SERVER_IMAGE")
	r.tool = os.Getenv("GLOVEBOX_TEST_HELM")
	if r.tool == "" || chart == "" || image == "" {
		t.Skip("there is no Helm, or no image of the server; run make test-kube")
	}
	for name, profile := range map[string]string{serversIn: "restricted", boxesIn: "baseline"} {
		r.control(t, "create", "namespace", name)
		r.control(t, "label", "namespace", name, "pod-security.kubernetes.io/enforce="+profile)
		t.Cleanup(func() { r.control(t, "delete", "namespace", name, "--wait=false") })
	}
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	for token, flags := range map[*string][]string{&r.token: {"--name", "alice"}, &r.metrics: {"--name", "prometheus", "--scope", "metrics"}} {
		out, err := exec.Command(r.path, append([]string{"token", "new", "--tokens-file", tokens}, flags...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		*token = strings.TrimSpace(string(out))
	}
	r.control(t, "create", "secret", "generic", "glovebox-tokens", "-n", serversIn, "--from-file="+tokens)

	name, digest, _ := strings.Cut(image, "@")
	r.values = []string{chart, "--namespace", serversIn,
		"--set", "image.repository=" + name, "--set", "image.digest=" + digest, "--set", "image.pullPolicy=Never", "--set", "replicas=1",
		"--set", "boxes.image=" + os.Getenv("GLOVEBOX_TEST_BOX_IMAGE"), "--set", "boxes.helperImage=" + os.Getenv("GLOVEBOX_TEST_HELPER_IMAGE"),
		"--set", "boxes.namespace=" + boxesIn, "--set", "tokens.existingSecret=glovebox-tokens", "--set", "tls.behindProxy=true",
		// The node's two processors are for boxes.
		"--set", "resources.requests.cpu=0", "--set", "shutdown.drainSeconds=60", "--set-string", "config.GLOVEBOX_LOG_LEVEL=debug"}
	t.Cleanup(func() { r.control(t, "delete", "clusterrole,clusterrolebinding", "glovebox", "--ignore-not-found") })
	if notes := r.helm(t, append([]string{"install", "glovebox"}, r.values...)...); !strings.Contains(notes, "rollout status deployment/glovebox") {
		t.Errorf("helm prints\n%s", notes)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.control(t, "describe", "pods", "-n", serversIn))
			t.Log(r.control(t, "logs", "-n", serversIn, "-l", "app.kubernetes.io/component=server", "--tail=60", "--prefix", "--ignore-errors"))
			t.Log(r.control(t, "get", "pods", "-n", boxesIn, "-o", "wide"))
		}
	})
	r.rolledOut(t)
	return r
}

// helm runs Helm, and returns what it prints.
func (r *release) helm(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(r.tool, args...)
	cmd.Env = append(slices.Clone(r.env), "HOME="+t.TempDir())
	cmd.Dir = "/" // the test's own directory has no path in the mount namespace of the cluster
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (r *release) rolledOut(t *testing.T) {
	t.Helper()
	if out := r.control(t, "rollout", "status", "-n", serversIn, "deployment/glovebox", "--timeout="+chartWait.String()); t.Failed() {
		t.Fatalf("the servers are not ready: %s", out)
	}
}

// server is a Pod of a server.
type server struct{ name, address string }

// servers returns the Pods that do not end.
func (r *release) servers(t *testing.T) (list []server) {
	t.Helper()
	text := r.control(t, "get", "pods", "-n", serversIn, "-l", "app.kubernetes.io/component=server", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.metadata.deletionTimestamp}{"\n"}{end}`)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 {
			list = append(list, server{f[0], f[1]})
		}
	}
	return list
}

// boxes returns the Pods of boxes, also of those that end.
func (r *release) boxes(t *testing.T) []string {
	t.Helper()
	return strings.Fields(r.control(t, "get", "pods", "-n", boxesIn, "-o", "name"))
}

// bearer sends a token with every request, each on a connection of its own.
type bearer struct {
	*http.Transport
	token string
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(req)
}

// connect opens an MCP session with the server at an address.
func (r *release) connect(ctx context.Context, t *testing.T, address string) *mcp.ClientSession {
	t.Helper()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: "http://" + address + "/mcp", HTTPClient: &http.Client{Transport: &bearer{&http.Transport{DisableKeepAlives: true}, r.token}}, MaxRetries: -1,
	}, nil)
	if err != nil {
		t.Fatalf("connect to %s: %v", address, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestChart_ServesFromInsideTheCluster installs the chart, uses boxes through the Service,
// and ends a server while code runs in a box of it.
func TestChart_ServesFromInsideTheCluster(t *testing.T) {
	r := install(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()

	// The server refuses a request without a token.
	service := r.control(t, "get", "service", "-n", serversIn, "glovebox", "-o", "jsonpath={.spec.clusterIP}") + ":8775"
	res, err := http.Post("http://"+service+"/mcp", "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token, the Service answers %s", res.Status)
	}

	// The doctor in the Pod finds nothing wrong with the service account.
	if text := r.control(t, "exec", "-n", serversIn, "deployment/glovebox", "--", "glovebox", "doctor"); !strings.Contains(text, "service account") {
		t.Errorf("the doctor says\n%s", text)
	}

	r.lacksRight(t)

	both := r.scalesUp(t)

	// Through the Service: each request is a connection of its own, and all of them reach
	// the server that has the MCP session and the box.
	c := r.connect(ctx, t, service)
	first := call(ctx, t, c, "execute_code", map[string]any{"code": "x = 6\nx * 7"})
	if !first.Success || strings.TrimSpace(first.Stdout) != "42" || first.SessionID == "" {
		t.Fatalf("the first call answers %+v", first)
	}
	for range 4 {
		if again := call(ctx, t, c, "execute_code", map[string]any{"code": "x", "session_id": first.SessionID}); strings.TrimSpace(again.Stdout) != "6" {
			t.Errorf("the variable is gone: %+v", again)
		}
	}
	other := r.connect(ctx, t, service)
	if again := call(ctx, t, other, "execute_code", map[string]any{"code": "x", "session_id": first.SessionID}); strings.TrimSpace(again.Stdout) != "6" {
		t.Errorf("another MCP session from the same address reaches another server: %+v", again)
	}
	if list := r.boxes(t); len(list) != 1 {
		t.Errorf("there is one session, and the Pods %q", list)
	}
	analyze(ctx, t, c, first.SessionID)
	call(ctx, t, c, "stop_session", map[string]any{"session_id": first.SessionID})

	r.scraped(t, service)
	r.forwarded(ctx, t)
	r.policies(t)
	r.endsServer(ctx, t, both[0], both[1])

	// Servers that end as the notes of the chart say remove the boxes that clients left behind.
	call(ctx, t, r.connect(ctx, t, service), "execute_code", map[string]any{"code": "1"})
	r.control(t, "scale", "-n", serversIn, "deployment/glovebox", "--replicas=0")
	r.control(t, "wait", "pod", "-n", serversIn, "--for=delete", "--selector=app.kubernetes.io/instance=glovebox", "--timeout="+chartWait.String())
	if left := r.boxes(t); len(left) != 0 {
		t.Errorf("the servers have left %q", left)
	}
	if leases := r.control(t, "get", "leases", "-n", boxesIn, "-o", "name"); leases != "" {
		t.Errorf("the servers have left %s", leases)
	}
	r.helm(t, "uninstall", "glovebox", "--namespace", serversIn, "--wait", "--timeout", chartWait.String())
	if left := r.control(t, "get", "deployments,services,networkpolicies,roles,rolebindings,hpa,pdb", "-A", "-l", "app.kubernetes.io/instance=glovebox", "-o", "name"); left != "" {
		t.Errorf("helm has left %s", left)
	}
}

// scalesUp upgrades the release to at least two servers, which the autoscaler of the
// cluster starts while the first one serves, and returns both.
func (r *release) scalesUp(t *testing.T) []server {
	t.Helper()
	first := r.servers(t)
	r.helm(t, append([]string{"upgrade", "glovebox",
		"--set", "autoscaling.enabled=true", "--set", "autoscaling.cpuPercent=0", "--set", "autoscaling.calls.average=8"}, r.values...)...)
	polltest.Until(t, chartWait, "the autoscaler has asked for a second server", func() bool {
		return r.control(t, "get", "deployment", "-n", serversIn, "glovebox", "-o", "jsonpath={.spec.replicas}") == "2"
	})
	r.rolledOut(t)
	both := r.servers(t)
	if len(first) != 1 || len(both) != 2 || !slices.Contains(both, first[0]) {
		t.Fatalf("there were the servers %q, and are %q", first, both)
	}
	polltest.Until(t, chartWait, "the disruption budget allows one eviction", func() bool {
		return r.control(t, "get", "pdb", "-n", serversIn, "glovebox", "-o", "jsonpath={.status.disruptionsAllowed}") == "1"
	})
	return both
}

// evict asks to end a Pod, as kubectl drain does, which a disruption budget may refuse.
func (r *release) evict(t *testing.T, pod string) (refused bool) {
	t.Helper()
	cmd := exec.Command(r.kubectl, "create", "--raw", "/api/v1/namespaces/"+serversIn+"/pods/"+pod+"/eviction", "-f", "-")
	cmd.Env = r.env
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q, "namespace": %q}}`, pod, serversIn))
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "disruption budget") {
		t.Fatalf("evict %s: %v\n%s", pod, err, out)
	}
	return err != nil
}

// scraped reads the metrics as the ServiceMonitor of the chart does.
func (r *release) scraped(t *testing.T, service string) {
	t.Helper()
	for token, want := range map[string]int{r.metrics: http.StatusOK, r.token: http.StatusForbidden} {
		res, err := (&http.Client{Transport: &bearer{&http.Transport{DisableKeepAlives: true}, token}}).Get("http://" + service + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
		res.Body.Close()
		if err != nil || res.StatusCode != want || want == http.StatusOK && !strings.Contains(string(text), "\nglovebox_box_calls{") {
			t.Errorf("the metrics answer %s, %v", res.Status, err)
		}
	}
}

// lacksRight takes a right of the chart's Role away: the doctor in the server's Pod names it.
func (r *release) lacksRight(t *testing.T) {
	t.Helper()
	var rules []map[string]any
	text := r.control(t, "get", "role", "-n", boxesIn, "glovebox", "-o", "jsonpath={.rules}")
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	i := slices.IndexFunc(rules, func(rule map[string]any) bool { return slices.Contains(rule["resources"].([]any), any("pods/exec")) })
	if i < 0 {
		t.Fatalf("no rule is about pods/exec in %s", text)
	}
	r.control(t, "patch", "role", "-n", boxesIn, "glovebox", "--type=json", "-p", fmt.Sprintf(`[{"op": "remove", "path": "/rules/%d"}]`, i))
	defer r.control(t, "patch", "role", "-n", boxesIn, "glovebox", "--type=merge", "-p", `{"rules": `+text+`}`)
	polltest.Until(t, time.Minute, "the doctor misses the right", func() bool {
		cmd := exec.Command(r.kubectl, "exec", "-n", serversIn, "deployment/glovebox", "--", "glovebox", "doctor")
		cmd.Env = r.env
		out, err := cmd.CombinedOutput()
		return err != nil && strings.Contains(strings.Join(strings.Fields(string(out)), " "), "the credentials may not create pods/exec, get pods/exec")
	})
}

// forwarded uses the server as the notes of the chart say.
func (r *release) forwarded(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.kubectl, "port-forward", "-n", serversIn, "service/glovebox", ":8775")
	cmd.Env = r.env
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	b := make([]byte, 200)
	n, err := out.Read(b)
	m := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(b[:n]))
	if err != nil || m == "" {
		t.Fatalf("port-forward says %q, %v", b[:n], err)
	}
	c := r.connect(ctx, t, m)
	tools, err := c.ListTools(ctx, nil)
	if err != nil || !slices.ContainsFunc(tools.Tools, func(t *mcp.Tool) bool { return t.Name == "execute_code" }) {
		t.Errorf("through port-forward, the tools are %v, %v", tools, err)
	}
	c.Close()
}

// policies compares the policy for boxes of the chart with that of the server.
func (r *release) policies(t *testing.T) {
	t.Helper()
	var specs [2]any
	for i, name := range []string{"glovebox-boxes", "glovebox-no-traffic"} {
		text := r.control(t, "get", "networkpolicy", "-n", boxesIn, name, "-o", "jsonpath={.spec}")
		if err := json.Unmarshal([]byte(text), &specs[i]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !reflect.DeepEqual(specs[0], specs[1]) {
		t.Errorf("the server's policy is %v, and the chart's %v", specs[0], specs[1])
	}
}

// endsServer evicts the Pod of a server while it works. Its call finishes, and the boxes
// of the other server go on; its own boxes end, and their sessions are new elsewhere.
func (r *release) endsServer(ctx context.Context, t *testing.T, leaving, staying server) {
	t.Helper()
	a, b := r.connect(ctx, t, leaving.address+":8775"), r.connect(ctx, t, staying.address+":8775")
	gone := call(ctx, t, a, "execute_code", map[string]any{"code": "y = 1"}).SessionID
	kept := call(ctx, t, b, "execute_code", map[string]any{"code": "z = 2"}).SessionID

	// A session of one server is none of the other one.
	lists := call(ctx, t, b, "execute_code", map[string]any{"code": "z", "session_id": kept})
	if strings.TrimSpace(lists.Stdout) != "2" {
		t.Fatalf("the session of the other server answers %+v", lists)
	}
	type result struct {
		res *mcp.CallToolResult
		err error
	}
	done := make(chan result, 1)
	go func() {
		res, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{
			"session_id": gone, "code": "import os, time\nopen('begun', 'w').close()\ntime.sleep(20)\nprint('finished', y)",
		}})
		done <- result{res, err}
	}()
	polltest.Until(t, time.Minute, "the code runs", func() bool {
		res, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "download_file", Arguments: map[string]any{"session_id": gone, "path": "begun"}})
		return err == nil && !res.IsError
	})
	if r.evict(t, leaving.name) {
		t.Fatal("the disruption budget refuses the first eviction")
	}
	if !r.evict(t, staying.name) {
		t.Fatal("the disruption budget lets both servers be evicted at once")
	}
	if z := call(ctx, t, b, "execute_code", map[string]any{"code": "z", "session_id": kept}); strings.TrimSpace(z.Stdout) != "2" {
		t.Errorf("while a server ends, a session of the other one answers %+v", z)
	}
	select {
	case r := <-done:
		text, _ := json.Marshal(r.res)
		if r.err != nil || r.res.IsError || !strings.Contains(string(text), "finished 1") {
			t.Errorf("the call of the ending server answers %s, %v", text, r.err)
		}
	case <-ctx.Done():
		t.Fatal("the call of the ending server does not answer")
	}
	polltest.Until(t, chartWait, "the box of the server that ended has gone, and the other one is there", func() bool { return len(r.boxes(t)) == 1 })
	if z := call(ctx, t, b, "execute_code", map[string]any{"code": "z", "session_id": kept}); strings.TrimSpace(z.Stdout) != "2" {
		t.Errorf("after a server ended, a session of the other one answers %+v", z)
	}
	fresh := call(ctx, t, b, "execute_code", map[string]any{"code": "'y' in globals()", "session_id": gone})
	if strings.TrimSpace(fresh.Stdout) != "False" || !slices.ContainsFunc(fresh.Notes, func(n string) bool { return strings.Contains(n, "There was no session") }) {
		t.Errorf("a session of the server that ended answers %+v elsewhere", fresh)
	}
	for _, id := range []string{gone, kept} {
		call(ctx, t, b, "stop_session", map[string]any{"session_id": id})
	}
	r.rolledOut(t)
	if now := r.servers(t); len(now) != 2 || !slices.ContainsFunc(now, func(s server) bool { return s.name == staying.name }) {
		t.Errorf("there are the servers %q", now)
	}
}
