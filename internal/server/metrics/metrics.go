// Package metrics exports metrics of the server to Prometheus, from a registry of its
// own. Each label has a closed set of values, known when the program is built or
// starts: nothing that a client, guest or owner chose becomes a label.
//
// Events update counters and histograms. Gauges are read at each scrape.
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/server"
)

const (
	// scrapes bounds concurrent scrapes. Each lists the snapshots on disk.
	scrapes = 2
	// scrapeLimit bounds one scrape, which a slow disk can hold up.
	scrapeLimit = 10 * time.Second
)

// Options are the sources of the metrics. The functions are called at each scrape,
// concurrently; nil leaves their metrics out.
type Options struct {
	Version, Commit, GVisor string // of the build
	Tools                   []string

	Host   func() Host
	Server func() server.Stats
	Boxes  func() box.Stats
	Pool   func() pool.Stats
	Ready  func() bool
	Code   func() (used, limit int64) // memory of the calls of code, in bytes
	Egress func() egress.Stats
	// Volumes describes the volumes with quotas; ok is false if there are none.
	Volumes func() (st volume.Stats, ok bool)
}

// Host describes the engine and its limits.
type Host struct {
	Engine, Kernel, Isolation string // name, version and kind of the engine
	DiskLimit                 int64  // bytes that snapshots may use; 0: no snapshots

	// Of the disk that boxes write to, in bytes; all zero: there is none.
	DiskFree, DiskReserved, DiskRoom int64
}

// Metrics are the metrics of one server. All methods may be called concurrently.
type Metrics struct {
	opts     Options
	registry *prometheus.Registry

	requests   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	errors     *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	starts     *prometheus.HistogramVec
	hibernates *prometheus.HistogramVec
}

// New returns metrics whose counters are 0.
func New(opts Options) *Metrics {
	m := &Metrics{
		opts:       opts,
		registry:   prometheus.NewRegistry(),
		requests:   requests.counter(),
		durations:  durations.histogram(requestBuckets),
		errors:     errorCodes.counter(),
		refusals:   refusals.counter(),
		starts:     starts.histogram(boxBuckets),
		hibernates: hibernations.histogram(boxBuckets),
	}
	m.opts.Tools = slices.Sorted(slices.Values(opts.Tools))
	m.registry.MustRegister(
		m.requests, m.durations, m.errors, m.refusals, m.starts, m.hibernates, gauges{m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Handler serves the metrics in Prometheus text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: scrapes, Timeout: scrapeLimit,
	})
}

// Request counts a request that reached a handler.
func (m *Metrics) Request(o server.Observation) {
	method, tool := oneOf(o.Method, methods), ""
	if _, known := slices.BinarySearch(m.opts.Tools, o.Tool); known {
		tool = o.Tool
	}
	outcome := "ok"
	switch {
	case o.Code != 0:
		outcome = "error"
		m.errors.WithLabelValues(oneOf(strconv.FormatInt(o.Code, 10), codes)).Inc()
	case o.ToolErr:
		outcome = "tool_error"
	}
	m.requests.WithLabelValues(method, tool, outcome).Inc()
	m.durations.WithLabelValues(method, tool).Observe(o.Duration.Seconds())
}

// Refusal counts a request that was refused before a handler, by HTTP status.
func (m *Metrics) Refusal(status int) {
	m.refusals.WithLabelValues(oneOf(strconv.Itoa(status), statuses)).Inc()
}

// Box records an event of a box.
func (m *Metrics) Box(e box.Event) {
	outcome := "ok"
	if e.Failed {
		outcome = "error"
	}
	switch e.Type {
	case box.EventStart:
		m.starts.WithLabelValues(oneOf(string(e.Source), sources), outcome).Observe(e.Took.Seconds())
	case box.EventHibernate:
		m.hibernates.WithLabelValues(outcome).Observe(e.Took.Seconds())
	}
}

// gauges collects the metrics that are read at each scrape.
type gauges struct{ m *Metrics }

// Describe sends nothing, which makes the collector unchecked: its metrics depend on
// the sources that are set.
func (g gauges) Describe(chan<- *prometheus.Desc) {}

