package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/server/metrics"
	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
	"github.com/glovebox-dev/glovebox/internal/tracing/otlp"
)

// ready waits until the pool is full. It returns an error if no box could be created at
// all, and logs a warning if only some could. It returns nil if ctx ends.
func (h *host) ready(ctx context.Context) error {
	begun := time.Now()
	h.log.Info("health check begins: filling the pool, every box runs code", logkey.Engine, h.engine.Info().Name)
	err := h.manager.Ready(ctx)
	some, members, wanted := false, 0, 0
	for _, c := range h.manager.Pool() {
		some = some || c.Ready+c.HandedOut > 0
		members += c.Ready
		wanted += c.Wanted
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && some:
		h.log.Warn("health check passed in part: some kinds of boxes cannot be created", logkey.Engine, h.engine.Info().Name, logkey.Error, err)
	case err != nil:
		return withHint(fmt.Errorf("health check failed: %w", err), "%s", unitHint()+"glovebox doctor shows what is missing; --pool-size 0 skips the check")
	case wanted > 0:
		h.log.Info("health check passed: the pool is full", logkey.Engine, h.engine.Info().Name,
			logkey.Pool, fmt.Sprintf("%d/%d", members, wanted), logkey.Took, time.Since(begun).Round(time.Millisecond))
	default:
		h.log.Info("health check passed: the engine is up, no pool", logkey.Engine, h.engine.Info().Name)
	}
	h.checked.Store(true)
	return nil
}

// unready returns why new clients should not connect yet. The reasons are public.
func (h *host) unready() []string { return unreadyReasons(h.checked.Load(), h.manager.Pool()) }

// unreadyReasons returns the reasons against new clients: that the health check is not over, or
// that the pool has no box and none can be created. They name no cause, which may contain paths
// of this machine and is in the log.
func unreadyReasons(checked bool, classes pool.Stats) []string {
	if !checked {
		ready, wanted := 0, 0
		for _, c := range classes {
			ready += c.Ready
			wanted += c.Wanted
		}
		return []string{fmt.Sprintf("the health check is in progress (%d of %d boxes)", ready, wanted)}
	}
	// One working kind is enough: calls that need the other get its error.
	for _, c := range classes {
		if !broken(c) {
			return nil
		}
	}
	if len(classes) == 0 {
		return nil
	}
	return []string{"no box can be created for the pool; see the server's log"}
}

// broken reports whether no box is ready and the last attempt failed.
func broken(c pool.ClassStats) bool { return c.Ready == 0 && c.LastError != nil }

// metrics returns the metrics of the server on h. opts has the sources of the server's
// own values.
func (h *host) metrics(cfg *config.Config, opts metrics.Options) *metrics.Metrics {
	opts.Version, opts.Commit = buildVersion()
	opts.GVisor, _, _ = engines.Version("gvisor")
	for _, t := range tools.All() {
		opts.Tools = append(opts.Tools, t.Def.Name)
	}
	opts.Host = func() metrics.Host {
		info := h.engine.Info()
		disk := h.diskUse()
		host := metrics.Host{
			Engine: info.Name, Kernel: info.Version, Isolation: string(info.Isolation),
			DiskFree: disk.Free, DiskReserved: disk.Reserved, DiskRoom: disk.Room,
		}
		if cfg.Hibernate && h.maker.Snapshots() {
			host.DiskLimit = int64(cfg.SnapshotDiskMB) << 20
		}
		return host
	}
	opts.Boxes = func() box.Stats { return h.manager.Stats() }
	opts.Pool = func() pool.Stats { return h.manager.Pool() }
	opts.Volumes = func() (volume.Stats, bool) { return h.volumes.Stats(), h.volumes.HasQuotas() }
	return metrics.New(opts)
}

// openTraces opens the exporter of traces; nil without a collector.
func (h *host) openTraces(ctx context.Context, cfg *config.Config, version string) (*otlp.Exporter, error) {
	if cfg.OTLPEndpoint == "" {
		return nil, nil
	}
	e, err := otlp.Open(ctx, cfg.OTLPEndpoint, version, h.log)
	if err != nil {
		return nil, withHint(err, "set --otlp-endpoint to the URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318")
	}
	h.log.Info("sending traces", logkey.Endpoint, cfg.OTLPEndpoint)
	return e, nil
}

// status returns the part of the server's JSON status on boxes.
func (h *host) status(context.Context) map[string]any {
	s := h.manager.Stats()
	ready := map[string]int{}
	for _, c := range h.manager.Pool() {
		ready[c.Class.Interpreter] += c.Ready
	}
	return map[string]any{
		"engine":          h.engine.Info().Name,
		"sessions":        s.Sessions,
		"max_sessions":    s.MaxSessions,
		"contexts":        s.Contexts,
		"max_contexts":    s.MaxContexts,
		"boxes_by_state":  s.States,
		"total_memory_mb": s.MemoryMB,
		"total_cpus":      s.CPUs,
		"hibernated":      s.Hibernated,
		"pool_ready":      ready,
		"uptime_seconds":  int(s.Uptime.Seconds()),
	}
}

// shownBoxes bounds the boxes on the status page.
const shownBoxes = 100

