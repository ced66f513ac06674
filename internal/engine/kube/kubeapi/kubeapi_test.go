package kubeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
)

// hostile returns a client of a cluster that answers with h.
func hostile(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	server, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := s.Client().Transport.(*http.Transport).TLSClientConfig
	c := New(&kubeconfig.Cluster{Server: server, Name: "test", Auth: &kubeconfig.Auth{}, TLS: &tls.Config{RootCAs: config.RootCAs}})
	t.Cleanup(c.Close)
	return c
}

// answer returns a handler with a fixed answer.
func answer(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

func TestGetPod_BadAnswers(t *testing.T) {
	status := func(code int, reason, message string) http.HandlerFunc {
		return answer(code, fmt.Sprintf(`{"kind":"Status","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, message, code))
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		code int
		want string
	}{
		"expired credentials": {status(401, "Unauthorized", "Unauthorized"), 401, "log in again"},
		"no permission":       {status(403, "Forbidden", "pods is forbidden"), 403, "docs/kubernetes.md"},
		"quota":               {status(403, "Forbidden", "exceeded quota: boxes"), 403, "exceeded quota"},
		"not found":           {status(404, "NotFound", `pods "x" not found`), 404, "not found"},
		"escapes":             {status(500, "x", "\x1b[31m"), 500, `\x1b[31m`},
		"no status":           {answer(502, "<html>bad gateway"), 502, "bad gateway"},
		"no JSON":             {answer(200, "hello"), 0, "not what Kubernetes sends"},
		"another type":        {answer(200, `{"metadata":[]}`), 0, "not what Kubernetes sends"},
		"too large":           {answer(200, `"`+strings.Repeat("x", maxAnswer)), 0, "more than"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
		}, 302, "302"},
	} {
		_, err := hostile(t, c.h).GetPod(t.Context(), "boxes", "x")
		if err == nil || Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v with code %d, want %q with %d", name, err, Code(err), c.want, c.code)
		}
	}
}

func TestGetPod_EscapesNames(t *testing.T) {
	got := ""
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) { got = r.RequestURI; io.WriteString(w, "{}") })
	if _, err := c.GetPod(t.Context(), "a/b", "../x?y"); err != nil {
		t.Fatal(err)
	}
	if want := "/api/v1/namespaces/a%2Fb/pods/..%2Fx%3Fy"; got != want {
		t.Errorf("the path is %q, want %q", got, want)
	}
}

// TestDeletePod_ErrorOfALongName: names of Pods come from the cluster, too.
func TestDeletePod_ErrorOfALongName(t *testing.T) {
	c := hostile(t, answer(500, ""))
	err := c.DeletePod(t.Context(), "boxes", "a\x1b[31m\n"+strings.Repeat("x", 10_000), "u", 1)
	if Code(err) != 500 || len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("got %d bytes: %.100q", len(err.Error()), err)
	}
}

