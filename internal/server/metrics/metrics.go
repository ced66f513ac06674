// Package metrics counts and measures what the server does, for Prometheus. It
// has a registry of its own. Every label has a closed set of values that is known
// when the program is built, or when it starts: nothing that a client, a guest or
// an owner chose becomes one.
//
// What changes with every call is counted when it happens; what is there at one
// moment is asked for when somebody looks.
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
	"github.com/glovebox-dev/glovebox/internal/server"
)

const (
	// scrapes is how many may look at once: each lists what is on disk.
	scrapes = 2
	// scrapeLimit ends one that takes too long, which a disk in trouble may make.
	scrapeLimit = 10 * time.Second
)

// Options says what is measured. All functions are called at each look, from any
// goroutine; nil: there is none of it.
type Options struct {
	Version, Commit, GVisor string // of the build
	Tools                   []string

	Host   func() Host
	Server func() server.Stats
	Boxes  func() box.Stats
	Pool   func() pool.Stats
	Ready  func() bool
}

// A Host is what boxes run on.
type Host struct {
	Engine, Kernel, Isolation string // name, version and kind of the engine
	DiskLimit                 int64  // bytes that snapshots may take; 0: there are none
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

// New returns metrics that have counted nothing yet.
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

// Handler serves the metrics as text.
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

// Refusal counts a request that was refused before a handler, by its status of
// HTTP.
func (m *Metrics) Refusal(status int) {
	m.refusals.WithLabelValues(oneOf(strconv.Itoa(status), statuses)).Inc()
}

// Box measures what happened to a box.
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

// gauges are what is there at one moment.
type gauges struct{ m *Metrics }

// Describe sends nothing, which makes the collector an unchecked one: what there
// is to tell depends on the parts that the server has.
func (g gauges) Describe(chan<- *prometheus.Desc) {}

// Collect asks the parts of the server.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	o := &g.m.opts
	ch <- buildInfo.of(1, o.Version, o.Commit, o.GVisor)
	if o.Host != nil {
		h := o.Host()
		ch <- engineInfo.of(1, h.Engine, h.Kernel, h.Isolation)
	}
	if o.Ready != nil {
		ch <- ready.of(boolean(o.Ready()))
	}
	if o.Server != nil {
		s := o.Server()
		ch <- connections.of(float64(s.Connections))
		ch <- sessions.of(float64(s.Sessions))
		ch <- streams.of(float64(s.Streams))
		ch <- calls.of(float64(s.Calls))
	}
	if o.Boxes != nil {
		g.boxes(ch, o.Boxes())
	}
	if o.Pool != nil {
		for _, c := range o.Pool() {
			template, flavor := oneOf(c.Class.Template, templates), oneOf(c.Class.Flavor, flavors)
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
	// Every series is always there, so that a graph has no holes.
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
	ch <- boxCalls.of(float64(st.Running), "running")
	ch <- boxCalls.of(float64(st.Queued), "queued")
	ch <- evictions.of(float64(st.Evicted))
	ch <- oomKills.of(float64(st.Ended[box.ReasonOOM]))
	if host := g.m.opts.Host; host != nil && host().DiskLimit > 0 {
		ch <- disk.of(float64(st.DiskBytes))
		ch <- diskLimit.of(float64(host().DiskLimit))
		ch <- snapshots.of(float64(st.Snapshots))
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
