//go:build linux

package attack

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// Outcome is what became of an attack.
type Outcome string

// The closed set of outcomes.
const (
	Held    Outcome = "held"    // the promise held
	Broken  Outcome = "broken"  // the attack succeeded
	Skipped Outcome = "skipped" // this host or privilege mode cannot run the attack
	Failed  Outcome = "failed"  // the attack could not be carried out, so nothing is known
)

// Result is the result of one attack. Its JSON is part of the interface.
type Result struct {
	ID           string   `json:"id"`
	Class        string   `json:"class"`
	Name         string   `json:"name"`
	Claim        string   `json:"claim"`
	Outcome      Outcome  `json:"outcome"`
	Why          string   `json:"why,omitempty"`            // of skipped and failed
	Broken       []string `json:"broken,omitempty"`         // what succeeded
	Attempts     int      `json:"attempts"`                 // things that the attack tried
	Boxes        []string `json:"boxes,omitempty"`          // how boxes of the attack ended that did not survive it
	Worst        Answers  `json:"worst_answer"`             // while the attack ran
	HostMemoryMB int64    `json:"host_memory_mb,omitempty"` // the most that the attack took, if it is about memory
	Milliseconds int64    `json:"ms"`                       // with the examination

	onlyLate bool // nothing but time was broken
}

// Answers are the times that the host and a neighbouring box took to answer.
type Answers struct {
	HostMS      int64 `json:"host_ms"`
	NeighbourMS int64 `json:"neighbour_ms"`
}

// Report is the result of a run. Its JSON is part of the interface.
type Report struct {
	OK        bool            `json:"ok"` // every selected attack ran, and nothing was broken, failed or left behind
	Engine    string          `json:"engine"`
	Version   string          `json:"engine_version"`
	Isolation string          `json:"isolation"`
	User      string          `json:"user"` // "root" or "ordinary user"
	Limits    []string        `json:"limits"`
	Began     time.Time       `json:"began"`
	Seconds   float64         `json:"seconds"`
	Selected  int             `json:"selected"`    // attacks to run
	Cut       bool            `json:"interrupted"` // there are results of fewer
	Counts    map[Outcome]int `json:"counts"`
	Baseline  Answers         `json:"baseline_answer"` // before the attacks
	Left      []string        `json:"left_behind"`     // held on the host after the run and not before
	Results   []Result        `json:"attacks"`
}

func newReport(cfg *Config) *Report {
	info := cfg.Maker.Engine.Info()
	r := &Report{
		Engine: info.Name, Version: info.Version, Isolation: string(info.Isolation), User: "ordinary user",
		Began: time.Now().UTC(), Counts: map[Outcome]int{}, Limits: []string{}, Left: []string{}, Results: []Result{},
	}
	if hostRoot() {
		r.User = "root"
	}
	for _, l := range info.Limits {
		r.Limits = append(r.Limits, describeLimit(l))
	}
	return r
}

// hostRoot reports whether this process is root of the host, and not merely of a
// user namespace.
func hostRoot() bool {
	if os.Geteuid() != 0 {
		return false
	}
	// In a user namespace of an ordinary user, one id is mapped.
	b, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}

func describeLimit(l engine.Limit) string {
	if l.Hard {
		return fmt.Sprintf("%s: hard, by %s", l.Resource, l.By)
	}
	return fmt.Sprintf("%s: soft, by %s", l.Resource, l.By)
}

// sort orders the results like the corpus.
func (r *Report) sort(attacks []Attack) {
	place := map[string]int{}
	for i := range attacks {
		place[attacks[i].ID()] = i
	}
	slices.SortStableFunc(r.Results, func(a, b Result) int { return place[a.ID] - place[b.ID] })
}

func (r *Report) finish() {
	for _, res := range r.Results {
		r.Counts[res.Outcome]++
	}
	r.Cut = len(r.Results) < r.Selected
	r.OK = r.Counts[Broken] == 0 && r.Counts[Failed] == 0 && len(r.Left) == 0 && len(r.Results) > 0 && !r.Cut
	r.Seconds = time.Since(r.Began).Seconds()
}

// Table writes the report for people.
func (r *Report) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "OUTCOME\tATTACK\tTIME\tPROMISE\n")
	for _, res := range r.Results {
		fmt.Fprintf(w, "%s\t%s\t%.1f s\t%s\n", res.Outcome, res.ID, float64(res.Milliseconds)/1000, res.Claim)
		for _, line := range append(slices.Clone(res.Broken), res.Why) {
			if line != "" {
				fmt.Fprintf(w, "\t\t\t> %s\n", line)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, left := range r.Left {
		fmt.Fprintf(out, "left behind: %s\n", printable(left))
	}
	var verdict []string
	switch {
	case len(r.Results) == 0:
		verdict = append(verdict, "NOT TESTED: no attack ran to its end.")
	case r.Counts[Broken]+r.Counts[Failed] > 0:
		verdict = append(verdict, "NOT SAFE: see the lines marked broken or failed.")
	case len(r.Left) > 0:
		verdict = append(verdict, "The attacks were held, but left something behind.")
	case r.OK:
		verdict = append(verdict, "Every attack was held.")
	}
	if r.Cut && len(r.Results) > 0 {
		verdict = append(verdict, fmt.Sprintf("INTERRUPTED: %d of %d attacks did not run to their end.", r.Selected-len(r.Results), r.Selected))
	}
	_, err := fmt.Fprintf(out, "\n%s %s as %s: %d held, %d broken, %d failed, %d skipped, in %.0f s. %s\n",
		r.Engine, r.Version, r.User, r.Counts[Held], r.Counts[Broken], r.Counts[Failed], r.Counts[Skipped], r.Seconds, strings.Join(verdict, " "))
	return err
}

// List writes the corpus for people.
func List(out io.Writer, attacks []Attack) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := range attacks {
		fmt.Fprintf(w, "%s\t%s\n", attacks[i].ID(), attacks[i].Claim)
	}
	return w.Flush()
}
