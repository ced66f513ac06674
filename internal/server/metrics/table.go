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

// The upper bounds of histograms, in seconds. A call without a box takes less than a
// millisecond, the longest call five minutes. A box from the pool takes a few
// milliseconds, a start on an overloaded machine a minute.
var (
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	boxBuckets     = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 180}
)

var (
	requests     = &metric{"mcp_requests_total", counter, "method tool outcome", "Requests that reached a handler. Outcome is ok, tool_error (a result with isError) or error (a JSON-RPC error)."}
	durations    = &metric{"mcp_request_duration_seconds", histogram, "method tool", "Time that the handler took."}
	errorCodes   = &metric{"mcp_errors_total", counter, "code", "JSON-RPC errors by code."}
	refusals     = &metric{"mcp_refusals_total", counter, "status", "HTTP requests refused before they reached a handler, by status: malformed, unauthorized or over a limit."}
	connections  = &metric{"mcp_active_connections", gauge, "", "Open HTTP connections, idle ones included."}
	dropped      = &metric{"mcp_connections_dropped_total", counter, "", "HTTP connections that were closed before they carried a valid request, because newer ones needed the place. Many mean that an address keeps connections open without using them."}
	unread       = &metric{"mcp_unread_answer_bytes", gauge, "", "Bytes of answers that clients have not read yet; small answers are not counted."}
	sessions     = &metric{"mcp_active_sessions", gauge, "", "Open MCP sessions, over all transports. Requests of revision 2026-07-28 have none."}
	streams      = &metric{"mcp_active_streams", gauge, "", "Open HTTP streams that only listen: GET streams of sessions, and subscriptions of revision 2026-07-28."}
	calls        = &metric{"mcp_active_requests", gauge, "", "Requests in flight."}
	ready        = &metric{"glovebox_ready", gauge, "", "1 if /ready reports ready, otherwise 0."}
	buildInfo    = &metric{"glovebox_build_info", gauge, "version commit gvisor", "Always 1. The labels describe the build."}
	engineInfo   = &metric{"glovebox_engine_info", gauge, "engine version isolation", "Always 1. The labels describe the engine that isolates boxes."}
	boxes        = &metric{"glovebox_boxes", gauge, "state kind flavor", "Boxes, hibernated ones included."}
	boxesLimit   = &metric{"glovebox_boxes_limit", gauge, "kind", "Maximum number of boxes in memory."}
	boxesMemory  = &metric{"glovebox_boxes_memory_bytes", gauge, "", "Memory that the flavors of the boxes in memory reserve."}
	boxCalls     = &metric{"glovebox_box_calls", gauge, "state", "Calls into boxes: running, or queued for an interpreter or a call slot."}
	starts       = &metric{"glovebox_box_start_duration_seconds", histogram, "source outcome", "Time to start a box, including the wait for memory. Source: warm (from the pool), cold (restored from its template), boot, woken (from hibernation), fork, snapshot (restored from a kept snapshot), adopted (taken over from a server that is gone)."}
	hibernations = &metric{"glovebox_box_hibernation_duration_seconds", histogram, "outcome", "Time to write a box to disk and remove it from memory. Outcome error: the box could not be written; it stays in memory and is written later, unless the server stops."}
	boxesEnded   = &metric{"glovebox_boxes_ended_total", counter, "reason", "Boxes that were removed from memory."}
	evictions    = &metric{"glovebox_evictions_total", counter, "", "Boxes that were hibernated or ended to free memory for another box or the host."}
	oomKills     = &metric{"glovebox_oom_kills_total", counter, "", "Boxes that ended because they exceeded their memory limit."}
	poolReady    = &metric{"glovebox_pool_ready", gauge, "template flavor", "Boxes that are ready in the pool."}
	poolWanted   = &metric{"glovebox_pool_wanted", gauge, "template flavor", "Target number of boxes in the pool."}
	poolMade     = &metric{"glovebox_pool_made_total", counter, "template flavor", "Boxes created for the pool."}
	poolTaken    = &metric{"glovebox_pool_taken_total", counter, "template flavor", "Boxes taken from the pool."}
	poolFailed   = &metric{"glovebox_pool_failures_total", counter, "template flavor", "Failed attempts to create a box for the pool."}
	poolLost     = &metric{"glovebox_pool_lost_total", counter, "template flavor", "Boxes that ended while they were in the pool."}
	disk         = &metric{"glovebox_snapshot_disk_bytes", gauge, "", "Disk space used by hibernated boxes and kept snapshots of all servers that share the state directory."}
	diskLimit    = &metric{"glovebox_snapshot_disk_limit_bytes", gauge, "", "Limit of that disk space."}
	diskFree     = &metric{"glovebox_disk_free_bytes", gauge, "", "Free space on the disk of the state directory."}
	diskReserved = &metric{"glovebox_disk_reserved_bytes", gauge, "", "Part of the free space that is reserved for the boxes in memory and the pool, of all servers that share the state directory."}
	diskRoom     = &metric{"glovebox_disk_room_bytes", gauge, "", "Part of the free space that is left for the guarantees of further boxes, after disk-reserve-mb, the reserved space and the space for snapshots. If it is negative, no box starts, and boxes that write more than their guarantee end."}
	snapshots    = &metric{"glovebox_snapshots", gauge, "", "Kept snapshots."}
	keptBytes    = &metric{"glovebox_snapshots_bytes", gauge, "", "Disk space used by kept snapshots, which may take half of glovebox_snapshot_disk_limit_bytes."}

	egressOpen        = &metric{"glovebox_egress_open_connections", gauge, "", "Open connections of boxes to other hosts."}
	egressConnections = &metric{"glovebox_egress_connections_total", counter, "outcome", "Connections of boxes to other hosts that have ended. Outcome is ok, refused, failed (no address, or no answer), limit, idle or policy_changed."}
	egressRefusals    = &metric{"glovebox_egress_refusals_total", counter, "why", "Connections, requests and lookups that the network of a box refused."}
	egressLookups     = &metric{"glovebox_egress_lookups_total", counter, "status", "Lookups of names by boxes. Status is ok, nxdomain, refused or failed."}
	egressBytes       = &metric{"glovebox_egress_bytes_total", counter, "direction", "Bytes that boxes sent to other hosts, and received."}

	volumesOver = &metric{"glovebox_volumes_over_quota", gauge, "", "Directories of volumes that are over their quota, or cannot be scanned, so that boxes may only read them. Absent without quotas."}
	volumeScans = &metric{"glovebox_volume_scans_total", counter, "result", "Scans of directories with a quota. Result is ok, over or unfinished (too many files, too deep, too slow for its size, or unreadable)."}

	codeMemory       = &metric{"glovebox_code_memory_bytes", gauge, "", "Memory of the calls that code makes to the tools of MCP servers: results, answers that boxes have not read yet, images and arguments. Absent without code mode. If it stays near its limit, large results are refused."}
	codeMemoryLimit  = &metric{"glovebox_code_memory_limit_bytes", gauge, "", "Limit of that memory."}
	boxesMemoryLimit = &metric{"glovebox_boxes_memory_limit_bytes", gauge, "", "Limit of the memory that boxes reserve together; absent without a limit."}
	boxesUnwritten   = &metric{"glovebox_boxes_unwritten", gauge, "", "Boxes in memory that could not be written to disk the last time. They stay in memory and are written later."}
	boxesStarting    = &metric{"glovebox_boxes_starting", gauge, "", "Boxes that are starting or wait to start."}
)

