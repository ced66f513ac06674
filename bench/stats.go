package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// figure is one row of the report: what was measured, in which unit, how often.
type figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	N      int     `json:"n"`
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`
	Peer   string  `json:"peer,omitempty"`   // what Ratio compares with
	Ratio  float64 `json:"ratio,omitempty"`  // of the medians, ours to the peer's
	Target float64 `json:"target,omitempty"` // the ratio to reach, at most
}

// summarize sorts samples and takes their median and 99th percentile.
func summarize(name, unit string, samples []float64) figure {
	f := figure{Name: name, Unit: unit, N: len(samples)}
	if f.N == 0 {
		return f
	}
	slices.Sort(samples)
	f.P50 = samples[f.N/2]
	f.P99 = samples[min(f.N-1, f.N*99/100)]
	return f
}

// against sets the ratio to a peer measured in the same run.
func (f figure) against(peer figure, target float64) figure {
	f.Peer, f.Target = peer.Name, target
	if peer.P50 > 0 {
		f.Ratio = f.P50 / peer.P50
	}
	return f
}

func table(figures []figure) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tp50\tp99\tn\tratio\ttarget\tcompared with")
	for _, f := range figures {
		ratio, target, p99 := "", "", ""
		if f.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", f.Ratio)
		}
		if f.Target > 0 {
			verdict := "reached"
			if f.Ratio > f.Target {
				verdict = "MISSED"
			}
			target = fmt.Sprintf("≤ %.2f %s", f.Target, verdict)
		}
		if f.N > 1 {
			p99 = fmt.Sprintf("%.3g", f.P99)
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%d\t%s\t%s\t%s\n", f.Name, f.P50, f.Unit, p99, f.N, ratio, target, f.Peer)
	}
	w.Flush()
	return b.String()
}
