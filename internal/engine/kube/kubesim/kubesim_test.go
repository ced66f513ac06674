package kubesim_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubesim"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// start starts a server and returns it with a client.
func start(t *testing.T, o kubesim.Options) (*kubesim.Server, *kubeapi.Client) {
	t.Helper()
	s := kubesim.Start(o)
	t.Cleanup(s.Close)
	path, err := s.Kubeconfig(t.TempDir(), "tester")
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kubeconfig.Load(kubeconfig.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	c := kubeapi.New(cluster)
	t.Cleanup(c.Close)
	return s, c
}

func create(t *testing.T, c *kubeapi.Client, name string) *kubeapi.Pod {
	t.Helper()
	p, err := c.CreatePod(t.Context(), kubesim.Namespace, &kubeapi.Pod{
		Metadata: kubeapi.Meta{Name: name, Labels: map[string]string{"example.org/kind": "box"}},
		Spec:     kubeapi.PodSpec{Containers: []kubeapi.Container{{Name: "box", Image: "x"}}},
	})
	if err != nil {
		t.Error(err)
		return new(kubeapi.Pod)
	}
	return p
}

// running waits until a Pod is ready.
func running(t *testing.T, c *kubeapi.Client, name string) (p *kubeapi.Pod) {
	t.Helper()
	polltest.Until(t, time.Minute, name+" runs", func() bool {
		var err error
		if p, err = c.GetPod(t.Context(), kubesim.Namespace, name); err != nil {
			t.Fatal(err)
		}
		return p.Status.Phase == "Running"
	})
	return p
}

func wantCode(t *testing.T, what string, err error, code int) {
	t.Helper()
	if kubeapi.Code(err) != code {
		t.Errorf("%s: got %v with code %d, want %d", what, err, kubeapi.Code(err), code)
	}
}

func TestPatch_OnlyTheFirstAtAVersionWins(t *testing.T) {
	_, c := start(t, kubesim.Options{})
	create(t, c, "a")
	p := running(t, c, "a")
	claim := func(version, by string) error {
		_, err := c.PatchPod(t.Context(), kubesim.Namespace, "a", map[string]any{"metadata": map[string]any{
			"resourceVersion": version, "uid": p.Metadata.UID, "labels": map[string]any{"by": by, "example.org/kind": nil},
		}})
		return err
	}
	if err := claim(p.Metadata.ResourceVersion, "first"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "a second claim at the same version", claim(p.Metadata.ResourceVersion, "second"), http.StatusConflict)
	now := running(t, c, "a")
	if l := now.Metadata.Labels; len(l) != 1 || l["by"] != "first" {
		t.Errorf("the labels are %v, want the first claim's only", l)
	}
	// A patch that changes nothing makes no version; without a version it has no condition.
	again, err := c.PatchPod(t.Context(), kubesim.Namespace, "a", map[string]any{"metadata": map[string]any{"labels": map[string]string{"by": "first"}}})
	if err != nil || again.Metadata.ResourceVersion != now.Metadata.ResourceVersion {
		t.Errorf("a patch without a change: version %s, %v; want %s", again.Metadata.ResourceVersion, err, now.Metadata.ResourceVersion)
	}
	_, err = c.PatchPod(t.Context(), kubesim.Namespace, "a", map[string]any{"metadata": map[string]any{"uid": "another"}})
	wantCode(t, "a patch of another Pod of that name", err, http.StatusConflict)
	_, err = c.PatchPod(t.Context(), kubesim.Namespace, "a", map[string]any{"spec": map[string]any{"hostname": "x"}})
	wantCode(t, "a patch of the spec", err, http.StatusUnprocessableEntity)
	_, err = c.PatchPod(t.Context(), kubesim.Namespace, "b", map[string]any{})
	wantCode(t, "a patch of a missing Pod", err, http.StatusNotFound)
	_, err = c.CreatePod(t.Context(), kubesim.Namespace, &kubeapi.Pod{Metadata: kubeapi.Meta{Name: "a"}})
	wantCode(t, "a second Pod of a name", err, http.StatusConflict)
}

func TestDelete_PreconditionsAndGrace(t *testing.T) {
	s, c := start(t, kubesim.Options{End: 200 * time.Millisecond})
	create(t, c, "a")
	p := running(t, c, "a")
	wantCode(t, "with another UID", c.DeletePod(t.Context(), kubesim.Namespace, "a", "another", 1), http.StatusConflict)
	old := *p
	old.Metadata.ResourceVersion = "1"
	wantCode(t, "at an old version", c.DeletePodAt(t.Context(), kubesim.Namespace, &old, 1), http.StatusConflict)
	if s.Ready("example.org/kind", "box") != 1 {
		t.Error("the Pod is not ready after deletions that were refused")
	}
	if err := c.DeletePodAt(t.Context(), kubesim.Namespace, p, 1); err != nil {
		t.Fatal(err)
	}
	if p, err := c.GetPod(t.Context(), kubesim.Namespace, "a"); err != nil || p.Metadata.DeletionTimestamp == nil || s.Ready("example.org/kind", "box") != 0 {
		t.Errorf("within its grace period the Pod is %+v, %v", p.Metadata, err)
	}
	polltest.Until(t, time.Minute, "the Pod is gone", func() bool {
		_, err := c.GetPod(t.Context(), kubesim.Namespace, "a")
		return kubeapi.Code(err) == http.StatusNotFound
	})
	wantCode(t, "a Pod that is gone", c.DeletePod(t.Context(), kubesim.Namespace, "a", p.Metadata.UID, 1), http.StatusNotFound)
	if again := create(t, c, "a"); again.Metadata.UID == p.Metadata.UID {
		t.Error("another Pod of that name has the same UID")
	}
}

func TestList_PagesShowOneVersion(t *testing.T) {
	s, c := start(t, kubesim.Options{})
	var all sync.WaitGroup
	for i := range 300 { // more than a page
		all.Go(func() { create(t, c, fmt.Sprintf("p-%03d", i)) })
	}
	all.Wait()
	seen := make(map[string]bool)
	version, err := c.ListPods(t.Context(), kubesim.Namespace, "example.org/kind in (box,other)", func(p *kubeapi.Pod) {
		if len(seen) == 0 { // between the pages
			create(t, c, "p-zzz")
		}
		seen[p.Metadata.Name] = true
	})
	if err != nil || len(seen) != 300 || seen["p-zzz"] {
		t.Fatalf("listed %d Pods, %v; want the 300 that there were at the first page", len(seen), err)
	}
	if none, err := c.ListPods(t.Context(), kubesim.Namespace, "example.org/kind=other", func(p *kubeapi.Pod) { t.Errorf("listed %s", p.Metadata.Name) }); err != nil || none == "" {
		t.Errorf("a list of nothing: version %q, %v", none, err)
	}
	found := watch(t, c, version, func(e kubeapi.Event) bool { return e.Pod.Metadata.Name == "p-zzz" })
	if !found {
		t.Error("a watch from the version of the list does not tell of a Pod that came between its pages")
	}
	lists := s.Counts().Sum(func(k kubesim.Key) bool { return k.User == "tester" && k.Verb == "list" && k.Labels == "kind" })
	if lists.Requests != 3 || lists.Examined != 300+301 {
		t.Errorf("counted %+v, want 3 pages and each Pod examined once a list", lists)
	}
}

// watch watches until an event is the one that is wanted.
func watch(t *testing.T, c *kubeapi.Client, version string, wanted func(kubeapi.Event) bool) (found bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.WatchPods(ctx, kubesim.Namespace, "example.org/kind=box", version, func(e kubeapi.Event) {
		if wanted(e) {
			found = true
			cancel()
		}
	})
	if err != nil && !found {
		t.Fatal(err)
	}
	return found
}

// TestWatch_LosesWhatIsNoLongerSelected: a selector sees a Pod that loses its label end, and one
// that gets it come.
func TestWatch_LosesWhatIsNoLongerSelected(t *testing.T) {
	_, c := start(t, kubesim.Options{})
	version := create(t, c, "a").Metadata.ResourceVersion
	running(t, c, "a")
	for _, kind := range []any{nil, "box"} {
		if _, err := c.PatchPod(t.Context(), kubesim.Namespace, "a", map[string]any{"metadata": map[string]any{"labels": map[string]any{"example.org/kind": kind}}}); err != nil {
			t.Fatal(err)
		}
	}
	ended := false
	if !watch(t, c, version, func(e kubeapi.Event) bool { ended = ended || e.Deleted; return ended && !e.Deleted }) {
		t.Error("no event after the one of the end")
	}
}

func TestWatch_ExpiresWithTheHistory(t *testing.T) {
	_, c := start(t, kubesim.Options{History: 4})
	first := create(t, c, "a").Metadata.ResourceVersion
	running(t, c, "a")
	create(t, c, "b")
	running(t, c, "b")
	if _, err := c.WatchPods(t.Context(), kubesim.Namespace, "example.org/kind=box", first, func(kubeapi.Event) {}); !errors.Is(err, kubeapi.ErrExpired) {
		t.Errorf("a watch from a version that is lost: got %v, want ErrExpired", err)
	}
}

func TestWatch_EndsInTime(t *testing.T) {
	_, c := start(t, kubesim.Options{WatchSpeed: 600}) // half a second instead of five minutes
	version := create(t, c, "a").Metadata.ResourceVersion
	last := running(t, c, "a").Metadata.ResourceVersion
	next, err := c.WatchPods(t.Context(), kubesim.Namespace, "example.org/kind=box", version, func(kubeapi.Event) {})
	if err != nil || next != last {
		t.Errorf("the watch ended at version %s, %v; want %s", next, err, last)
	}
}
