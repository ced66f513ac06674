package report

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestMeasured(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, tc := range []struct {
		name    string
		samples []float64
		want    Figure
	}{
		{"none", nil, Figure{Missing: "no samples"}},
		{"one", []float64{7}, Figure{N: 1, P50: 7, P95: 7, P99: 7, Max: 7}},
		{"unsorted", []float64{3, 1, 2}, Figure{N: 3, P50: 2, P95: 3, P99: 3, Max: 3}},
		{"hundred", hundred, Figure{N: 100, P50: 51, P95: 96, P99: 100, Max: 100}},
		{"no number", []float64{1, math.NaN()}, Figure{Missing: "a sample was no number"}},
		{"infinite", []float64{math.Inf(1)}, Figure{Missing: "a sample was no number"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			given := slices.Clone(tc.samples)
			got := Measured("x", "x", "ms", tc.samples...)
			tc.want.ID, tc.want.Name, tc.want.Unit, tc.want.Role = "x", "x", "ms", Ours
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("Measured(%v) = %+v, want %+v", tc.samples, got, tc.want)
			}
			if !slices.EqualFunc(given, tc.samples, func(a, b float64) bool { return a == b || a != a && b != b }) {
				t.Errorf("Measured changed the samples: %v, were %v", tc.samples, given)
			}
		})
	}
}

func TestTargets(t *testing.T) {
	peer := Measured("peer.x", "a peer", "ms", 10)
	fast, slow := Measured("f", "f", "ms", 1, 2, 3), Measured("s", "s", "ms", 30, 40, 900)
	for _, tc := range []struct {
		name string
		f    Figure
		want []string // yes, no or ? of each target
	}{
		{"median met", fast.AtMost(Median, 2), []string{"yes"}},
		{"median missed", slow.AtMost(Median, 39.9), []string{"no"}},
		{"tail", slow.AtMost(Tail, 5), []string{"no"}},
		{"worst", fast.AtMost(Worst, 3), []string{"yes"}},
		{"ratio met", fast.Against(peer).AtMost(Ratio, 0.2), []string{"yes"}},
		{"ratio missed", slow.Against(peer).AtMost(Ratio, 0.2), []string{"no"}},
		{"no ratio", fast.AtMost(Ratio, 0.2), []string{"?"}},
		{"no peer", fast.Against(Absent("peer.x", "a peer", "is not there")).AtMost(Ratio, 0.2), []string{"?"}},
		{"at least, met", slow.AtLeast(Median, 40), []string{"yes"}},
		{"at least, missed", fast.AtLeast(Median, 3), []string{"no"}},
		{"two", slow.Against(peer).AtMost(Ratio, 4).AtMost(Tail, 5), []string{"yes", "no"}},
		{"absent", Absent("a", "a", "why").AtMost(Median, 5), []string{"?"}},
		{"zero", Measured("z", "z", "%", 0).AtMost(Median, 0.5), []string{"yes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			missed := 0
			for _, target := range tc.f.Targets {
				word := "?"
				if target.Met != nil {
					word = map[bool]string{true: "yes", false: "no"}[*target.Met]
				}
				if word == "no" {
					missed++
				}
				got = append(got, word)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("targets met: %v, want %v: %+v", got, tc.want, tc.f)
			}
			if len(tc.f.Missed()) != missed {
				t.Errorf("Missed() has %d, want %d", len(tc.f.Missed()), missed)
			}
		})
	}
	// A figure is a value: what it is made into does not change it.
	base := fast.AtMost(Median, 5)
	a, b := base.AtMost(Worst, 1), base.AtMost(Tail, 1)
	if len(base.Targets) != 1 || a.Targets[1].Of != Worst || b.Targets[1].Of != Tail {
		t.Errorf("figures share their targets: %v, %v, %v", base.Targets, a.Targets, b.Targets)
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 1: "1.00", 0.9996: "1.00", 9.99: "9.99", 9.996: "10.0", 12.34: "12.3", 99.96: "100",
		123.4: "123", 123456.7: "123457", 0.5: "0.500", 0.01234: "0.0123", 0.00000012: "0.000000", -3.21: "-3.21",
	} {
		if got := number(x); got != want {
			t.Errorf("number(%v) = %q, want %q", x, got, want)
		}
	}
}

