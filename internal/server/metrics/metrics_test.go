package metrics

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/server"
)

// full returns metrics with every source set and every event recorded.
func full() *Metrics {
	m := New(Options{
		Version: "1", Commit: "c", GVisor: "g",
		Tools: []string{"run_code", "list_contexts"},
		Host: func() Host {
			return Host{Engine: "gvisor", Kernel: "1", Isolation: "sentry", DiskLimit: 1 << 30, DiskFree: 3, DiskReserved: 2, DiskRoom: 1}
		},
		Server: func() server.Stats { return server.Stats{Sessions: 1, Streams: 2, Calls: 3} },
		Boxes: func() box.Stats {
			return box.Stats{
				Boxes:       map[box.Class]int{{State: box.StateReady, Kind: box.KindContext, Flavor: box.FlavorSmall}: 4},
				Ended:       map[box.Reason]int64{box.ReasonOOM: 5},
				MaxSessions: 10, MaxContexts: 50, MemoryMB: 4096, MaxMemoryMB: 8192, Evicted: 6, Running: 7, Queued: 8, DiskBytes: 9, Snapshots: 1,
			}
		},
		Pool: func() pool.Stats {
			return pool.Stats{{Class: pool.Class{Interpreter: "python", Flavor: "small"}, Wanted: 3, Ready: 2, Made: 4, HandedOut: 1, Failed: 1, Lost: 1, LastError: errors.New("x")}}
		},
		Ready: func() bool { return true },
		Code:  func() (used, limit int64) { return 1, 2 },
		Volumes: func() (volume.Stats, bool) {
			return volume.Stats{Over: 1, Scans: map[volume.Outcome]uint64{volume.OK: 2}}, true
		},
		Egress: func() egress.Stats {
			return egress.Stats{
				Open: 2, Sent: 3, Received: 4, Connections: map[egress.Outcome]uint64{egress.Refused: 5},
				Refusals: map[policy.Reason]uint64{policy.NoRule: 6}, Lookups: map[string]uint64{"ok": 7},
			}
		},
	})
	m.Request(server.Observation{Method: "tools/call", Tool: "run_code", Duration: time.Second})
	m.Request(server.Observation{Method: "tools/call", Tool: "run_code", ToolErr: true})
	m.Request(server.Observation{Method: "tools/list", Code: -32602})
	m.Refusal(http.StatusTooManyRequests)
	m.Box(box.Event{Type: box.EventStart, Source: box.SourceWarm, Took: time.Millisecond})
	m.Box(box.Event{Type: box.EventHibernate, Took: time.Second, Failed: true})
	return m
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	srv := httptest.NewServer(m.Handler())
	defer srv.Close()
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("scrape: %s, %v: %s", res.Status, err, b)
	}
	return string(b)
}

func TestHandler_Scrape(t *testing.T) {
	text := scrape(t, full())
	for _, line := range []string{
		`glovebox_boxes{flavor="small",kind="context",state="ready"} 4`,
		`glovebox_boxes{flavor="large",kind="session",state="hibernated"} 0`,
		`glovebox_boxes_ended_total{reason="oom"} 5`,
		`glovebox_boxes_ended_total{reason="stopped"} 0`,
		`glovebox_boxes_memory_bytes 4.294967296e+09`,
		`glovebox_build_info{commit="c",gvisor="g",version="1"} 1`,
		`glovebox_oom_kills_total 5`,
		`glovebox_evictions_total 6`,
		`glovebox_box_calls{state="queued"} 8`,
		`glovebox_pool_ready{flavor="small",template="python"} 2`,
		`glovebox_box_start_duration_seconds_count{outcome="ok",source="warm"} 1`,
		`glovebox_box_hibernation_duration_seconds_count{outcome="error"} 1`,
		`mcp_active_sessions 1`,
		`mcp_active_streams 2`,
		`mcp_requests_total{method="tools/call",outcome="tool_error",tool="run_code"} 1`,
		`mcp_request_duration_seconds_count{method="tools/call",tool="run_code"} 2`,
		`mcp_errors_total{code="-32602"} 1`,
		`mcp_refusals_total{status="429"} 1`,
		`glovebox_egress_open_connections 2`,
		`glovebox_egress_connections_total{outcome="refused"} 5`,
		`glovebox_egress_connections_total{outcome="ok"} 0`,
		`glovebox_egress_refusals_total{why="no_rule"} 6`,
		`glovebox_egress_lookups_total{status="ok"} 7`,
		`glovebox_egress_bytes_total{direction="received"} 4`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("no %s", name)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestHandler_PassesPromlint(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(scrape(t, full()))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") && !strings.HasPrefix(p.Metric, "process_") { // not ours to name
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestTable_MatchesMetrics: the documented metrics are exactly the exported ones.
func TestTable_MatchesMetrics(t *testing.T) {
	families, err := full().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]string{}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "glovebox_") || strings.HasPrefix(name, "mcp_") {
			measured[name] = strings.ToLower(f.GetType().String())
			for _, series := range f.GetMetric() {
				for _, l := range series.GetLabel() {
					if !slices.ContainsFunc(table, func(m *metric) bool { return m.name == name && slices.Contains(m.labelNames(), l.GetName()) }) {
						t.Errorf("%s has the label %s, which the table does not have", name, l.GetName())
					}
				}
			}
		}
	}
	documented := map[string]string{}
	for _, m := range table {
		documented[m.name] = string(m.kind)
	}
	if !maps.Equal(measured, documented) {
		t.Errorf("measured %v\ndocumented %v", measured, documented)
	}
}