// Collect reads the sources.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	o := &g.m.opts
	ch <- buildInfo.of(1, o.Version, o.Commit, o.GVisor)
	if o.Host != nil {
		h := o.Host()
		ch <- engineInfo.of(1, h.Engine, h.Kernel, h.Isolation)
		if h.DiskFree > 0 || h.DiskRoom != 0 {
			ch <- diskFree.of(float64(h.DiskFree))
			ch <- diskReserved.of(float64(h.DiskReserved))
			ch <- diskRoom.of(float64(h.DiskRoom))
		}
	}
	if o.Ready != nil {
		ch <- ready.of(boolean(o.Ready()))
	}
	if o.Server != nil {
		s := o.Server()
		ch <- connections.of(float64(s.Connections))
		ch <- dropped.of(float64(s.Dropped))
		ch <- unread.of(float64(s.Unread))
		ch <- sessions.of(float64(s.Sessions))
		ch <- streams.of(float64(s.Streams))
		ch <- calls.of(float64(s.Calls))
	}
	if o.Boxes != nil {
		g.boxes(ch, o.Boxes())
	}
	if o.Code != nil {
		used, limit := o.Code()
		ch <- codeMemory.of(float64(used))
		ch <- codeMemoryLimit.of(float64(limit))
	}
	if o.Egress != nil {
		g.egress(ch, o.Egress())
	}
	if o.Volumes != nil {
		if st, ok := o.Volumes(); ok {
			ch <- volumesOver.of(float64(st.Over))
			send(ch, volumeScans, st.Scans, scanResults)
		}
	}
	if o.Pool != nil {
		for _, c := range o.Pool() {
			template, flavor := oneOf(c.Class.Interpreter, templates), oneOf(c.Class.Flavor, flavors)
			ch <- poolReady.of(float64(c.Ready), template, flavor)
			ch <- poolWanted.of(float64(c.Wanted), template, flavor)
			ch <- poolMade.of(float64(c.Made), template, flavor)
			ch <- poolTaken.of(float64(c.HandedOut), template, flavor)
			ch <- poolFailed.of(float64(c.Failed), template, flavor)
			ch <- poolLost.of(float64(c.Lost), template, flavor)
		}
	}
}

func (g gauges) boxes(ch chan<- prometheus.Metric, st box.Stats) {
	// Export every series, also at 0, so that graphs have no gaps.
	count := map[[3]string]int{}
	for _, state := range states {
		for _, kind := range kinds {
			for _, flavor := range flavors {
				count[[3]string{state, kind, flavor}] = 0
			}
		}
	}
	for c, n := range st.Boxes {
		count[[3]string{oneOf(string(c.State), states), oneOf(string(c.Kind), kinds), oneOf(string(c.Flavor), flavors)}] += n
	}
	for labels, n := range count {
		ch <- boxes.of(float64(n), labels[:]...)
	}
	ended := map[string]int64{}
	for _, r := range reasons {
		ended[r] = 0
	}
	for r, n := range st.Ended {
		ended[oneOf(string(r), reasons)] += n
	}
	for r, n := range ended {
		ch <- boxesEnded.of(float64(n), r)
	}
	ch <- boxesLimit.of(float64(st.MaxSessions), string(box.KindSession))
	ch <- boxesLimit.of(float64(st.MaxContexts), string(box.KindContext))
	ch <- boxesMemory.of(float64(st.MemoryMB) * (1 << 20))
	if st.MaxMemoryMB > 0 {
		ch <- boxesMemoryLimit.of(float64(st.MaxMemoryMB) * (1 << 20))
	}
	ch <- boxesStarting.of(float64(st.Starting))
	ch <- boxesUnwritten.of(float64(st.Unwritten))
	ch <- boxCalls.of(float64(st.Running), "running")
	ch <- boxCalls.of(float64(st.Queued), "queued")
	ch <- evictions.of(float64(st.Evicted))
	ch <- oomKills.of(float64(st.Ended[box.ReasonOOM]))
	if host := g.m.opts.Host; host != nil && host().DiskLimit > 0 {
		ch <- disk.of(float64(st.DiskBytes))
		ch <- diskLimit.of(float64(host().DiskLimit))
		ch <- snapshots.of(float64(st.Snapshots))
		ch <- keptBytes.of(float64(st.KeptBytes))
	}
}

func (g gauges) egress(ch chan<- prometheus.Metric, st egress.Stats) {
	ch <- egressOpen.of(float64(st.Open))
	send(ch, egressConnections, st.Connections, egressOutcomes)
	send(ch, egressRefusals, st.Refusals, egressReasons)
	send(ch, egressLookups, st.Lookups, lookups)
	ch <- egressBytes.of(float64(st.Sent), "sent")
	ch <- egressBytes.of(float64(st.Received), "received")
}

// send sends a counter with one label for each value of a closed set, also at 0.
func send[K ~string](ch chan<- prometheus.Metric, m *metric, counts map[K]uint64, set []string) {
	sums := make(map[string]uint64, len(set))
	for _, v := range set {
		sums[v] = 0
	}
	for v, n := range counts {
		sums[oneOf(string(v), set)] += n
	}
	for v, n := range sums {
		ch <- m.of(float64(n), v)
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