func TestGetPod_ClusterIsDown(t *testing.T) {
	c := hostile(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c.cluster.Server.Host = l.Addr().String()
	if _, err := c.GetPod(t.Context(), "boxes", "x"); err == nil || !strings.Contains(err.Error(), "reach the cluster test at "+l.Addr().String()) {
		t.Errorf("got %v", err)
	}
	stop := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := c.GetPod(ctx, "boxes", "x"); !errors.Is(err, stop) {
		t.Errorf("with an ended context: got %v, want its cause", err)
	}
}

func TestListPods_FollowsPages(t *testing.T) {
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("continue") == "" {
			io.WriteString(w, `{"metadata":{"continue":"next"},"items":[{"metadata":{"name":"a"}}]}`)
			return
		}
		io.WriteString(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"b"}}]}`)
	})
	names := ""
	version, err := c.ListPods(t.Context(), "boxes", "x=y", func(p *Pod) { names += p.Metadata.Name })
	if err != nil || version != "7" || names != "ab" {
		t.Errorf("got %q, version %q, %v", names, version, err)
	}
	endless := hostile(t, answer(200, `{"metadata":{"continue":"next"}}`))
	if _, err := endless.ListPods(t.Context(), "boxes", "", func(*Pod) {}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a list without end: got %v", err)
	}
}

func TestWatchPods_Events(t *testing.T) {
	pod := func(kind, version string) string {
		return `{"type":"` + kind + `","object":{"metadata":{"name":"a","resourceVersion":"` + version + `"}}}` + "\n"
	}
	for name, c := range map[string]struct {
		h       http.HandlerFunc
		seen    string
		version string
		want    string
	}{
		"changes": {answer(200, pod("ADDED", "1")+pod("MODIFIED", "2")+pod("BOOKMARK", "5")+pod("DELETED", "6")), "++-", "6", ""},
		"no JSON": {answer(200, pod("ADDED", "1")+"hello\n"), "+", "1", "not what Kubernetes sends"},
		"no Pod":  {answer(200, `{"type":"ADDED","object":[]}`+"\n"), "", "0", "not what Kubernetes sends"},
		"error":   {answer(200, `{"type":"ERROR","object":{"code":500,"message":"\u001b"}}`+"\n"), "", "0", `\x1b`},
		"expired": {answer(200, `{"type":"ERROR","object":{"code":410}}`+"\n"), "", "0", ErrExpired.Error()},
		"gone":    {answer(410, "{}"), "", "0", ErrExpired.Error()},
		"no end":  {answer(200, strings.Repeat("x", maxEvent+1)), "", "0", "token too long"},
	} {
		seen := ""
		version, err := hostile(t, c.h).WatchPods(t.Context(), "boxes", "", "0", func(e Event) {
			seen += map[bool]string{true: "-", false: "+"}[e.Deleted]
		})
		if seen != c.seen || version != c.version || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: saw %q to version %q, %v; want %q to %q, %q", name, seen, version, err, c.seen, c.version, c.want)
		}
	}
}

// speaking returns a client of a cluster that runs f for every command.
func speaking(t *testing.T, protocol string, f func(ctx context.Context, ws *websocket.Conn)) *Client {
	return hostile(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}})
		if err != nil {
			return
		}
		defer ws.CloseNow()
		f(r.Context(), ws)
		ws.Close(websocket.StatusNormalClosure, "")
	})
}

func TestExec_ReadsTheOutput(t *testing.T) {
	send := func(messages ...string) func(context.Context, *websocket.Conn) {
		return func(ctx context.Context, ws *websocket.Conn) {
			for _, m := range messages {
				ws.Write(ctx, websocket.MessageBinary, []byte(m))
			}
		}
	}
	for name, c := range map[string]struct {
		messages []string
		out      string
		want     string
	}{
		"output":      {[]string{"\x01one ", "", "\x01", "\x01two"}, "one two", ""},
		"success":     {[]string{"\x01x", `` + "\x03" + `{"status":"Success"}`}, "x", ""},
		"failure":     {[]string{"\x02no such\x1b", "\x03" + `{"status":"Failure","message":"exit code 1"}`}, "", `no such\x1b`},
		"bad status":  {[]string{"\x03hello"}, "", `has ended with "hello"`},
		"other":       {[]string{"\x09x", "\x01y"}, "y", ""},
		"much stderr": {[]string{"\x02" + strings.Repeat("e", 1<<20), "\x01y"}, "y", ""},
		"too large":   {[]string{"\x01" + strings.Repeat("x", maxMessage)}, strings.Repeat("x", maxMessage-1), "broke"},
	} {
		command, err := speaking(t, protocolV5, send(c.messages...)).Exec(t.Context(), "boxes", "x", "box", "true")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out, err := io.ReadAll(command)
		if name != "too large" && string(out) != c.out || (err == nil) != (c.want == "") || err != nil && name != "too large" && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %d bytes, %v; want %d, %q", name, len(out), err, len(c.out), c.want)
		}
		command.Close()
		command.Close()
	}
}

func TestExec_EchoesAndCloses(t *testing.T) {
	c := speaking(t, protocolV4, func(ctx context.Context, ws *websocket.Conn) {
		for {
			_, b, err := ws.Read(ctx)
			if err != nil || len(b) == 0 {
				return
			}
			b[0] = channelStdout
			ws.Write(ctx, websocket.MessageBinary, b)
		}
	})
	// The stream outlives the context of its start.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	command, err := c.Exec(ctx, "boxes", "x", "box", "cat")
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("hello", 100_000)
	go io.WriteString(command, want)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(command, got); err != nil || string(got) != want {
		t.Errorf("the echo differs, %v", err)
	}
	read := make(chan error, 1)
	go func() { _, err := command.Read(got); read <- err }()
	command.Close()
	if err := <-read; err == nil {
		t.Error("a read of a closed command has succeeded")
	}
}

func TestExec_Refused(t *testing.T) {
	c := hostile(t, answer(404, `{"kind":"Status","status":"Failure","message":"no such pod","code":404}`))
	if _, err := c.Exec(t.Context(), "boxes", "x", "box", "true"); Code(err) != 404 || !strings.Contains(err.Error(), "no such pod") {
		t.Errorf("got %v", err)
	}
	old := speaking(t, "channel.k8s.io", func(context.Context, *websocket.Conn) {})
	if _, err := old.Exec(t.Context(), "boxes", "x", "box", "true"); err == nil || !strings.Contains(err.Error(), "1.29 or later") {
		t.Errorf("an old cluster: got %v", err)
	}
	stop := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	silent := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		cancel(stop)
		<-r.Context().Done()
	})
	if _, err := silent.Exec(ctx, "boxes", "x", "box", "true"); !errors.Is(err, stop) {
		t.Errorf("a cluster that does not answer: got %v, want the cause", err)
	}
}

// TestEnsureNetworkPolicy_ChecksTheOneThatIsThere: a policy of that name that somebody else
// has made may allow anything.
func TestEnsureNetworkPolicy_ChecksTheOneThatIsThere(t *testing.T) {
	want := func() *NetworkPolicy {
		return &NetworkPolicy{
			Metadata: Meta{Name: "p"},
			Spec:     NetworkPolicySpec{PodSelector: Selector{MatchLabels: StringMap{"a": "1", "b": "2"}}, PolicyTypes: []string{"Ingress", "Egress"}},
		}
	}
	for name, c := range map[string]struct{ spec, want string }{
		"the same":        {`{"podSelector":{"matchLabels":{"a":"1","b":"2"}},"policyTypes":["Egress","Ingress"]}`, ""},
		"more Pods":       {`{"podSelector":{},"policyTypes":["Ingress","Egress"],"egress":[]}`, ""},
		"other Pods":      {`{"podSelector":{"matchLabels":{"a":"2"}},"policyTypes":["Ingress","Egress"]}`, "select"},
		"fewer Pods":      {`{"podSelector":{"matchLabels":{"a":"1","c":"3"}},"policyTypes":["Ingress","Egress"]}`, "select"},
		"expression":      {`{"podSelector":{"matchExpressions":[{"key":"x","operator":"Exists"}]},"policyTypes":["Ingress","Egress"]}`, "select"},
		"a rule":          {`{"podSelector":{},"policyTypes":["Ingress","Egress"],"egress":[{}]}`, "rules"},
		"no egress":       {`{"podSelector":{},"policyTypes":["Ingress"]}`, "Egress"},
		"a new field":     {`{"podSelector":{},"policyTypes":["Ingress","Egress"],"allow\u001b":1}`, "not understood"},
		"nothing at all":  {`null`, "Ingress"},
		"not even a spec": {`[]`, "not understood"},
	} {
		posted := false
		err := hostile(t, func(w http.ResponseWriter, r *http.Request) {
			posted = posted || r.Method == http.MethodPost
			io.WriteString(w, `{"spec":`+c.spec+`}`)
		}).EnsureNetworkPolicy(t.Context(), "boxes", want())
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, ErrOtherPolicy) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b")) || posted {
			t.Errorf("%s: got %v, created %t; want %q", name, err, posted, c.want)
		}
	}
	gets := 0
	err := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusConflict)
		case gets == 0:
			gets++
			w.WriteHeader(http.StatusNotFound)
		default:
			io.WriteString(w, `{"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`)
		}
	}).EnsureNetworkPolicy(t.Context(), "boxes", want())
	if !errors.Is(err, ErrOtherPolicy) {
		t.Errorf("another one was faster: got %v, want that its policy is examined", err)
	}
}