// TestMetrics_CardinalityIsBounded: unknown values of any label do not add series.
func TestMetrics_CardinalityIsBounded(t *testing.T) {
	m := full()
	stats := box.Stats{Boxes: map[box.Class]int{}, Ended: map[box.Reason]int64{}}
	var kinds pool.Stats
	m.opts.Boxes = func() box.Stats { return stats }
	m.opts.Pool = func() pool.Stats { return kinds }
	network := egress.Stats{Connections: make(map[egress.Outcome]uint64), Refusals: make(map[policy.Reason]uint64), Lookups: make(map[string]uint64)}
	m.opts.Egress = func() egress.Stats { return network }
	scans := volume.Stats{Scans: make(map[volume.Outcome]uint64)}
	m.opts.Volumes = func() (volume.Stats, bool) { return scans, true }
	hostile := func(i int) string {
		return fmt.Sprintf("x\"} 1\nevil{a=\"%d\x00\xff", i) + strings.Repeat("y", rand.IntN(100))
	}
	for i := range 5000 {
		m.Request(server.Observation{Method: hostile(i), Tool: hostile(i), Code: int64(i + 1), Duration: time.Duration(i)})
		m.Request(server.Observation{Method: "tools/call", Tool: hostile(i)})
		m.Refusal(i)
		m.Box(box.Event{Type: box.EventType(hostile(i)), Source: box.Source(hostile(i)), Took: -time.Second})
		m.Box(box.Event{Type: box.EventStart, Source: box.Source(hostile(i))})
		stats.Boxes[box.Class{State: box.State(hostile(i)), Kind: box.Kind(hostile(i)), Flavor: box.Flavor(hostile(i))}]++
		stats.Ended[box.Reason(hostile(i))]++
		network.Connections[egress.Outcome(hostile(i))]++
		network.Refusals[policy.Reason(hostile(i))]++
		network.Lookups[hostile(i)]++
		scans.Scans[volume.Outcome(hostile(i))]++
	}
	kinds = pool.Stats{{Class: pool.Class{Interpreter: hostile(1), Flavor: hostile(2)}, Wanted: 1}}
	if n := testutil.CollectAndCount(m.refusals); n > len(statuses)+1 {
		t.Errorf("got %d series of refusals", n)
	}
	text := scrape(t, m)
	if strings.Contains(text, "evil") {
		t.Error("a hostile name became a label")
	}
	if n := strings.Count(text, "\nmcp_") + strings.Count(text, "\nglovebox_"); n > 600 {
		t.Errorf("got %d lines of ours", n)
	}
	if _, err := m.registry.Gather(); err != nil {
		t.Error(err)
	}
}

func TestMetrics_Concurrent(t *testing.T) {
	m := full()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			m.Request(server.Observation{Method: "tools/call", Tool: "run_code", Code: -1})
			m.Box(box.Event{Type: box.EventStart})
		}
	}()
	for range 20 {
		if _, err := m.registry.Gather(); err != nil {
			t.Error(err)
		}
	}
	<-done
}

func TestMarkdown_DocumentIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil || string(got) != Markdown() {
		t.Errorf("docs/metrics.md is out of date (%v): run go generate ./internal/server/metrics", err)
	}
}

// The example rules name metrics that there are.
func TestAlerts_UseKnownMetrics(t *testing.T) {
	rules, err := os.ReadFile("../../../packaging/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range table {
		known[m.name] = true
		if m.kind == histogram {
			known[m.name+"_bucket"], known[m.name+"_count"], known[m.name+"_sum"] = true, true, true
		}
	}
	names := regexp.MustCompile(`\b(?:mcp|glovebox)_[a-z_]+`).FindAllString(string(rules), -1)
	if len(names) < 8 {
		t.Errorf("got only %d names", len(names))
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("there is no metric %s", name)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	m := full()
	o := server.Observation{Method: "tools/call", Tool: "run_code", Duration: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		m.Request(o)
	}
}
