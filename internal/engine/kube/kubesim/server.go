// Package kubesim is a stand-in for the API server of a Kubernetes cluster and its nodes, for
// simulations and tests of the engine of internal/engine/kube: it serves HTTPS on loopback,
// so that the engine runs as it is.
//
// It has Pods, Leases, network policies and runtime classes of one namespace, with what the
// engine relies on: versions and conflicts, preconditions, merge patches, deletion with a
// grace period, label selectors, lists in pages, watches that continue at a version or have
// expired. A kubelet without nodes makes Pods ready, and ends them. Objects have the
// size that a cluster gives them, since it decides about the traffic. Nothing runs in a Pod, so
// that a guest cannot be dialled.
//
// It counts requests and bytes by user. It answers at once: times that are measured with it are
// those of its clients, of loopback and of this program.
package kubesim

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Namespace is the one that the cluster has.
const Namespace = "boxes"

// RuntimeClass is the runtime class that the cluster has.
const RuntimeClass = "gvisor"

// Options configure a Server. The zero value works.
type Options struct {
	// Start is how long a Pod takes until it is ready, and End how long it takes to be gone.
	// Default: 60 ms and 40 ms.
	Start, End time.Duration
	// WatchSpeed makes watches end, and get bookmarks, that many times as often as a cluster's,
	// so that the requests of hours can be measured in minutes. Default: 1.
	WatchSpeed int
	// History is the number of changes from which watches can continue. Default: 16384.
	History int
}

// Server is the stand-in.
type Server struct {
	http    *httptest.Server
	store   *store
	kubelet *kubelet
	counts  counts
	speed   int

	running context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup
}

// Start starts a server. The caller closes it.
func Start(o Options) *Server {
	if o.Start == 0 {
		o.Start = 60 * time.Millisecond
	}
	if o.End == 0 {
		o.End = 40 * time.Millisecond
	}
	if o.History == 0 {
		o.History = 16384
	}
	s := &Server{store: newStore(o.History), speed: max(o.WatchSpeed, 1)}
	s.running, s.stop = context.WithCancel(context.Background())
	s.kubelet = newKubelet(s.store, o.Start, o.End)
	s.workers.Go(func() { s.kubelet.run(s.running) })
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.EnableHTTP2 = true // as clusters do
	s.http.StartTLS()
	return s
}

// Close ends all watches and waits for all requests.
func (s *Server) Close() {
	s.stop()
	s.http.Close()
	s.workers.Wait()
}

const tokenPrefix = "token-of-"

// Kubeconfig writes a kubeconfig into a directory, with which requests count as those of a
// user, and returns its path.
func (s *Server) Kubeconfig(dir, user string) (string, error) {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	config := map[string]any{
		"clusters": []any{map[string]any{"name": "sim", "cluster": map[string]string{
			"server": s.http.URL, "certificate-authority-data": base64.StdEncoding.EncodeToString(ca),
		}}},
		"users":           []any{map[string]any{"name": user, "user": map[string]string{"token": tokenPrefix + user}}},
		"contexts":        []any{map[string]any{"name": "sim", "context": map[string]string{"cluster": "sim", "user": user, "namespace": Namespace}}},
		"current-context": "sim",
	}
	b, err := json.Marshal(config) // YAML, too
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig of %q: %w", user, err)
	}
	path := filepath.Join(dir, user+".kubeconfig")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %q: %w", user, err)
	}
	return path, nil
}

// Ready returns the number of ready Pods that have a label.
func (s *Server) Ready(label, value string) (n int) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, o := range s.store.kinds[pods] {
		if o.ready && !o.deleting && o.labels[label] == value {
			n++
		}
	}
	return n
}

