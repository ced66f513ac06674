package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// DefaultRuntimeClass is the runtime class of Pods unless Config names another.
const DefaultRuntimeClass = "gvisor"

// Config is the configuration of the engine.
type Config struct {
	// Cluster selects the cluster.
	Cluster kubeconfig.Options
	// Namespace has the Pods. Default: that of the context.
	Namespace string
	// RuntimeClass is the runtime class of Pods, which must exist. Default: gvisor.
	RuntimeClass string
	// Helper is the program of cmd/glovebox-pod, with Image. Required.
	Helper engine.Program
	// OrphanAfter is how long Pods live on whose holder does not renew its Lease.
	// Default: an hour.
	OrphanAfter time.Duration
	// SweepEvery is the interval in which such Pods are looked for. 0: never.
	SweepEvery time.Duration
	// Warm is how many warm Pods each spec of KeepWarm has, in the whole namespace. Create
	// takes them, whichever engine has made them. At most MaxWarm; 0: none.
	Warm int
	// ProgramVersion is the version of this program. Engines of other versions take no warm Pods
	// of this one, nor the other way around.
	ProgramVersion string
	// Address is where the servers of the namespace reach this one, see Engine.Fleet. The
	// zero value: it shares its boxes with none.
	Address netip.AddrPort
	// Log is the engine's log. Default: discarded.
	Log *slog.Logger
}

// Engine runs guests as Pods. It implements engine.Engine and engine.Recoverer.
type Engine struct {
	api       *kubeapi.Client
	place     string // URL of the API
	namespace string
	class     string
	helper    engine.Program
	version   string
	log       *slog.Logger
	set       *guests.Set[*guest]
	holder    *holder
	target    int    // of warm Pods
	program   string // version of the program
	warm      warmPods
	servers   sightings

	running context.Context // of background work; ended by Close
	stop    context.CancelFunc
	workers sync.WaitGroup
	close   sync.Once

	mu   sync.Mutex
	byID map[string]*guest // guarded by mu; living guests of this engine by UID of their Pod
	// early has the last event of each Pod that is being created, by name: the watch may tell that
	// it runs before the answer to its creation is here.
	early map[string]kubeapi.Event // guarded by mu
}

var (
	_ engine.Engine    = (*Engine)(nil)
	_ engine.Recoverer = (*Engine)(nil)
)

// Open connects to the cluster and returns an engine. The caller closes it.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	cluster, err := kubeconfig.Load(cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("open the Kubernetes engine: %w", err)
	}
	if cfg.Helper.Image == nil || cfg.Helper.Image.Name == "" {
		return nil, fmt.Errorf("open the Kubernetes engine: Config.Helper names no image with the helper: %w", engine.ErrInvalid)
	}
	if cfg.Warm < 0 || cfg.Warm > MaxWarm {
		return nil, fmt.Errorf("open the Kubernetes engine: %d warm Pods: want 0 to %d: %w", cfg.Warm, MaxWarm, engine.ErrInvalid)
	}
	e := &Engine{
		servers: sightings{unused: rate.Sometimes{Interval: time.Minute}},
		api:     kubeapi.New(cluster), place: cluster.Server.String(), namespace: cmp.Or(cfg.Namespace, cluster.Namespace),
		class: cmp.Or(cfg.RuntimeClass, DefaultRuntimeClass), helper: cfg.Helper,
		log: cfg.Log, set: guests.NewSet[*guest](), byID: make(map[string]*guest),
		target: cfg.Warm, program: cfg.ProgramVersion,
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if err := e.open(ctx, cfg); err != nil {
		e.api.Close()
		return nil, fmt.Errorf("open the Kubernetes engine: %w", err)
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context, cfg Config) (err error) {
	if e.version, err = e.api.Version(ctx); err != nil {
		return err
	}
	exists, err := e.api.RuntimeClassExists(ctx, e.class)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("the cluster has no runtime class %q, so Pods would share the nodes' kernel: install gVisor or Kata Containers, or name another class: %w", e.class, engine.ErrUnavailable)
	}
	policy := denyAll()
	switch err := e.api.EnsureNetworkPolicy(ctx, e.namespace, policy); {
	case errors.Is(err, kubeapi.ErrOtherPolicy):
		return fmt.Errorf("%w; correct it, or delete it so that it is made anew: kubectl delete networkpolicy %s -n %s: %w", err, policy.Metadata.Name, e.namespace, engine.ErrUnavailable)
	case err != nil:
		e.log.Warn("no network policy denies the Pods of boxes all traffic; boxes have no network, but the helpers beside them do",
			logkey.Fix, "allow the role to create networkpolicies: see docs/kubernetes.md", logkey.Error, err)
	}
	if e.holder, err = newHolder(ctx, e.api, e.namespace, cfg.Address, e.log); err != nil {
		return err
	}
	version, err := e.list(ctx)
	if err != nil {
		e.holder.close()
		return err
	}
	e.running, e.stop = context.WithCancel(context.Background())
	e.workers.Go(func() { e.watch(e.running, version) })
	e.workers.Go(func() { e.holder.renew(e.running) })
	if cfg.SweepEvery > 0 {
		after := cmp.Or(cfg.OrphanAfter, time.Hour)
		e.workers.Go(func() { e.sweepEvery(e.running, cfg.SweepEvery, after) })
	}
	return nil
}

