package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// failing returns an engine of a cluster that answers requests with h, and its log.
func failing(t *testing.T, h http.HandlerFunc) (*Engine, *bytes.Buffer) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	server, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	e := testEngine()
	e.namespace = "boxes"
	e.api = kubeapi.New(&kubeconfig.Cluster{Server: server, Name: "test", Auth: &kubeconfig.Auth{}, TLS: &tls.Config{RootCAs: roots}})
	t.Cleanup(e.api.Close)
	log := new(bytes.Buffer)
	e.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return e, log
}

// held returns a guest of an engine without a cluster, whose Pod does not end.
func held() (*Engine, *guest) {
	e := testEngine()
	e.set, e.byID = guests.NewSet[*guest](), make(map[string]*guest)
	pod := new(kubeapi.Pod)
	pod.Metadata.Name, pod.Metadata.UID = "box-b", "u"
	return e, e.adopt("b", pod, func() {})
}

// TestCreate_WatchIsFasterThanTheAnswer: nothing tells of the Pod again.
func TestCreate_WatchIsFasterThanTheAnswer(t *testing.T) {
	var e *Engine
	e, _ = failing(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "{}", http.StatusNotFound) // it is gone when it is deleted
			return
		}
		pod := new(kubeapi.Pod)
		pod.Metadata.Name, pod.Metadata.UID = "box-b", "u"
		running := *pod
		running.Status.Containers = []kubeapi.ContainerStatus{{Name: containerName, State: kubeapi.ContainerState{Running: new(struct{})}}}
		e.tell(kubeapi.Event{Pod: &running})
		_ = json.NewEncoder(w).Encode(pod)
	})
	e.set, e.byID = guests.NewSet[*guest](), make(map[string]*guest)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := e.boot(ctx, "b", newPod("b", "glovebox-test", "gvisor"), func() {})
	if err != nil {
		t.Fatalf("the Pod runs, and its creation ends with %v", err)
	}
	if len(e.early) != 0 {
		t.Errorf("events are kept after the creation: %v", e.early)
	}
	g.terminate()
	e.workers.Wait()
}

func TestOpen_NamesTheConfigurationWithoutHelper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	config := `{clusters: [{name: c, cluster: {server: "https://c.example"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{Cluster: kubeconfig.Options{Path: path}})
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "Config.Helper") {
		t.Errorf("got %v, want ErrInvalid about Config.Helper", err)
	}
}

func TestOpen_WithoutNetworkPolicy(t *testing.T) {
	e, log := failing(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "networkpolicies"):
			w.WriteHeader(http.StatusForbidden)
		case r.Method == http.MethodPost: // the Lease: the engine does not open
			w.WriteHeader(http.StatusInternalServerError)
		default:
			io.WriteString(w, "{}")
		}
	})
	if err := e.open(t.Context(), Config{}); kubeapi.Code(err) != http.StatusInternalServerError {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"level=WARN", "no network policy denies the Pods of boxes all traffic", logkey.Fix + "=", "docs/kubernetes.md"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

func TestOpen_RefusesAnotherNetworkPolicy(t *testing.T) {
	e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "networkpolicies") {
			io.WriteString(w, `{"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"],"egress":[{}]}}`)
			return
		}
		io.WriteString(w, "{}")
	})
	err := e.open(t.Context(), Config{})
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "kubectl delete networkpolicy glovebox-boxes -n boxes") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
}

func TestPod_MissingClaim(t *testing.T) {
	e, _ := failing(t, http.NotFound)
	s := specOf(image("box"), image("box"))
	s.Mounts = []engine.Mount{{Volume: "v", Guest: "/v"}}
	_, err := e.pod(t.Context(), "b", s)
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), `namespace boxes has no volume claim "v"; create it, or name one of: kubectl get pvc`) {
		t.Errorf("got %v", err)
	}
}

// TestGuestAbandon_PodStays checks that a creation does not wait for ever for a Pod that
// does not end.
func TestGuestAbandon_PodStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &guest{e: &Engine{log: slog.New(slog.DiscardHandler)}, end: guests.NewEnd(), terminating: make(chan struct{})}
		start := time.Now()
		g.abandon()
		if waited := time.Since(start); waited != closeWait || !guests.Closed(g.terminating) {
			t.Errorf("waited %v, terminating %t; want %v and true", waited, guests.Closed(g.terminating), closeWait)
		}
	})
}

func TestAdopt_EngineWaitsForGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := held()
		ended := make(chan struct{})
		go func() {
			e.workers.Wait()
			close(ended)
		}()
		synctest.Wait()
		if guests.Closed(ended) {
			t.Error("the engine does not wait for its guest")
		}
		if err := g.detach(); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

func TestSweep_LogsFailures(t *testing.T) {
	var deleted []string
	broken := false
	e, log := failing(t, func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		switch {
		case r.Method == http.MethodDelete:
			deleted = append(deleted, name)
			w.WriteHeader(map[string]int{"one": 500, "two": 404, "three": 200}[name])
			io.WriteString(w, "{}")
		case name == "pods" && broken:
			w.WriteHeader(500)
		case name == "pods":
			io.WriteString(w, `{"items":[`)
			for i, name := range []string{"one", "two", "three"} {
				fmt.Fprintf(w, `%s{"metadata":{"name":%q,"uid":"u","labels":{%q:"gone"}}}`, strings.Repeat(",", min(i, 1)), name, holderLabel)
			}
			io.WriteString(w, `]}`)
		default: // the Lease of the holder
			w.WriteHeader(http.StatusNotFound)
		}
	})
	holders, start := make(map[string]watched), time.Now()
	e.sweep(t.Context(), holders, time.Hour, start)
	e.sweep(t.Context(), holders, time.Hour, start.Add(time.Hour))
	if want := []string{"one", "two", "three"}; !slices.Equal(deleted, want) {
		t.Errorf("deleted %q, want %q", deleted, want)
	}
	broken = true
	e.sweep(t.Context(), holders, time.Hour, start.Add(time.Hour))
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], logkey.Guest+"=one") || !strings.Contains(lines[0], logkey.Error+"=") ||
		!strings.Contains(lines[1], "level=INFO") || !strings.Contains(lines[1], logkey.Guest+"=three") ||
		!strings.Contains(lines[2], "level=DEBUG") || !strings.Contains(lines[2], logkey.Error+"=") {
		t.Errorf("logged:\n%s", log)
	}
}

// TestWatch_EndsAtOnce: a cluster, or a proxy before it, that ends each watch at once does not
// keep the server busy.
func TestWatch_EndsAtOnce(t *testing.T) {
	for name, end := range map[string]string{
		"without an event": "",
		"expired":          `{"type":"ERROR","object":{"kind":"Status","code":410}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var watches atomic.Int32
			e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("watch") == "" {
					io.WriteString(w, "{}")
					return
				}
				watches.Add(1)
				io.WriteString(w, end)
			})
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), minWatch/2)
			defer cancel()
			e.watch(ctx, "1")
			if n, most := watches.Load(), int32(1+time.Since(begun)/minWatch); n > most {
				t.Errorf("%d watches in %v, more than %d", n, time.Since(begun), most)
			}
		})
	}
}

