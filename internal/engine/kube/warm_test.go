package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
)

// warmSpec is a spec whose Pods are interchangeable.
func warmSpec() *engine.Spec {
	s := specOf(image("box"), image("agent"))
	s.Hostname, s.Limits = "glovebox", engine.Limits{CPUs: 1, MemoryMB: 2048, DiskMB: 100}
	return s
}

// stored returns a warm Pod as a cluster stores it: with what it fills in, and with
// quantities in its own form.
func stored(t *testing.T, e *Engine, name string, change func(pod, spec map[string]any)) *kubeapi.Pod {
	t.Helper()
	want, err := e.pod(t.Context(), "warm", warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(want.Spec)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(`"1000m"`, `"1"`, `"2048Mi"`, `"2Gi"`).Replace(string(b))
	var spec map[string]any
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	spec["nodeName"], spec["schedulerName"], spec["serviceAccountName"] = "node-1", "default-scheduler", "default"
	spec["priority"], spec["tolerations"] = 0, []any{map[string]any{"key": "node.kubernetes.io/not-ready"}}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range spec[list].([]any) {
			c.(map[string]any)["terminationMessagePath"] = "/dev/termination-log"
			c.(map[string]any)["terminationMessagePolicy"] = "File"
		}
	}
	pod := map[string]any{
		"metadata": map[string]any{
			"name": name, "uid": "uid-" + name, "resourceVersion": "7", "annotations": map[string]any{nonceAnnotation: "x"},
			"labels": map[string]any{managedLabel: managedBy, roleLabel: roleBox, warmLabel: warmValue, specLabel: e.hash(&want.Spec), makerLabel: "glovebox-maker"},
		},
		"spec": spec,
		"status": map[string]any{
			"conditions":        []any{map[string]any{"type": "Ready", "status": "True"}},
			"containerStatuses": []any{map[string]any{"name": "box", "state": map[string]any{"running": map[string]any{}}}},
		},
	}
	if change != nil {
		change(pod, spec)
	}
	if b, err = json.Marshal(pod); err != nil {
		t.Fatal(err)
	}
	p := new(kubeapi.Pod)
	if err := json.Unmarshal(b, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func nameOf(n int) string { return fmt.Sprintf("warm-%032x", n) }

// TestCheckPod_TakesOnlyWhatWasAskedFor: the labels of all these Pods are right.
func TestCheckPod_TakesOnlyWhatWasAskedFor(t *testing.T) {
	e := testEngine()
	want, err := e.pod(t.Context(), "warm", warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkPod(&want.Spec, stored(t, e, nameOf(0), nil)); err != nil {
		t.Errorf("a Pod as it was asked for: %v", err)
	}
	box := func(spec map[string]any) map[string]any { return spec["containers"].([]any)[0].(map[string]any) }
	for name, c := range map[string]struct {
		change func(pod, spec map[string]any)
		want   string
	}{
		"network of the node": {func(_, s map[string]any) { s["hostNetwork"] = true }, "hostNetwork"},
		"processes of node":   {func(_, s map[string]any) { s["hostPID"] = true }, "hostPID"},
		"kernel of the node":  {func(_, s map[string]any) { delete(s, "runtimeClassName") }, "runtimeClassName"},
		"another class":       {func(_, s map[string]any) { s["runtimeClassName"] = "runc" }, "runtimeClassName is runc"},
		"token":               {func(_, s map[string]any) { s["automountServiceAccountToken"] = true }, "automountServiceAccountToken"},
		"another container":   {func(_, s map[string]any) { s["containers"] = append(s["containers"].([]any), box(s)) }, "containers does not have 1"},
		"another volume": {func(_, s map[string]any) {
			s["volumes"] = append(s["volumes"].([]any), map[string]any{"hostPath": "/"})
		}, "volumes"},
		"debugging":      {func(_, s map[string]any) { s["ephemeralContainers"] = []any{box(s)} }, "ephemeralContainers"},
		"image":          {func(_, s map[string]any) { box(s)["image"] = "evil@sha256:0" }, "containers[].image"},
		"command":        {func(_, s map[string]any) { box(s)["command"].([]any)[0] = "/bin/sh" }, "containers[].command[]"},
		"arguments":      {func(_, s map[string]any) { box(s)["args"] = []any{"x"} }, "containers[].args"},
		"environment":    {func(_, s map[string]any) { box(s)["env"] = []any{map[string]any{"name": "LD_PRELOAD"}} }, "containers[].env"},
		"hook":           {func(_, s map[string]any) { box(s)["lifecycle"] = map[string]any{} }, "containers[].lifecycle"},
		"privileged":     {func(_, s map[string]any) { box(s)["securityContext"].(map[string]any)["privileged"] = true }, "securityContext.privileged"},
		"unmasked /proc": {func(_, s map[string]any) { box(s)["securityContext"].(map[string]any)["procMount"] = "Unmasked" }, "procMount"},
		"more memory": {func(_, s map[string]any) {
			box(s)["resources"].(map[string]any)["limits"].(map[string]any)["memory"] = "3Gi"
		}, "memory is 3Gi"},
		"no seccomp": {func(_, s map[string]any) { delete(s, "securityContext") }, "securityContext is not an object"},
		"annotation of gVisor": {func(p, _ map[string]any) {
			p["metadata"].(map[string]any)["annotations"] = map[string]any{"dev.gvisor.flag.x": "1"}
		}, "dev.gvisor.flag.x"},
		"address of another Pod": {func(p, _ map[string]any) {
			p["metadata"].(map[string]any)["annotations"] = map[string]any{"cni.projectcalico.org/ipAddrs": `["10.0.0.1"]`}
		}, "cni.projectcalico.org/ipAddrs"},
		"another network": {func(p, _ map[string]any) {
			p["metadata"].(map[string]any)["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/networks": "host"}
		}, "k8s.v1.cni.cncf.io/networks"},
		"label of a Service": {func(p, _ map[string]any) {
			p["metadata"].(map[string]any)["labels"].(map[string]any)["app"] = "database"
		}, `label "app"`},
		"owner":         {func(p, _ map[string]any) { p["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{}} }, "controller"},
		"finalizer":     {func(p, _ map[string]any) { p["metadata"].(map[string]any)["finalizers"] = []any{"x/y"} }, "controller"},
		"hostile field": {func(_, s map[string]any) { s["\x1b[31m"] = true }, `\x1b[31m`},
	} {
		err := checkPod(&want.Spec, stored(t, e, nameOf(0), c.change))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: got %v, want a refusal about %q", name, err, c.want)
		}
	}
}

func TestQuantity_InThousandths(t *testing.T) {
	for text, want := range map[string]int64{"1": 1000, "1000m": 1000, "250m": 250, "2Gi": 2048 * 1000 << 20, "2048Mi": 2048 * 1000 << 20, "0": 0} {
		if n, ok := quantity(text); !ok || n != want {
			t.Errorf("%q is %d, %t; want %d", text, n, ok, want)
		}
	}
	for _, text := range []string{"", "x", "1.5", "-1", "1e3", "m", "9223372036854775807Gi", "1 Gi", "1Zi"} {
		if n, ok := quantity(text); ok {
			t.Errorf("%q counts as %d", text, n)
		}
	}
}

// TestHash_DiffersByWhatPodsAre: engines with different settings take no Pods of each other.
func TestHash_DiffersByWhatPodsAre(t *testing.T) {
	seen := make(map[string]string)
	for name, change := range map[string]func(e *Engine, s *engine.Spec){
		"same":    func(*Engine, *engine.Spec) {},
		"program": func(e *Engine, _ *engine.Spec) { e.program = "v2" },
		"class":   func(e *Engine, _ *engine.Spec) { e.class = "kata" },
		"helper":  func(e *Engine, _ *engine.Spec) { e.helper.Image = image("other") },
		"image":   func(_ *Engine, s *engine.Spec) { s.Root.Image = image("other") },
		"memory":  func(_ *Engine, s *engine.Spec) { s.Limits.MemoryMB++ },
		"agent":   func(_ *Engine, s *engine.Spec) { s.Agent.Args = []string{"x"} },
	} {
		e, s := testEngine(), warmSpec()
		change(e, s)
		p, err := e.pod(t.Context(), "id-"+name, s)
		if err != nil {
			t.Fatal(err)
		}
		h := e.hash(&p.Spec)
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have the hash %s", name, other, h)
		}
		seen[h] = name
		again, err := e.pod(t.Context(), "another-id", s)
		if err != nil || e.hash(&again.Spec) != h {
			t.Errorf("%s: the hash depends on the id (%v)", name, err)
		}
	}
	for name, s := range map[string]*engine.Spec{"no host name": {}, "mounts": {Hostname: "x", Mounts: []engine.Mount{{Volume: "v", Guest: "/v"}}}} {
		if warmable(s) {
			t.Errorf("%s: Pods count as interchangeable", name)
		}
	}
}

// claiming returns an engine that knows warm Pods, and what its cluster was asked. respond
// answers a request that changes something.
func claiming(t *testing.T, warm int, respond func(w http.ResponseWriter, r *http.Request)) (*Engine, *kubeapi.Pod, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			b, _ := io.ReadAll(r.Body)
			mu.Lock()
			asked = append(asked, r.Method+" "+string(b))
			mu.Unlock()
		}
		respond(w, r)
	})
	e.target = warm
	want, err := e.pod(t.Context(), "warm", warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	for i := range warm {
		e.warm.see(stored(t, e, nameOf(i), nil), false)
	}
	return e, want, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
}

func refuse(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); io.WriteString(w, "{}") }
}

