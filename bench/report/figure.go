// Package report defines the benchmark's results: figures with peers and targets, their
// table and JSON, and the comparison of two results. It measures nothing.
package report

import (
	"fmt"
	"math"
	"slices"
)

// Role classifies figures.
type Role string

const (
	Ours Role = "ours" // Glovebox; what comparisons look at
	Part Role = "part" // a share of the figure above it
	Peer Role = "peer" // something else, measured in the same run
)

// Figure is one row of the report. Missing, not a zero in P50 to Max, marks a row without
// a figure.
type Figure struct {
	ID       string  `json:"id"` // "create.warm"; stable, comparisons go by it
	Scenario string  `json:"scenario"`
	Name     string  `json:"name"`
	Role     Role    `json:"role"`
	Unit     string  `json:"unit"`
	More     bool    `json:"more_is_better,omitempty"`
	N        int     `json:"n"` // samples
	P50      float64 `json:"p50"`
	P95      float64 `json:"p95"`
	P99      float64 `json:"p99"`
	Max      float64 `json:"max"`
	// The peer's ID and the median of its samples that were taken alternately with ours.
	// Ratio is ours divided by the peer's.
	Peer    string   `json:"peer,omitempty"`
	PeerP50 float64  `json:"peer_p50,omitempty"`
	Ratio   float64  `json:"ratio,omitempty"`
	Targets []Target `json:"targets,omitempty"`
	Note    string   `json:"note,omitempty"`
	Missing string   `json:"missing,omitempty"` // why there is no figure
}

// Quantity is the quantity of a figure that a target limits.
type Quantity string

const (
	Median Quantity = "p50"
	Tail   Quantity = "p99/p50"
	Worst  Quantity = "max"
	Ratio  Quantity = "ratio"
)

// Target is a limit to reach. Met is nil if it could not be judged.
type Target struct {
	Of      Quantity `json:"of"`
	AtLeast bool     `json:"at_least,omitempty"` // else at most
	Limit   float64  `json:"limit"`
	Met     *bool    `json:"met,omitempty"`
}

// Measured returns a figure for samples in any order. Without samples, or with one that is
// not a number, the figure is missing.
func Measured(id, name, unit string, samples ...float64) Figure {
	f := Figure{ID: id, Name: name, Unit: unit, Role: Ours, N: len(samples)}
	if f.N == 0 {
		f.Missing = "no samples"
		return f
	}
	if slices.ContainsFunc(samples, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
		f.N, f.Missing = 0, "a sample was no number"
		return f
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := func(percent int) float64 { return sorted[min(f.N-1, f.N*percent/100)] }
	f.P50, f.P95, f.P99, f.Max = at(50), at(95), at(99), sorted[f.N-1]
	return f
}

// Absent returns a row without a figure, for the reason why.
func Absent(id, name, why string) Figure {
	return Figure{ID: id, Name: name, Role: Ours, Missing: why}
}

// As sets the role.
func (f Figure) As(role Role) Figure {
	f.Role = role
	return f
}

// MoreIsBetter marks a figure as better when larger.
func (f Figure) MoreIsBetter() Figure {
	f.More = true
	return f
}

// Noting adds a remark.
func (f Figure) Noting(format string, args ...any) Figure {
	if f.Note != "" {
		f.Note += "; "
	}
	f.Note += fmt.Sprintf(format, args...)
	return f
}

// Against sets the ratio to a peer whose samples were taken alternately with f's. If the
// peer is missing, it adds a note instead. Set targets after it.
func (f Figure) Against(peer Figure) Figure {
	f.Peer = peer.ID
	switch {
	case f.Missing != "":
	case peer.Missing != "":
		return f.Noting("no ratio, %s: %s", peer.Name, peer.Missing)
	case peer.P50 > 0:
		f.PeerP50, f.Ratio = peer.P50, f.P50/peer.P50
	}
	return f
}

// AtMost adds a target and judges it.
func (f Figure) AtMost(of Quantity, limit float64) Figure {
	return f.aim(Target{Of: of, Limit: limit})
}

// AtLeast adds a target and judges it.
func (f Figure) AtLeast(of Quantity, limit float64) Figure {
	return f.aim(Target{Of: of, Limit: limit, AtLeast: true})
}

func (f Figure) aim(t Target) Figure {
	if value, ok := f.value(t.Of); ok {
		met := value <= t.Limit
		if t.AtLeast {
			met = value >= t.Limit
		}
		t.Met = &met
	}
	f.Targets = append(slices.Clip(f.Targets), t)
	return f
}

// value returns a quantity of the figure, if it has one.
func (f Figure) value(of Quantity) (float64, bool) {
	if f.Missing != "" {
		return 0, false
	}
	switch of {
	case Median:
		return f.P50, true
	case Worst:
		return f.Max, true
	case Tail:
		return f.P99 / f.P50, f.P50 > 0
	case Ratio:
		return f.Ratio, f.Ratio > 0
	}
	return 0, false
}

// Missed lists the judged targets that are not met.
func (f Figure) Missed() []Target {
	return slices.DeleteFunc(slices.Clone(f.Targets), func(t Target) bool { return t.Met == nil || *t.Met })
}
