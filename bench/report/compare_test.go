package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// real is the result of a run of the benchmark, as it was written.
const real = "testdata/real.json"

// doctored reads a copy of the real result in which text is replaced.
func doctored(t *testing.T, change func(*Result)) Result {
	t.Helper()
	r, err := Read(real)
	if err != nil {
		t.Fatal(err)
	}
	change(&r)
	path := filepath.Join(t.TempDir(), "doctored.json")
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	if r, err = Read(path); err != nil {
		t.Fatal(err)
	}
	return r
}

func figure(t *testing.T, r *Result, id string) *Figure {
	t.Helper()
	for i := range r.Figures {
		if r.Figures[i].ID == id {
			return &r.Figures[i]
		}
	}
	t.Fatalf("%s has no figure %q", real, id)
	return nil
}

func TestCompare(t *testing.T) {
	scale := func(id string, by float64) func(*testing.T, *Result) {
		return func(t *testing.T, r *Result) { figure(t, r, id).Ratio *= by }
	}
	for _, tc := range []struct {
		name    string
		change  func(*testing.T, *Result)
		id      string
		want    Verdict
		regress bool
	}{
		{"nothing", func(*testing.T, *Result) {}, "warm.post", Same, false},
		{"a little slower", scale("warm.post", 1.24), "warm.post", Same, false},
		{"slower", scale("warm.post", 1.26), "warm.post", Worse, true},
		{"much slower", scale("warm.sdk", 30), "warm.sdk", Worse, true},
		{"a little faster", scale("warm.post", 0.81), "warm.post", Same, false},
		{"faster", scale("warm.post", 0.79), "warm.post", Better, false},
		{"fewer calls", scale("crowd.8", 1/1.26), "crowd.8", Worse, true},
		{"a few calls fewer", scale("crowd.8", 1/1.24), "crowd.8", Same, false},
		{"more calls", scale("crowd.8", 2), "crowd.8", Better, false},
		{"twice the time of both", func(t *testing.T, r *Result) {
			for i := range r.Figures {
				r.Figures[i].P50 *= 2
				r.Figures[i].PeerP50 *= 2
			}
		}, "warm.post", Same, false},
		{"it is no longer offered", func(t *testing.T, r *Result) {
			f := figure(t, r, "warm.post")
			*f = Figure{ID: f.ID, Name: f.Name, Role: Ours, Scenario: f.Scenario, Missing: "not offered by this binary"}
		}, "warm.post", Gone, true},
		{"the peer cannot run", func(t *testing.T, r *Result) {
			f := figure(t, r, "warm.post")
			f.Ratio, f.PeerP50 = 0, 0
		}, "warm.post", Unsure, false},
		{"another peer", func(t *testing.T, r *Result) { figure(t, r, "warm.post").Peer = "peer.other" }, "warm.post", Unsure, false},
		{"its scenario failed", func(t *testing.T, r *Result) {
			drop(r, "warm")
			for i := range r.Scenarios {
				if r.Scenarios[i].Name == "warm" {
					r.Scenarios[i].Error = "it broke"
				}
			}
		}, "warm.post", Gone, true},
		{"its scenario was not run", func(t *testing.T, r *Result) {
			drop(r, "warm")
			var ran []Scenario
			for _, s := range r.Scenarios {
				if s.Name != "warm" {
					ran = append(ran, s)
				}
			}
			r.Scenarios = ran
		}, "warm.post", Unsure, false},
		{"a new figure", func(t *testing.T, r *Result) {
			r.Figures = append(r.Figures, Figure{ID: "new", Scenario: "warm", Role: Ours, N: 1, P50: 1, Peer: "peer.x", PeerP50: 1, Ratio: 1})
		}, "new", New, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, err := Read(real)
			if err != nil {
				t.Fatal(err)
			}
			c := Compare(old, doctored(t, func(r *Result) { tc.change(t, r) }), 0.25)
			var got Verdict
			for _, ch := range c.Changes {
				if ch.ID == tc.id {
					got = ch.Verdict
				} else if ch.Verdict == Worse || ch.Verdict == Better || ch.Verdict == New {
					t.Errorf("figure %s is %s, only %s was changed", ch.ID, ch.Verdict, tc.id)
				}
			}
			if got != tc.want {
				t.Errorf("figure %s is %q, want %q\n%s", tc.id, got, tc.want, c.Table())
			}
			if n := len(c.Regressions()); n > 0 != tc.regress {
				t.Errorf("%d regressions, want some: %v\n%s", n, tc.regress, c.Table())
			}
			if table := c.Table(); !strings.Contains(table, string(tc.want)) {
				t.Errorf("the table does not say %q:\n%s", tc.want, table)
			}
		})
	}
}

// drop takes a scenario's figures away.
func drop(r *Result, scenario string) {
	var kept []Figure
	for _, f := range r.Figures {
		if f.Scenario != scenario {
			kept = append(kept, f)
		}
	}
	r.Figures = kept
}

// TestCompare_RatiosOnly doctors what a comparison must not look at.
func TestCompare_RatiosOnly(t *testing.T) {
	old, err := Read(real)
	if err != nil {
		t.Fatal(err)
	}
	now := doctored(t, func(r *Result) {
		for i := range r.Figures {
			f := &r.Figures[i]
			if f.Role != Ours {
				f.Ratio, f.P50, f.Missing = f.Ratio*9, f.P50*9, "cannot run here"
			}
			f.P95, f.P99, f.Max = 9*f.P95, 9*f.P99, 9*f.Max
			for j := range f.Targets {
				no := false
				f.Targets[j].Met = &no
			}
		}
	})
	c := Compare(old, now, 0.25)
	if c.Compared() < 5 {
		t.Errorf("only %d ratios compared: the real result has more", c.Compared())
	}
	for _, ch := range c.Changes {
		if ch.Factor > 0 && ch.Verdict != Same {
			t.Errorf("figure %s is %s", ch.ID, ch.Verdict)
		}
	}
}

func TestStored_ResultIsCurrentFormat(t *testing.T) {
	r, err := Read(real)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "again.json")
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is written differently now: a new schema needs a new version", real)
	}
}