// call is one request.
type call struct {
	user     string
	verb     string
	resource string
	name     string // of the object; "": all
	labels   string // the last label that a list selects by
	examined int    // objects that a list has looked at
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c := s.parse(r)
	out := &counting{ResponseWriter: w, code: http.StatusOK}
	if c.verb == "watch" {
		s.watch(out, r, c)
		return
	}
	s.answer(out, r, &c)
	s.counts.add(c.key(out.code), Load{Requests: 1, Bytes: out.bytes, Examined: c.examined})
}

// parse says what a request is about.
func (s *Server) parse(r *http.Request) call {
	user, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+tokenPrefix)
	c := call{user: user}
	_, path, namespaced := strings.Cut(r.URL.Path, "/namespaces/"+Namespace+"/")
	if !namespaced {
		path = strings.TrimPrefix(r.URL.Path, "/apis/node.k8s.io/v1/")
	}
	c.resource, c.name, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch r.Method {
	case http.MethodPost:
		c.verb = "create"
	case http.MethodGet:
		c.verb = "get"
		if namespaced && c.name == "" {
			c.verb = "list"
			if r.URL.Query().Get("watch") != "" {
				c.verb = "watch"
			}
		}
	default:
		c.verb = strings.ToLower(r.Method)
	}
	return c
}

// key returns what a request counts as.
func (c call) key(code int) Key {
	return Key{User: c.user, Verb: c.verb, Resource: c.resource, Labels: c.labels, Code: code}
}

// answer answers a request that is no watch.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, c *call) {
	var raw []byte
	var err error
	switch {
	case c.user == "":
		err = refuse(http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	case c.resource == "version":
		raw = []byte(`{"major":"1","minor":"36","gitVersion":"v1.36.3+sim"}`)
	case c.resource == "runtimeclasses" && c.name == RuntimeClass:
		raw = []byte(`{"metadata":{"name":"` + RuntimeClass + `"},"handler":"runsc"}`)
	case s.store.kinds[c.resource] == nil:
		err = refuse(http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	case c.verb == "list":
		if err = s.list(w, r, c); err == nil {
			return
		}
	default:
		raw, err = s.object(r, c)
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		fail(w, err)
		return
	}
	if c.verb == "create" {
		w.WriteHeader(http.StatusCreated)
	}
	_, _ = w.Write(raw)
}

// object performs a request on one object, and returns what is stored then.
func (s *Server) object(r *http.Request, c *call) ([]byte, error) {
	var body map[string]any
	if r.Method != http.MethodGet && r.ContentLength != 0 {
		if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 3<<20)).Decode(&body); err != nil {
			return nil, refuse(http.StatusBadRequest, "BadRequest", "read the body: "+err.Error())
		}
	}
	var o *object
	var err error
	switch c.verb {
	case "create":
		if o, err = s.store.create(c.resource, c.user, body); err == nil && c.resource == pods {
			s.kubelet.begin(o)
		}
	case "get":
		o, err = s.store.get(c.resource, c.name)
	case "patch":
		o, err = s.store.patch(c.resource, c.name, body)
	case "delete":
		var end bool
		if o, end, err = s.store.remove(c.resource, c.name, body); err == nil && end {
			s.kubelet.end(o)
		}
	default:
		err = refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "the server does not allow this method")
	}
	if err != nil {
		return nil, err
	}
	return o.raw, nil
}

// statusError is an answer that refuses a request.
type statusError struct {
	code            int
	reason, message string
}

func (e *statusError) Error() string { return e.message }

func refuse(code int, reason, message string) error { return &statusError{code, reason, message} }

// status returns the object that describes an error to clients.
func status(err error) (code int, raw []byte) {
	e, ok := err.(*statusError)
	if !ok {
		e = &statusError{http.StatusInternalServerError, "InternalError", err.Error()}
	}
	raw, err = json.Marshal(map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure", "message": e.message, "reason": e.reason, "code": e.code})
	if err != nil {
		panic(err) // texts and numbers always marshal
	}
	return e.code, raw
}

func fail(w http.ResponseWriter, err error) {
	code, raw := status(err)
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}
