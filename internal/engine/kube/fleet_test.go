package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

const otherServer = "00112233445566aa"

func TestServer_OnlyTheLeaseTellsAnAddress(t *testing.T) {
	lease := func(change func(*kubeapi.Lease)) kubeapi.Lease {
		l := kubeapi.Lease{
			Metadata: kubeapi.Meta{
				Name: leasePrefix + otherServer, ResourceVersion: "1", Labels: map[string]string{managedLabel: managedBy},
				Annotations: map[string]string{addressAnnotation: "10.1.2.3:8775"},
			},
			Spec: kubeapi.LeaseSpec{Holder: leasePrefix + otherServer},
		}
		change(&l)
		return l
	}
	address := func(text string) func(*kubeapi.Lease) {
		return func(l *kubeapi.Lease) { l.Metadata.Annotations[addressAnnotation] = text }
	}
	for name, c := range map[string]struct {
		change func(*kubeapi.Lease)
		want   string // address
		fails  bool
	}{
		"own":                  {func(*kubeapi.Lease) {}, "10.1.2.3:8775", false},
		"none":                 {func(l *kubeapi.Lease) { l.Metadata.Annotations = nil }, "", false},
		"host name":            {address("evil.example:80"), "", false},
		"metadata":             {address("169.254.169.254:80"), "", false},
		"loopback":             {address("127.0.0.1:6443"), "", false},
		"this server":          {address("10.9.9.9:8775"), "", false},
		"URL":                  {address("http://10.1.2.3:8775"), "", false},
		"label":                {func(l *kubeapi.Lease) { l.Metadata.Labels = nil }, "", true},
		"holder":               {func(l *kubeapi.Lease) { l.Spec.Holder = "kube-scheduler" }, "", true},
		"another Lease's name": {func(l *kubeapi.Lease) { l.Metadata.Name = "leader" }, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var paths []string
			e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
				paths = append(paths, r.URL.Path)
				_ = json.NewEncoder(w).Encode(lease(c.change))
			})
			e.holder.address = netip.MustParseAddrPort("10.9.9.9:8775")
			s, err := e.Server(t.Context(), otherServer)
			if (err != nil) != c.fails || s.Gone || s.Address.IsValid() != (c.want != "") || c.want != "" && s.Address.String() != c.want {
				t.Errorf("got %+v, %v; want %q, error %t", s, err, c.want, c.fails)
			}
			if want := "/apis/coordination.k8s.io/v1/namespaces/boxes/leases/glovebox-" + otherServer; len(paths) != 1 || paths[0] != want {
				t.Errorf("asked for %q, want %q", paths, want)
			}
		})
	}
}

func TestServer_MalformedNamesAreNotAskedFor(t *testing.T) {
	e, _ := failing(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) })
	for _, name := range []string{"", "..", "../../pods", "00112233445566AA", "00112233445566a", otherServer + "/status", "10.1.2.3:80"} {
		if _, err := e.Server(t.Context(), name); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", name, err)
		}
	}
	if _, err := e.Boxes(t.Context(), "x),glovebox.dev/role in (box"); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a tag with a selector: got %v, want ErrInvalid", err)
	}
}

func TestServer_WithoutLeaseIsGone(t *testing.T) {
	e, _ := failing(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusNotFound) })
	if s, err := e.Server(t.Context(), otherServer); err != nil || !s.Gone {
		t.Errorf("got %+v, %v; want that it is gone", s, err)
	}
	e, _ = failing(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusServiceUnavailable) })
	if s, err := e.Server(t.Context(), otherServer); err == nil || s.Gone {
		t.Errorf("without an answer: got %+v, %v; want an error", s, err)
	}
}

// TestServer_WithoutLeaseIsAskedForOnce: clients repeat requests that name a server which has ended.
func TestServer_WithoutLeaseIsAskedForOnce(t *testing.T) {
	asked := 0
	e, _ := failing(t, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		http.Error(w, "{}", http.StatusNotFound)
	})
	begun := time.Now()
	for range 10 {
		if s, err := e.Server(t.Context(), otherServer); err != nil || !s.Gone {
			t.Fatalf("got %+v, %v; want that it is gone", s, err)
		}
	}
	if most := 1 + int(time.Since(begun)/freshFor); asked > most {
		t.Errorf("the cluster was asked %d times, want %d at most", asked, most)
	}
	ss, now := &e.servers, time.Now()
	if ss.see(otherServer, "1", netip.AddrPort{}, now).Gone {
		t.Error("a server whose Lease is there counts as gone")
	}
	if s, ok := ss.fresh(otherServer, now); !ok || s.Gone {
		t.Errorf("then: got %+v, %t", s, ok)
	}
	for i := range 2 * maxServers {
		ss.miss(fmt.Sprintf("%016x", i), now)
	}
	if _, ok := ss.fresh(otherServer, now); !ok || len(ss.missing) > maxServers {
		t.Errorf("%d names without a Lease are remembered; the server that lives is: %t", len(ss.missing), ok)
	}
}