// TestClaim_IsOnePatchAtTheVersionThatWasChecked loses a race, and wins the next.
func TestClaim_IsOnePatchAtTheVersionThatWasChecked(t *testing.T) {
	var patches atomic.Int32
	e, want, asked := claiming(t, 3, func(w http.ResponseWriter, r *http.Request) {
		if patches.Add(1) == 1 {
			w.WriteHeader(http.StatusConflict)
			return
		}
		fmt.Fprintf(w, `{"metadata":{"name":%q,"uid":"u"}}`, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	})
	p := e.claim(t.Context(), "b", want)
	if p == nil || !warmName().MatchString(p.Metadata.Name) {
		t.Fatalf("claimed %+v", p)
	}
	list := asked()
	if len(list) != 2 {
		t.Fatalf("the cluster was asked %q, want a lost race and a claim", list)
	}
	for _, part := range []string{
		`"resourceVersion":"7"`, `"uid":"uid-` + p.Metadata.Name, `"` + warmLabel + `":null`, `"` + holderLabel + `":"glovebox-test"`, `"` + idAnnotation + `":"b"`,
	} {
		if !strings.Contains(list[1], part) {
			t.Errorf("the claim %s lacks %s", list[1], part)
		}
	}
	if n := len(e.warm.known); n != 1 {
		t.Errorf("%d Pods are left to claim, want 1", n)
	}
}

func TestClaim_EndsAfterLostRaces(t *testing.T) {
	e, want, asked := claiming(t, claimAttempts+3, refuse(http.StatusConflict))
	if p := e.claim(t.Context(), "b", want); p != nil || len(asked()) != claimAttempts {
		t.Errorf("claimed %+v after %d attempts, want none after %d", p, len(asked()), claimAttempts)
	}
}

// TestClaim_LeavesOthersAlone: Pods that are not ready, of another spec, or forged.
func TestClaim_LeavesOthersAlone(t *testing.T) {
	for name, change := range map[string]func(pod, spec map[string]any){
		"of another spec": func(p, _ map[string]any) { p["metadata"].(map[string]any)["labels"].(map[string]any)[specLabel] = "x" },
		"not warm": func(p, _ map[string]any) {
			delete(p["metadata"].(map[string]any)["labels"].(map[string]any), warmLabel)
		},
		"deleted": func(p, _ map[string]any) {
			p["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
		},
		"starting":       func(p, _ map[string]any) { delete(p["status"].(map[string]any), "containerStatuses") },
		"on a dead node": func(p, _ map[string]any) { delete(p["status"].(map[string]any), "conditions") },
		"forged":         func(_, s map[string]any) { s["hostNetwork"] = true },
	} {
		e, want, asked := claiming(t, 0, refuse(http.StatusConflict))
		e.warm.see(stored(t, e, nameOf(1), change), false)
		if p := e.claim(t.Context(), "b", want); p != nil || len(asked()) != 0 {
			t.Errorf("a Pod %s: claimed %+v, asked %q", name, p, asked())
		}
	}
}

// TestClaim_UnknownOutcome: a Pod that may have been claimed is removed at that version, so
// that neither a late claim nor another engine's suffers.
func TestClaim_UnknownOutcome(t *testing.T) {
	e, want, asked := claiming(t, 1, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, "{}")
	})
	if p := e.claim(t.Context(), "b", want); p != nil {
		t.Errorf("claimed %+v", p)
	}
	list := asked()
	last := list[len(list)-1]
	if !strings.HasPrefix(last, "DELETE ") || !strings.Contains(last, `"resourceVersion":"7"`) || !strings.Contains(last, `"uid":"uid-`) {
		t.Errorf("the cluster was asked %q, want the removal of the Pod at its version", list)
	}
}

