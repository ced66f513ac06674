package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

//go:generate go run ./docgen ../../../docs/metrics.md

// metric is one family of the table in docs/metrics.md.
type metric struct {
	name   string
	kind   kind
	labels string // separated by spaces
	help   string
}

type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	histogram kind = "histogram"
)

// The upper bounds of histograms, in seconds: a call that needs no box takes less
// than a millisecond, one of the longest five minutes; a box takes from a few
// milliseconds out of the pool to a minute on a machine in trouble.
var (
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	boxBuckets     = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 180}
)

var (
	requests     = &metric{"mcp_requests_total", counter, "method tool outcome", "Requests that reached a handler. Outcome is ok, tool_error (a result that says isError) or error (of the protocol)."}
	durations    = &metric{"mcp_request_duration_seconds", histogram, "method tool", "Time from the handler to its answer."}
	errorCodes   = &metric{"mcp_errors_total", counter, "code", "Errors of the protocol by JSON-RPC code."}
	refusals     = &metric{"mcp_refusals_total", counter, "status", "HTTP requests refused before a handler, by status: what is malformed, not allowed or too much."}
	connections  = &metric{"mcp_active_connections", gauge, "", "Connections of HTTP that are open, idle ones included."}
	sessions     = &metric{"mcp_active_sessions", gauge, "", "MCP sessions that are open, over all transports. Requests of revision 2026-07-28 have none."}
	streams      = &metric{"mcp_active_streams", gauge, "", "Streams over HTTP that only listen: of sessions, and of revision 2026-07-28."}
	calls        = &metric{"mcp_active_requests", gauge, "", "Requests that are being handled."}
	ready        = &metric{"glovebox_ready", gauge, "", "1 when /ready says yes."}
	buildInfo    = &metric{"glovebox_build_info", gauge, "version commit gvisor", "Always 1; the build is in the labels."}
	engineInfo   = &metric{"glovebox_engine_info", gauge, "engine version isolation", "Always 1; what isolates boxes is in the labels."}
	boxes        = &metric{"glovebox_boxes", gauge, "state kind flavor", "Boxes there are, hibernated ones included."}
	boxesLimit   = &metric{"glovebox_boxes_limit", gauge, "kind", "Boxes there may be in memory at once."}
	boxesMemory  = &metric{"glovebox_boxes_memory_bytes", gauge, "", "Memory that the boxes are promised by their flavors."}
	boxCalls     = &metric{"glovebox_box_calls", gauge, "state", "Calls into boxes: running, or queued for an interpreter or a slot."}
	starts       = &metric{"glovebox_box_start_duration_seconds", histogram, "source outcome", "Time to get a box, waiting for room included. Source: warm (from the pool), cold (restored from its template), boot, woken (from hibernation), fork, snapshot (restored from a kept one)."}
	hibernations = &metric{"glovebox_box_hibernation_duration_seconds", histogram, "outcome", "Time to write a box to disk and take it out of memory. Error: it was lost."}
	boxesEnded   = &metric{"glovebox_boxes_ended_total", counter, "reason", "Boxes that left memory."}
	evictions    = &metric{"glovebox_evictions_total", counter, "", "Boxes that made room for another one or for the host, hibernated or ended."}
	oomKills     = &metric{"glovebox_oom_kills_total", counter, "", "Boxes that ended because they went over their memory."}
	poolReady    = &metric{"glovebox_pool_ready", gauge, "template flavor", "Boxes that wait ready in the pool."}
	poolWanted   = &metric{"glovebox_pool_wanted", gauge, "template flavor", "Boxes that the pool should hold."}
	poolMade     = &metric{"glovebox_pool_made_total", counter, "template flavor", "Boxes made for the pool."}
	poolTaken    = &metric{"glovebox_pool_taken_total", counter, "template flavor", "Boxes taken from the pool."}
	poolFailed   = &metric{"glovebox_pool_failures_total", counter, "template flavor", "Attempts to make a box for the pool that failed."}
	poolLost     = &metric{"glovebox_pool_lost_total", counter, "template flavor", "Boxes that ended while they waited in the pool."}
	disk         = &metric{"glovebox_snapshot_disk_bytes", gauge, "", "Disk that hibernated boxes and kept snapshots take, of all servers that share the state directory."}
	diskLimit    = &metric{"glovebox_snapshot_disk_limit_bytes", gauge, "", "Disk that they may take."}
	snapshots    = &metric{"glovebox_snapshots", gauge, "", "Kept snapshots."}

	boxesMemoryLimit = &metric{"glovebox_boxes_memory_limit_bytes", gauge, "", "Memory that boxes may be promised together; absent without a limit."}
	boxesStarting    = &metric{"glovebox_boxes_starting", gauge, "", "Boxes that are being made or wait for it."}
)

// table has every metric of ours, in the order of the documentation.
var table = []*metric{
	connections, sessions, streams, calls, requests, durations, errorCodes, refusals,
	ready, buildInfo, engineInfo,
	boxes, boxesLimit, boxesStarting, boxesMemory, boxesMemoryLimit, boxCalls, starts, hibernations, boxesEnded, evictions, oomKills,
	poolReady, poolWanted, poolMade, poolTaken, poolFailed, poolLost,
	disk, diskLimit, snapshots,
}

func (m *metric) labelNames() []string { return strings.Fields(m.labels) }

func (m *metric) counter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.name, Help: m.help}, m.labelNames())
}

func (m *metric) histogram(buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.name, Help: m.help, Buckets: buckets}, m.labelNames())
}

// of is the value of a gauge or counter that is asked for.
func (m *metric) of(v float64, labels ...string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if m.kind == counter {
		kind = prometheus.CounterValue
	}
	return prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, m.labelNames(), nil), kind, v, labels...)
}

// Markdown is docs/metrics.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from internal/server/metrics by "go generate ./internal/server/metrics"; edit there. -->

# Metrics

` + "`/metrics`" + ` on the server's port, in the text format of Prometheus, with the access rules of the endpoint. Besides these there are the usual metrics of a Go process (` + "`go_*`, `process_*`" + `).

No label holds anything that a client, a guest or an owner chose: what is in no closed set is counted as ` + "`other`" + `. [packaging/alerts.yml](../packaging/alerts.yml) has rules to begin with.

| metric | type | labels | what |
|---|---|---|---|
`)
	for _, m := range table {
		var labels []string
		for _, l := range m.labelNames() {
			labels = append(labels, "`"+l+"`")
		}
		if labels == nil {
			labels = []string{"–"}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(labels, ", "), m.help)
	}
	fmt.Fprintf(&b, `
## Label values

| label | values |
|---|---|
`)
	for _, l := range []struct {
		name string
		set  []string
	}{
		{"method", methods}, {"code", codes}, {"state", states}, {"kind", kinds}, {"flavor", flavors}, {"template", templates},
		{"source", sources}, {"reason", reasons},
	} {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, strings.Join(l.set, ", "))
	}
	return b.String()
}
