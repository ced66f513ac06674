package kube_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

const (
	warmLabel   = "glovebox.dev/warm"
	specLabel   = "glovebox.dev/spec"
	holderLabel = "glovebox.dev/owner"
)

// warm returns a spec whose Pods are interchangeable.
func (c *cluster) warm() *engine.Spec {
	s := c.echo()
	s.Hostname = "glovebox"
	return s
}

// pods returns the Pods of a namespace; none if the cluster does not answer.
func (c *cluster) pods(ctx context.Context, namespace string) (list []*kubeapi.Pod) {
	if _, err := c.api.ListPods(ctx, namespace, "", func(p *kubeapi.Pod) { list = append(list, p) }); err != nil {
		return nil
	}
	return list
}

// awaitWarm waits until an engine knows n warm Pods that are ready.
func awaitWarm(t testing.TB, e *kube.Engine, n int) {
	t.Helper()
	polltest.Until(t, 4*time.Minute, fmt.Sprintf("%d warm Pods are ready", n), func() bool { return e.WarmKnown() >= n })
}

// namespace makes a namespace for a test.
func (c *cluster) namespace(t testing.TB) string {
	t.Helper()
	kubectl := os.Getenv("GLOVEBOX_TEST_KUBECTL")
	if kubectl == "" {
		t.Skip("GLOVEBOX_TEST_KUBECTL names no kubectl; run make test-kube")
	}
	name := "warm-" + strings.ToLower(rand.Text()[:8])
	run := func(args ...string) {
		if out, err := exec.Command(kubectl, append([]string{"--kubeconfig", c.options.Path}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("kubectl %q: %v\n%s", args, err, out)
		}
	}
	run("create", "namespace", name)
	t.Cleanup(func() { run("delete", "namespace", name, "--wait=false") })
	return name
}

// keeper opens an engine that keeps n Pods warm.
func (c *cluster) keeper(t testing.TB, namespace string, n int, change func(*kube.Config)) *kube.Engine {
	t.Helper()
	cfg := c.config()
	cfg.Namespace, cfg.Warm = namespace, n
	if change != nil {
		change(&cfg)
	}
	e, err := kube.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// podOf returns the Pod of a guest.
func podOf(t testing.TB, e *kube.Engine, id string) (pod struct{ Pod, UID string }) {
	t.Helper()
	st, err := e.State(t.Context(), id)
	if err == nil {
		err = json.Unmarshal(st.Data, &pod)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestWarm_ClaimWorks claims a Pod, uses it by another engine too, and looks for what is left.
func TestWarm_ClaimWorks(t *testing.T) {
	c := onCluster(t)
	namespace := c.namespace(t)
	first, second := c.keeper(t, namespace, 2, nil), c.keeper(t, namespace, 2, nil)
	if err := first.KeepWarm(t.Context(), c.warm()); err != nil {
		t.Fatal(err)
	}
	awaitWarm(t, second, 2)
	if list, err := second.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("warm Pods count as guests: %+v, %v", list, err)
	}
	g, err := second.Create(within(t), "claimed", c.warm()) // of a Pod that the other has made
	if err != nil {
		t.Fatal(err)
	}
	pod := podOf(t, second, "claimed")
	if !strings.HasPrefix(pod.Pod, "warm-") {
		t.Fatalf("the guest has the Pod %s, which is not a warm one", pod.Pod)
	}
	conn, err := g.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, conn, "to a claimed Pod")
	list, err := first.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != "claimed" {
		t.Fatalf("the other engine lists %+v, %v", list, err)
	}
	theirs, err := first.Recover(within(t), list[0])
	if err != nil {
		t.Fatal(err)
	}
	awaitWarm(t, first, 2) // it has made another one: its look shows what is missing
	if err := theirs.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
	if exit, err := g.Wait(within(t)); err != nil || exit.Reason != engine.ExitDestroyed {
		t.Errorf("the engine that claimed it sees %+v, %v; want that it was destroyed", exit, err)
	}
	first.Close()
	second.Close()
	polltest.Until(t, time.Minute, "no Pod is left", func() bool { return len(c.pods(t.Context(), namespace)) == 0 })
}

// TestWarm_ThreeReplicasClaimAtOnce: all guests have different Pods, whoever wins a race, and
// the engines together make hardly more warm Pods than they shall.
func TestWarm_ThreeReplicasClaimAtOnce(t *testing.T) {
	const replicas, wanted, claims = 3, 32, 30
	c := onCluster(t)
	namespace := c.namespace(t)
	var engines []*kube.Engine
	for range replicas {
		e := c.keeper(t, namespace, wanted, nil)
		if err := e.KeepWarm(t.Context(), c.warm()); err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	for _, e := range engines {
		awaitWarm(t, e, wanted)
	}
	if n := len(c.pods(t.Context(), namespace)); n > wanted+replicas {
		t.Errorf("there are %d warm Pods, want at most %d", n, wanted+replicas)
	}
	type outcome struct {
		err  error
		took time.Duration
	}
	outcomes := make([]outcome, claims)
	start := make(chan struct{})
	var ended sync.WaitGroup
	for i := range outcomes {
		e, id := engines[i%replicas], fmt.Sprintf("claim-%d", i)
		ended.Go(func() {
			<-start
			begun := time.Now()
			_, err := e.Create(t.Context(), id, c.warm())
			outcomes[i] = outcome{err: err, took: time.Since(begun)}
		})
	}
	close(start)
	ended.Wait()
	seen := make(map[string]int)
	var warm, cold []time.Duration
	for i, o := range outcomes {
		if o.err != nil {
			t.Errorf("claim %d: %v", i, o.err)
			continue
		}
		pod := podOf(t, engines[i%replicas], fmt.Sprintf("claim-%d", i))
		if other, ok := seen[pod.UID]; ok {
			t.Errorf("the claims %d and %d got the same Pod %s", i, other, pod.Pod)
		}
		seen[pod.UID] = i
		if strings.HasPrefix(pod.Pod, "warm-") {
			warm = append(warm, o.took)
		} else {
			cold = append(cold, o.took)
		}
	}
	// The cluster agrees: each Pod has one holder and one id.
	for _, p := range c.pods(t.Context(), namespace) {
		i, claimed := seen[p.Metadata.UID]
		if claimed && p.Metadata.Annotations["glovebox.dev/id"] != fmt.Sprintf("claim-%d", i) {
			t.Errorf("Pod %s of claim %d is that of %q", p.Metadata.Name, i, p.Metadata.Annotations["glovebox.dev/id"])
		}
	}
	if len(warm) < claims/2 {
		t.Errorf("%d of %d claims got a warm Pod", len(warm), claims)
	}
	t.Logf("%d claims got a warm Pod, median %v; %d made one, median %v", len(warm), median(warm), len(cold), median(cold))
}

// median returns the middle duration, 0 of none.
func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	if len(list) == 0 {
		return 0
	}
	return list[len(list)/2].Round(time.Millisecond)
}

// victimEnv makes TestWarm_Victim claim a Pod in a namespace, and wait to be killed.
const victimEnv = "GLOVEBOX_TEST_KUBE_VICTIM"

// TestWarm_Victim is the replica that TestWarm_ReplicaIsKilledBeforeUse kills.
func TestWarm_Victim(t *testing.T) {
	namespace := os.Getenv(victimEnv)
	if namespace == "" {
		t.Skip("another test runs it")
	}
	c := onCluster(t)
	e := c.keeper(t, namespace, 1, nil)
	if _, err := e.Create(within(t), "victim", c.warm()); err != nil {
		t.Fatal(err)
	}
	fmt.Println("\nclaimed " + podOf(t, e, "victim").Pod)
	select {} // until it is killed
}

// TestWarm_ReplicaIsKilledBeforeUse: a claimed Pod ends with its holder's Lease, not as a warm
// one that anybody may claim.
func TestWarm_ReplicaIsKilledBeforeUse(t *testing.T) {
	c := onCluster(t)
	namespace := c.namespace(t)
	e := c.keeper(t, namespace, 1, nil)
	if err := e.KeepWarm(t.Context(), c.warm()); err != nil {
		t.Fatal(err)
	}
	awaitWarm(t, e, 1)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestWarm_Victim$", "-test.v")
	cmd.Env = append(os.Environ(), victimEnv+"="+namespace)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pod, text := "", ""
	for lines := bufio.NewScanner(out); pod == "" && lines.Scan(); {
		text += lines.Text() + "\n"
		pod, _ = strings.CutPrefix(cmp.Or(lines.Text(), " "), "claimed ")
		if pod == lines.Text() || pod == " " {
			pod = ""
		}
	}
	cmd.Process.Kill()
	cmd.Wait() // killed
	if !strings.HasPrefix(pod, "warm-") {
		t.Fatalf("the other replica claimed the Pod %q: %s", pod, text)
	}
	has := func() bool {
		return slices.ContainsFunc(c.pods(t.Context(), namespace), func(p *kubeapi.Pod) bool {
			return p.Metadata.Name == pod && p.Metadata.DeletionTimestamp == nil
		})
	}
	e.SweepLater(t.Context(), 59*time.Minute)
	if !has() {
		t.Error("the claimed Pod is removed before its holder's Lease has ended")
	}
	if _, err := e.Create(within(t), "other", c.warm()); err != nil {
		t.Error(err)
	} else if got := podOf(t, e, "other").Pod; got == pod {
		t.Errorf("the Pod %s was claimed twice", pod)
	}
	e.SweepLater(t.Context(), time.Hour)
	polltest.Until(t, time.Minute, "the claimed Pod is removed", func() bool { return !has() })
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != "other" {
		t.Errorf("afterwards the guests are %+v, %v; want the engine's own", list, err)
	}
}

// TestWarm_PodsOfAnotherSpecAreNotTaken: nor those of another version, nor a forged one.
func TestWarm_PodsOfAnotherSpecAreNotTaken(t *testing.T) {
	c := onCluster(t)
	namespace := c.namespace(t)
	e := c.keeper(t, namespace, 1, nil)
	if err := e.KeepWarm(t.Context(), c.warm()); err != nil {
		t.Fatal(err)
	}
	awaitWarm(t, e, 1)
	i := slices.IndexFunc(c.pods(t.Context(), namespace), func(p *kubeapi.Pod) bool { return p.Metadata.Labels[warmLabel] == "true" })
	if i < 0 {
		t.Fatal("the warm Pod is gone")
	}
	genuine := c.pods(t.Context(), namespace)[i]
	cold := func(e *kube.Engine, id string, spec *engine.Spec) {
		t.Helper()
		g, err := e.Create(within(t), id, spec)
		if err != nil {
			t.Fatal(err)
		}
		if pod := podOf(t, e, id).Pod; pod != "box-"+id {
			t.Errorf("%s has the Pod %s, want one of its own", id, pod)
		}
		if err := g.Destroy(within(t)); err != nil {
			t.Error(err)
		}
	}
	larger := c.warm()
	larger.Limits.MemoryMB = 200
	cold(e, "larger", larger)
	cold(c.keeper(t, namespace, 1, func(cfg *kube.Config) { cfg.ProgramVersion = "v0" }), "version", c.warm())
	cold(c.keeper(t, namespace, 0, nil), "none", c.warm())

	// A Pod with all the right labels, which runs something else on the node's kernel.
	forged := &kubeapi.Pod{Metadata: kubeapi.Meta{
		Name: "warm-" + strings.Repeat("f", 32), Labels: genuine.Metadata.Labels, Annotations: genuine.Metadata.Annotations,
	}, Spec: genuine.Spec}
	forged.Spec.RuntimeClassName = ""
	forged.Spec.Containers = slices.Clone(forged.Spec.Containers)
	forged.Spec.Containers[0].Command = []string{"/bin/sleep", "1000"}
	if _, err := c.api.CreatePod(t.Context(), namespace, forged); err != nil {
		t.Fatal(err)
	}
	awaitWarm(t, e, 2)
	if err := c.api.DeletePod(t.Context(), namespace, genuine.Metadata.Name, genuine.Metadata.UID, 1); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, time.Minute, "only the forged Pod is left", func() bool { return e.WarmKnown() == 1 })
	cold(e, "forged", c.warm())
	if p, err := c.api.GetPod(t.Context(), namespace, forged.Metadata.Name); err != nil || p.Metadata.Labels[holderLabel] != "" || p.Metadata.Labels[specLabel] == "" {
		t.Errorf("the forged Pod is %+v, %v; want it left alone", p.Metadata, err)
	}
}

// BenchmarkWarm measures Create with a warm Pod and without, in turns on the same cluster.
func BenchmarkWarm(b *testing.B) {
	c := onCluster(b)
	namespace := c.namespace(b)
	warm, cold := c.keeper(b, namespace, 1, nil), c.keeper(b, namespace, 0, nil)
	if err := warm.KeepWarm(b.Context(), c.warm()); err != nil {
		b.Fatal(err)
	}
	for _, kind := range []struct {
		name string
		e    *kube.Engine
	}{{"claim", warm}, {"cold", cold}} {
		b.Run(kind.name, func(b *testing.B) {
			var took, dialled []time.Duration
			for b.Loop() {
				if kind.e == warm {
					b.StopTimer()
					awaitWarm(b, warm, 1)
					b.StartTimer()
				}
				begun := time.Now()
				g, err := kind.e.Create(b.Context(), "bench", c.warm())
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
				conn, err := g.Dial(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				dialled = append(dialled, time.Since(begun))
				b.StopTimer()
				if pod := podOf(b, kind.e, "bench").Pod; strings.HasPrefix(pod, "warm-") != (kind.e == warm) {
					b.Fatalf("the guest has the Pod %s", pod)
				}
				conn.Close()
				if err := g.Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(median(took).Milliseconds()), "p50-ms/create")
			b.ReportMetric(float64(median(dialled).Milliseconds()), "p50-ms/dialled")
		})
	}
}