// TestRefill_CountsBeforeItMakesOne answers with a list of Pods of the namespace.
func TestRefill_CountsBeforeItMakesOne(t *testing.T) {
	now := time.Now()
	other := func(p, _ map[string]any) { p["metadata"].(map[string]any)["labels"].(map[string]any)[specLabel] = "x" }
	ended := func(p, _ map[string]any) { p["status"] = map[string]any{"phase": "Failed", "reason": "Evicted"} }
	starting := func(p, _ map[string]any) { p["status"] = map[string]any{} }
	deleted := func(p, _ map[string]any) {
		p["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	forged := func(_, s map[string]any) { s["hostNetwork"] = true }
	for name, c := range map[string]struct {
		pods  []func(pod, spec map[string]any)
		since time.Duration // the engine has known the Pods
		want  string        // methods of requests that change something
		short bool
	}{
		"none":                {nil, 0, "POST", true},
		"one missing":         {[]func(_, _ map[string]any){nil}, 0, "POST", false},
		"full":                {[]func(_, _ map[string]any){nil, nil}, 0, "", false},
		"more than enough":    {[]func(_, _ map[string]any){nil, nil, nil}, 0, "", false},
		"starting":            {[]func(_, _ map[string]any){nil, starting}, 0, "", false},
		"of another spec":     {[]func(_, _ map[string]any){nil, other}, 0, "POST", false},
		"being deleted":       {[]func(_, _ map[string]any){nil, deleted}, 0, "POST", false},
		"failed":              {[]func(_, _ map[string]any){nil, ended}, 0, "DELETE", false},
		"starting for long":   {[]func(_, _ map[string]any){nil, starting}, notReadyAfter, "DELETE", false},
		"forged":              {[]func(_, _ map[string]any){nil, forged}, 0, "", false},
		"forged, for long":    {[]func(_, _ map[string]any){nil, forged}, notReadyAfter, "DELETE", false},
		"full namespace":      {make([]func(_, _ map[string]any), maxWarmPods), 0, "", false},
		"namespace of others": {slicesOf(other, maxWarmPods), 0, "", false},
	} {
		var pods []*kubeapi.Pod
		var methods []string
		var e *Engine
		e, _ = failing(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				if s := r.URL.Query().Get("labelSelector"); s != warmSelector {
					t.Errorf("%s: listed Pods with %q", name, s)
				}
				writePods(w, pods)
				return
			}
			methods = append(methods, r.Method)
			b, _ := io.ReadAll(r.Body) // the Pod is stored as it was asked for
			w.Write(b)
		})
		e.target = 2
		want, err := e.pod(t.Context(), "warm", warmSpec())
		if err != nil {
			t.Fatal(err)
		}
		k := &keptWarm{spec: want.Spec, hash: e.hash(&want.Spec), seen: make(map[string]time.Time)}
		for i, change := range c.pods {
			p := stored(t, e, nameOf(i), change)
			pods = append(pods, p)
			k.seen[p.Metadata.UID] = now.Add(-c.since)
		}
		short, err := e.refill(t.Context(), k, now)
		if got := strings.Join(methods, " "); got != c.want || short != c.short || (err != nil) != (c.want == "DELETE") {
			t.Errorf("%s: asked for %q, short %t, %v; want %q, %t", name, got, short, err, c.want, c.short)
		}
	}
}