// TestSightings_SilenceMustBeWatched: a Lease that was not looked at proves nothing, since
// the cluster may have been down.
func TestSightings_SilenceMustBeWatched(t *testing.T) {
	begin := time.Unix(1000, 0)
	var ss sightings
	look := func(version string, at time.Duration) bool {
		return ss.see(otherServer, version, netip.AddrPort{}, begin.Add(at)).Gone
	}
	for _, c := range []struct {
		version string
		at      time.Duration
		gone    bool
	}{
		{"1", 0, false}, {"1", time.Hour, false}, // no look in between
		{"1", time.Hour + 4*time.Second, false}, {"2", time.Hour + 8*time.Second, false},
		{"2", time.Hour + 12*time.Second, false}, {"2", time.Hour + 16*time.Second, false}, {"2", time.Hour + 20*time.Second, false},
		{"2", time.Hour + 24*time.Second, false}, {"2", time.Hour + 28*time.Second, true}, // unchanged for goneAfter
		{"2", 2 * time.Hour, true},  // still
		{"3", 2 * time.Hour, false}, // it is back
	} {
		if got := look(c.version, c.at); got != c.gone {
			t.Errorf("version %s after %v: gone %t, want %t", c.version, c.at, got, c.gone)
		}
	}
	for i := range 2 * maxServers {
		ss.see(fmt.Sprintf("%016x", i), "1", netip.AddrPort{}, begin)
	}
	if len(ss.seen) > maxServers {
		t.Errorf("%d servers are remembered", len(ss.seen))
	}
}

// recorder answers requests for one Pod, and keeps their methods.
type recorder struct {
	mu       sync.Mutex
	pod      *kubeapi.Pod // guarded by mu
	conflict bool         // guarded by mu; patches and deletions are refused
	methods  []string     // guarded by mu
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.methods = append(rec.methods, r.Method)
	if r.Method != http.MethodGet && rec.conflict {
		http.Error(w, `{"kind":"Status","message":"the object has been modified"}`, http.StatusConflict)
		return
	}
	_ = json.NewEncoder(w).Encode(rec.pod)
}

func podOf(e *Engine, owner string) *kubeapi.Pod {
	p := newPod("b", owner, e.class)
	p.Metadata.UID, p.Metadata.ResourceVersion = "u", "7"
	p.Spec.Containers[0].Command = []string{"/pod", "run"}
	p.Status.Containers = []kubeapi.ContainerStatus{{Name: containerName, State: kubeapi.ContainerState{Running: &struct{}{}}}}
	return p
}

// TestGuestDelete_NotWhatAnotherServerHasTaken: a server that was cut off from the cluster
// for a while must not end a box that goes on at another one.
func TestGuestDelete_NotWhatAnotherServerHasTaken(t *testing.T) {
	for name, c := range map[string]struct {
		owner   string
		address string
		methods string
		gone    bool
	}{
		"another's":        {leasePrefix + otherServer, "10.9.9.9:8775", "GET", true},
		"own":              {"glovebox-test", "10.9.9.9:8775", "GET DELETE", false},
		"no other servers": {"glovebox-test", "", "DELETE", false},
	} {
		rec := &recorder{}
		e, _ := failing(t, rec.ServeHTTP)
		if c.address != "" {
			e.holder.address = netip.MustParseAddrPort(c.address)
		}
		rec.pod = podOf(e, c.owner)
		g := &guest{e: e, id: "b", name: "box-b", uid: "u"}
		err := g.delete(t.Context())
		if methods := strings.Join(rec.methods, " "); errors.Is(err, engine.ErrGone) != c.gone || methods != c.methods {
			t.Errorf("%s: %v after %q, want %q", name, err, methods, c.methods)
		}
	}
}

// TestAdopt_OneOfTwo: the cluster refuses the second server that adopts a Pod.
func TestAdopt_OneOfTwo(t *testing.T) {
	rec := &recorder{conflict: true}
	e, _ := failing(t, rec.ServeHTTP)
	e.set = guests.NewSet[*guest]()
	rec.pod = podOf(e, leasePrefix+otherServer)
	g := fleet.Guest{State: encode("b", state{Pod: "box-b", UID: "u", Helper: "/pod"}), Server: otherServer, Version: "6"}
	if _, err := e.Adopt(t.Context(), g); !errors.Is(err, fleet.ErrChanged) {
		t.Errorf("got %v, want ErrChanged", err)
	}
}

func TestLease_TellsTheAddress(t *testing.T) {
	o := &holder{name: leasePrefix + otherServer, address: netip.MustParseAddrPort("10.1.2.3:8775")}
	if got := o.lease().Metadata.Annotations[addressAnnotation]; got != "10.1.2.3:8775" {
		t.Errorf("the Lease tells %q", got)
	}
	if o.renewEvery() != maxGap {
		t.Errorf("the Lease is renewed every %v, and watched every %v", o.renewEvery(), maxGap)
	}
	o.address = netip.AddrPort{}
	if got := o.lease().Metadata.Annotations; got != nil {
		t.Errorf("without an address, the Lease tells %q", got)
	}
	if every := o.renewEvery(); every != 15*time.Second || o.lease().Spec.Duration != 60 {
		t.Errorf("without an address, the Lease of %d seconds is renewed every %v", o.lease().Spec.Duration, every)
	}
	if e := (&Engine{holder: o}); e.Fleet() != nil || e.Self() != otherServer {
		t.Errorf("server %q shares its boxes without an address", e.Self())
	}
}

func TestCheck_PeerAddress(t *testing.T) {
	for text, ok := range map[string]bool{"": true, "10.1.2.3:8775": true, "localhost:8775": false, "0.0.0.0:8775": false} {
		if err := (Settings{Address: text}).Check(); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
