//go:build linux

package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// TestScale_RequestsAreBounded has three engines make, find, take over and end 50 boxes. The bounds are
// what each of these needs: one request more for each box is ten thousand more for ten
// thousand boxes.
func TestScale_RequestsAreBounded(t *testing.T) {
	p := plan{replicas: 3, idle: 6 * time.Second, claims: true, warm: 12, bursts: 1}
	r, err := p.measure(t.Context(), 50, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]float64{
		"a box is created: create pods":                         1,
		"a box is created: patch pods":                          1, // the note
		"a box is created: all requests":                        2,
		"a box is created: events, at each replica":             5, // added, bound, waiting, running, noted
		"a box is created: bytes of the watch, at each replica": 60,
		"a box is taken over: requests":                         3,   // look-up, get, patch
		"a box is destroyed: delete pods":                       1.2, // a Pod whose status changes meanwhile takes another
		"a box is destroyed: all requests":                      6,
		"a box is destroyed: events, at each replica":           3,
		"List: requests":                                        1,
		"a sweep: requests":                                     1 + 3, // a page, and the Lease of each replica
		"look up who has a box: bytes":                          20,
		"idle, an hour, at each replica: patch leases":          2000, // 720, and chance in a window of seconds
		"goroutines of all replicas, for each box":              2,
		"memory of all replicas, for each box: heap and stacks": 100,
	} {
		got, ok := r.value(name)
		if !ok || got > most {
			t.Errorf("%s: got %v (measured: %t), want %v at most", name, got, ok, most)
		}
	}
	if claimed, _ := r.value("claims of warm Pods: boxes that found none"); claimed == 100 {
		t.Error("no box got a warm Pod")
	}
	text := table([]*result{r})
	for _, f := range r.Figures {
		if !strings.Contains(text, f.Name) {
			t.Errorf("the table lacks %q:\n%s", f.Name, text)
		}
	}
	t.Log("\n" + text)
}