// table lists every metric that this package defines, in the order of docs/metrics.md.
var table = []*metric{
	connections, dropped, sessions, streams, calls, unread, requests, durations, errorCodes, refusals,
	ready, buildInfo, engineInfo,
	boxes, boxesLimit, boxesStarting, boxesUnwritten, boxesMemory, boxesMemoryLimit, boxCalls, starts, hibernations, boxesEnded, evictions, oomKills,
	codeMemory, codeMemoryLimit,
	egressOpen, egressConnections, egressRefusals, egressLookups, egressBytes,
	volumesOver, volumeScans,
	poolReady, poolWanted, poolMade, poolTaken, poolFailed, poolLost,
	disk, diskLimit, diskFree, diskReserved, diskRoom, snapshots, keptBytes,
}

func (m *metric) labelNames() []string { return strings.Fields(m.labels) }

func (m *metric) counter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.name, Help: m.help}, m.labelNames())
}

func (m *metric) histogram(buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.name, Help: m.help, Buckets: buckets}, m.labelNames())
}

// of returns the value of a gauge, or of a counter that is read at each scrape.
func (m *metric) of(v float64, labels ...string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if m.kind == counter {
		kind = prometheus.CounterValue
	}
	return prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, m.labelNames(), nil), kind, v, labels...)
}

// Markdown returns docs/metrics.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from internal/server/metrics by "go generate ./internal/server/metrics"; edit there. -->

# Metrics

` + "`/metrics`" + ` on the server's port serves these metrics in Prometheus text format, with the access rules of the endpoint, along with the usual metrics of a Go process (` + "`go_*`, `process_*`" + `).

No label contains anything that a client, guest or owner chose: values outside the closed sets are counted as ` + "`other`" + `. [packaging/alerts.yml](../packaging/alerts.yml) has example alerts.

| metric | type | labels | meaning |
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
		{"source", sources}, {"reason", reasons}, {"why", egressReasons}, {"result", scanResults},
	} {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, strings.Join(l.set, ", "))
	}
	return b.String()
}