// sample is a result with a row of every kind.
func sample() Result {
	peer := Measured("peer.pandas", "import pandas", "ms", 100, 300, 200).As(Peer)
	figures := []Figure{
		Measured("cold.result", "create, cold", "ms", 40, 50, 60).Against(peer).AtMost(Ratio, 0.5),
		Measured("cold.call", "of which the first call", "ms", 4).As(Part),
		Measured("pool.create", "create, warm", "ms", 6, 7, 8).Against(peer).AtMost(Median, 5).Noting("2 misses"),
		Measured("crowd.32", "32 at once", "calls/s", 1600).MoreIsBetter().Against(peer).AtLeast(Median, 1500),
		Absent("fork.result", "fork", "not offered by this binary").AtMost(Ratio, 1),
		peer,
	}
	for i, scenario := range []string{"cold", "cold", "pool", "crowd", "fork", "peers"} {
		figures[i].Scenario = scenario
	}
	return Result{Schema: Schema, Machine: Machine{CPUs: 2, CPU: "a CPU", MemoryMB: 1000, Kernel: "6"},
		Versions:  map[string]string{"glovebox": "v1"},
		Scenarios: []Scenario{{Name: "cold"}, {Name: "pool"}, {Name: "crowd"}, {Name: "fork", Error: "it broke"}, {Name: "peers"}},
		Figures:   figures}
}

func TestTable(t *testing.T) {
	got := sample().Table()
	want := strings.TrimLeft(`
glovebox v1, 0001-01-01 00:00 UTC, 2 × a CPU, 1000 MB, Linux 6, 0 s in all

                          p50           p95   p99   n  ratio    to      target            met  remarks
COLD
  create, cold            50.0 ms       60.0  60.0  3  0.250 ×  pandas  ≤ 0.5 ×           yes
    of which the first call  4.00 ms                   1
POOL
  create, warm            7.00 ms       8.00  8.00  3  0.0350 ×  pandas  ≤ 5 ms            NO   2 misses
CROWD
  32 at once              1600 calls/s              1  8.00 ×   pandas  ≥ 1500 calls/s    yes
FORK
  fork                    –                                           ≤ 1 ×                  – not offered by this binary
PEERS
  pandas: import pandas   200 ms        300   300   3

targets: 2 of 3 met, 1 not measured
missed: create, warm: 7.00, target ≤ 5 ms
failed: fork: it broke
`, "\n")
	// The widths of columns are tabwriter's.
	squeeze := func(s string) string {
		var lines []string
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	if g, w := squeeze(got), squeeze(want); g != w {
		t.Errorf("the table is\n%s\nwant, but for the widths of columns,\n%s", got, w)
	}
	for line := range strings.Lines(got) {
		if strings.HasSuffix(line, " \n") {
			t.Errorf("line %q ends in blanks", line)
		}
	}
}

func TestWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "result.json")
	want := sample()
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("what was written is read as\n%+v\nwant\n%+v", got, want)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("files after writing: %v, %v", left, err)
	}
}

// TestWrite_EveryField fails for a field without a tag, or one that is left out
// of the round trip above because the sample has no value for it.
func TestWrite_EveryField(t *testing.T) {
	for _, v := range []any{Result{}, Machine{}, Scenario{}, Figure{}, Target{}} {
		for i := range reflect.TypeOf(v).NumField() {
			f := reflect.TypeOf(v).Field(i)
			if f.Tag.Get("json") == "" {
				t.Errorf("%T.%s has no JSON name", v, f.Name)
			}
		}
	}
}

func TestRead_Refuses(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct{ text, want string }{
		"empty":      {"", "unexpected end"},
		"not JSON":   {"what", "invalid character"},
		"no schema":  {"{}", "schema 0"},
		"new schema": {`{"schema": 99, "figures": "other"}`, "schema 99, this program knows 1"},
		"unknown":    {`{"schema": 1, "speed": 3}`, `unknown field "speed"`},
		"no id":      {`{"schema": 1, "figures": [{"name": "x"}]}`, "has no id"},
		"twice":      {`{"schema": 1, "figures": [{"id": "x"}, {"id": "x"}]}`, `two figures are "x"`},
		"negative":   {`{"schema": 1, "figures": [{"id": "x", "ratio": -1}]}`, "negative"},
		"too long":   {`{"schema": 1, "only": "` + strings.Repeat("x", maxResult) + `"}`, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if r, err := Read(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Read gave %+v and error %v, want one with %q", r, err, tc.want)
			}
		})
	}
}

func TestStorable(t *testing.T) {
	good := sample()
	good.Scenarios[3].Error = ""
	if err := good.Storable(); err != nil {
		t.Errorf("a complete result is refused: %v", err)
	}
	for name, spoil := range map[string]func(*Result){
		"quick":   func(r *Result) { r.Quick = true },
		"partial": func(r *Result) { r.Only = "warm" },
		"failed":  func(r *Result) { r.Scenarios = []Scenario{{Name: "warm", Error: "it broke"}} },
	} {
		r := good
		if spoil(&r); r.Storable() == nil {
			t.Errorf("a %s result may be stored", name)
		}
	}
}