// page adds boxes to the status page: counts of all, but ids and names only of the
// requester's own.
func (h *host) page(cfg *config.Config, p *statuspage.Page) {
	s := h.manager.Stats()
	p.Uptime = s.Uptime
	if p.State == statuspage.Degraded && !h.checked.Load() {
		p.State = statuspage.Starting
	}
	p.Tiles = append(p.Tiles,
		statuspage.Tile{Label: "running", Value: s.States[box.StateRunning]},
		statuspage.Tile{Label: "ready", Value: s.States[box.StateReady] + s.States[box.StateCreating]},
		statuspage.Tile{Label: "paused", Value: s.States[box.StatePaused]},
		statuspage.Tile{Label: "hibernated", Value: s.Hibernated, Note: "on disk"},
	)
	p.Limits = append(p.Limits, boxLimits(&s, cfg.LRUEviction)...)
	if cfg.Hibernate && h.maker.Snapshots() {
		p.Limits = append(p.Limits, byteLimit("boxes on disk", s.DiskBytes, int64(cfg.SnapshotDiskMB)<<20))
	}
	for _, c := range h.manager.Pool() {
		p.Pool = append(p.Pool, statuspage.Pool{Kind: c.Class.Interpreter + ", " + c.Class.Flavor, Ready: c.Ready, Wanted: c.Wanted, Trouble: broken(c)})
	}
	if !p.NoBoxes {
		h.ownBoxes(p)
	}
	p.Versions = h.versions(time.Now())
	p.Settings = []statuspage.Fact{
		{Name: "default size of a box", Value: cfg.DefaultFlavor},
		{Name: "default time limit of code", Value: fmt.Sprintf("%s in a session, %s in a context", statuspage.Span(cfg.ExecutionTimeout), statuspage.Span(cfg.ContextTimeout))},
		{Name: "idle boxes leave memory after", Value: statuspage.Span(cfg.SessionTimeout)},
		{Name: "hibernated boxes are kept for", Value: statuspage.Span(cfg.HibernateMaxAge)},
		{Name: "a stop waits for running calls", Value: "up to " + statuspage.Span(cfg.DrainTimeout)},
	}
}

// ownBoxes adds the requester's boxes to the status page, the newest first.
func (h *host) ownBoxes(p *statuspage.Page) {
	boxes, err := h.manager.List(box.Owner(p.Subject), "")
	if err != nil {
		p.Why = append(p.Why, err.Error())
	}
	p.More = max(0, len(boxes)-shownBoxes)
	for _, b := range boxes[:len(boxes)-p.More] {
		p.Boxes = append(p.Boxes, statuspage.Box{
			ID: b.ID, Name: b.Name, Kind: string(b.Kind), Template: string(b.Interpreter), Flavor: string(b.Flavor), State: string(b.State),
			Created: b.Created, Used: b.LastUsed,
		})
	}
}

func (h *host) versions(now time.Time) []statuspage.Fact {
	v, info := newVersionInfo(now), h.engine.Info()
	list := []statuspage.Fact{
		{Name: "Glovebox", Value: fmt.Sprintf("%s (%.12s)", v.Version, v.Commit)},
		{Name: "engine", Value: fmt.Sprintf("%s, isolation: %s", info.Name, info.Isolation)},
	}
	if g := v.GVisor; g != nil {
		list = append(list, statuspage.Fact{Name: "gVisor", Value: fmt.Sprintf("%s, %s old", g.Version, plural.N(g.AgeDays, "day"))})
	}
	return append(list,
		statuspage.Fact{Name: "Go", Value: v.Go + " " + v.Platform},
		statuspage.Fact{Name: "agent protocol", Value: fmt.Sprint(v.AgentProtocol)})
}

// boxLimits returns the limits of boxes in memory. With eviction, new boxes replace
// idle ones.
func boxLimits(s *box.Stats, eviction bool) []statuspage.Limit {
	idle, idleMB := map[box.Kind]int{}, 0
	for class, n := range s.Boxes {
		if eviction && (class.State == box.StateReady || class.State == box.StatePaused) {
			idle[class.Kind] += n
			idleMB += n * class.Flavor.Limits().MemoryMB
		}
	}
	limits := []statuspage.Limit{
		countLimit("sessions", s.Sessions, idle[box.KindSession], s.MaxSessions),
		countLimit("contexts", s.Contexts, idle[box.KindContext], s.MaxContexts),
	}
	if s.MaxMemoryMB > 0 {
		l := byteLimit("memory of boxes", int64(s.MemoryMB)<<20, int64(s.MaxMemoryMB)<<20)
		l.Idle = float64(idleMB << 20)
		limits = append(limits, l)
	}
	return limits
}

func countLimit(label string, used, idle, max int) statuspage.Limit {
	text := fmt.Sprintf("%d of %d", used, max)
	if idle > 0 {
		text += fmt.Sprintf(", %d idle", idle)
	}
	return statuspage.Limit{Label: label, Used: float64(used), Idle: float64(idle), Max: float64(max), Text: text}
}

func byteLimit(label string, used, max int64) statuspage.Limit {
	const gib = 1 << 30
	return statuspage.Limit{
		Label: label, Used: float64(used), Max: float64(max),
		Text: fmt.Sprintf("%.1f of %.1f GiB", float64(used)/gib, float64(max)/gib),
	}
}
