//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubesim"
)

// figure is one measured number.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
}

// result has the figures of one number of boxes, in the order of the table.
type result struct {
	Boxes    int      `json:"boxes"`
	Replicas int      `json:"replicas"`
	Figures  []figure `json:"figures"`
}

func (r *result) add(name, unit string, value float64) {
	r.Figures = append(r.Figures, figure{name, unit, value})
}

// took adds the time and the processor time of something that was done n times.
func (r *result) took(name string, n int, t spent) {
	r.add(name+", time", "ms", ms(t.wall)/float64(n))
	r.add(name+", processor time", "ms", ms(t.cpu)/float64(n))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// loads adds the requests by verb and resource, and the bytes of their answers, for each of n.
func (r *result) loads(name string, n int, c kubesim.Counts, kinds ...kind) {
	for _, k := range kinds {
		l := c.Sum(k.of)
		r.add(name+": "+k.String(), "requests", float64(l.Requests)/float64(n))
	}
}

// value returns a figure; ok is false if there is none of that name.
func (r *result) value(name string) (v float64, ok bool) {
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value, true
		}
	}
	return 0, false
}

// kind is what requests are counted by in the table.
type kind struct{ verb, resource, labels string }

// String returns the kind as the table has it.
func (k kind) String() string {
	s := k.verb + " " + k.resource
	if k.labels != "" {
		s += " by " + k.labels
	}
	return s
}

func (k kind) of(key kubesim.Key) bool {
	return key.Verb == k.verb && key.Resource == k.resource && (k.labels == "" || key.Labels == k.labels)
}

// table returns the figures with a column for each number of boxes.
func table(all []*result) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "figure\tunit\t")
	for _, r := range all {
		fmt.Fprintf(w, "%d boxes\t", r.Boxes)
	}
	fmt.Fprintln(w)
	// The last one has all figures.
	for _, f := range all[len(all)-1].Figures {
		fmt.Fprintf(w, "%s\t%s\t", f.Name, f.Unit)
		for _, r := range all {
			cell := "-"
			if v, ok := r.value(f.Name); ok {
				cell = number(v)
			}
			fmt.Fprintf(w, "%s\t", cell)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return text.String()
}

// number writes a number with three digits that count.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v == float64(int(v)):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