// Place identifies the cluster: the URL of its API.
func (e *Engine) Place() string { return e.place }

// OfCluster reports whether an error is about the cluster or the connection to it, not about this
// machine or the settings.
func OfCluster(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	return err != nil && (network || errors.Is(err, kubeconfig.ErrNone) || errors.Is(unavailable(err), engine.ErrUnavailable))
}

// Info describes the engine.
func (e *Engine) Info() engine.Info {
	return engine.Info{
		Name: Name, Version: cmp.Or(e.version, "unknown"), Isolation: engine.IsolationPod,
		Limits: []engine.Limit{
			{Resource: "cpu", Hard: true, By: "control group of the Pod"},
			{Resource: "memory", Hard: true, By: "control group of the Pod"},
		},
	}
}

// Create takes a warm Pod of the spec, or starts a Pod. See engine.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, fmt.Errorf("create guest: %w", err)
	}
	g, err := e.set.Create(ctx, id, func(ctx context.Context, release func()) (*guest, error) {
		pod, err := e.pod(ctx, id, spec)
		if err != nil {
			return nil, err
		}
		if e.target > 0 && warmable(spec) {
			if claimed := e.claim(ctx, id, pod); claimed != nil {
				return e.await(ctx, e.adopt(id, claimed, release))
			}
		}
		return e.boot(ctx, id, pod, release)
	})
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return g, nil
}

// createWait bounds the request that creates a Pod. It does not end with the caller's
// context: whether the Pod exists would be unknown then.
const createWait = 20 * time.Second

// boot creates the Pod and waits until it runs.
func (e *Engine) boot(ctx context.Context, id string, pod *kubeapi.Pod, release func()) (*guest, error) {
	defer e.expect(pod.Metadata.Name)()
	creating, cancel := context.WithTimeout(context.WithoutCancel(ctx), createWait)
	stored, err := e.api.CreatePod(creating, e.namespace, pod)
	cancel()
	if err != nil {
		if kubeapi.Code(err) == 0 {
			e.removeUnknown(pod)
		}
		return nil, creationError(err)
	}
	return e.await(ctx, e.adopt(id, stored, release))
}

// await waits until the Pod of a new guest runs. After an error the Pod is gone.
func (e *Engine) await(ctx context.Context, g *guest) (_ *guest, err error) {
	select {
	case <-g.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		err = g.failure()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		g.abandon()
		return nil, err
	}
	return g, nil
}

// removeUnknown deletes a Pod of which it is unknown whether the cluster has created it.
// The cluster may create it later still; its holder's Lease bounds its life then.
func (e *Engine) removeUnknown(pod *kubeapi.Pod) {
	ctx, cancel := context.WithTimeout(context.Background(), createWait)
	defer cancel()
	p, err := e.api.GetPod(ctx, e.namespace, pod.Metadata.Name)
	if err != nil || p.Metadata.Annotations[nonceAnnotation] != pod.Metadata.Annotations[nonceAnnotation] {
		return
	}
	if err := e.api.DeletePod(ctx, e.namespace, p.Metadata.Name, p.Metadata.UID, graceSeconds); err != nil {
		e.log.Warn("a Pod is left behind until its holder's Lease ends", logkey.Guest, pod.Metadata.Name, logkey.Error, err)
	}
}

// creationError wraps the answer to the creation of a Pod in a sentinel.
func creationError(err error) error {
	sentinel := engine.ErrUnavailable
	var s *kubeapi.StatusError
	if errors.As(err, &s) {
		switch s.Code {
		case http.StatusConflict:
			return engine.ErrExists
		case http.StatusUnprocessableEntity, http.StatusBadRequest:
			sentinel = engine.ErrInvalid
		case http.StatusForbidden:
			if exhausted(s.Message) {
				sentinel = engine.ErrExhausted
			}
		}
	}
	return fmt.Errorf("%w: %w", err, sentinel)
}

// Close destroys the guests of this engine, and the warm Pods that it has made.
func (e *Engine) Close() error {
	e.set.Close()
	e.close.Do(func() {
		e.stop()
		e.workers.Wait()
		e.removeOwnWarm()
		e.holder.close()
		e.api.Close()
	})
	return nil
}