// TestDial_AnotherPodOfThatName: the engine sends nothing to a Pod that took the name of a guest's.
func TestDial_AnotherPodOfThatName(t *testing.T) {
	told := make(chan int, 1)
	e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/exec") {
			io.WriteString(w, `{"metadata":{"name":"box-b","uid":"another"}}`)
			return
		}
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}})
		if err != nil {
			return
		}
		defer ws.CloseNow()
		_, b, _ := ws.Read(r.Context()) // fails once the client has closed the connection
		told <- len(b)
	})
	e.set, e.byID = guests.NewSet[*guest](), make(map[string]*guest)
	pod := new(kubeapi.Pod)
	pod.Metadata.Name, pod.Metadata.UID = "box-b", "u"
	g := e.adopt("b", pod, func() {})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := g.Dial(ctx); !errors.Is(err, engine.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	if n := <-told; n > 0 {
		t.Errorf("the other Pod got %d bytes", n)
	}
	if !guests.Closed(g.gone) {
		t.Error("the engine does not know that the Pod is gone")
		g.markGone()
	}
	e.workers.Wait()
}

// TestOfCluster_OnlyWhatAnExaminationExplains: a hint to examine the cluster leads nowhere
// with other errors.
func TestOfCluster_OnlyWhatAnExaminationExplains(t *testing.T) {
	refused, _ := failing(t, refuse(http.StatusForbidden))
	_, forbidden := refused.api.Version(t.Context())
	down, _ := failing(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, broken := down.api.Version(t.Context())
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, cancelled := down.api.Version(stopped)
	_, file := os.Open("/nonexistent/state")
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"refused":       {forbidden, true},
		"broken":        {broken, true},
		"no room":       {fmt.Errorf("x: %w", engine.ErrUnavailable), true},
		"no kubeconfig": {fmt.Errorf("x: %w", kubeconfig.ErrNone), true},
		"stopped":       {cancelled, false},
		"a file":        {file, false},
		"a setting":     {fmt.Errorf("x: %w", engine.ErrInvalid), false},
		"none":          {nil, false},
	} {
		if got := OfCluster(c.err); got != c.want {
			t.Errorf("%s: %v counts as of the cluster: %t", name, c.err, got)
		}
	}
}