func slicesOf(f func(_, _ map[string]any), n int) []func(_, _ map[string]any) {
	list := make([]func(_, _ map[string]any), n)
	for i := range list {
		list[i] = f
	}
	return list
}

// writePods answers a list.
func writePods(w io.Writer, pods []*kubeapi.Pod) {
	type whole struct {
		Metadata kubeapi.Meta      `json:"metadata"`
		Spec     json.RawMessage   `json:"spec"`
		Status   kubeapi.PodStatus `json:"status"`
	}
	list := make([]whole, 0, len(pods))
	for _, p := range pods {
		list = append(list, whole{p.Metadata, p.WholeSpec, p.Status})
	}
	json.NewEncoder(w).Encode(map[string]any{"items": list})
}

// TestMakeWarm_ClusterChangesPods: Pods that a webhook changes would never be claimed.
func TestMakeWarm_ClusterChangesPods(t *testing.T) {
	removed := false
	e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			removed = true
			io.WriteString(w, "{}")
			return
		}
		io.WriteString(w, `{"metadata":{"name":"warm-x","uid":"u"},"spec":{"containers":[{},{"name":"proxy"}]}}`)
	})
	want, err := e.pod(t.Context(), "warm", warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	err = e.makeWarm(t.Context(), &keptWarm{spec: want.Spec, hash: "h"})
	if err == nil || !removed || !strings.Contains(err.Error(), "exempt the namespace boxes") {
		t.Errorf("got %v, removed %t; want an error that says what to do, and no Pod", err, removed)
	}
}

// TestSweep_WarmPods: warm Pods belong to whoever keeps their spec warm; the others go soon
// after the engine that made them.
func TestSweep_WarmPods(t *testing.T) {
	var deleted []string
	var pods []*kubeapi.Pod
	lease := http.StatusNotFound
	e, _ := failing(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			deleted = append(deleted, r.URL.Path)
			io.WriteString(w, "{}")
		case strings.HasSuffix(r.URL.Path, "/pods"):
			writePods(w, pods)
		default:
			w.WriteHeader(lease)
			io.WriteString(w, `{"metadata":{"resourceVersion":"1"}}`)
		}
	})
	pods = append(pods, stored(t, e, nameOf(1), nil))
	hash, start := pods[0].Metadata.Labels[specLabel], time.Now()
	sweep := func(after time.Duration) int {
		deleted = nil
		holders := make(map[string]watched)
		e.sweep(t.Context(), holders, time.Hour, start)
		e.sweep(t.Context(), holders, time.Hour, start.Add(after))
		return len(deleted)
	}
	if n := sweep(warmAfter - 1); n != 0 {
		t.Errorf("removed %q too early", deleted)
	}
	if n := sweep(warmAfter); n != 1 {
		t.Errorf("a warm Pod of an engine that is gone: removed %q", deleted)
	}
	lease = http.StatusOK // it is there, and unchanged
	if n := sweep(warmAfter); n != 1 {
		t.Errorf("a warm Pod of an engine that has stopped: removed %q", deleted)
	}
	e.warm.kept = []*keptWarm{{hash: hash}}
	if n := sweep(24 * time.Hour); n != 0 {
		t.Errorf("removed %q, which this engine keeps warm", deleted)
	}
}

func TestParsePod_WarmPods(t *testing.T) {
	p := stored(t, testEngine(), nameOf(1), nil)
	if _, _, ok := parsePod(p); ok {
		t.Error("a warm Pod counts as a guest's")
	}
	p.Metadata.Annotations[idAnnotation] = "b"
	if _, _, ok := parsePod(p); ok {
		t.Error("a warm Pod with an id counts as a guest's")
	}
	delete(p.Metadata.Labels, warmLabel)
	if id, _, ok := parsePod(p); !ok || id != "b" {
		t.Errorf("a claimed Pod is parsed as %q, %t", id, ok)
	}
}
