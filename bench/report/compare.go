package report

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Verdict classifies the change of a figure.
type Verdict string

const (
	Same   Verdict = "same" // within the tolerance
	Better Verdict = "better"
	Worse  Verdict = "WORSE"
	Gone   Verdict = "GONE" // measured before, and cannot be now
	New    Verdict = "new"
	Unsure Verdict = "not compared" // no fault of ours, or not run
)

// Change is one figure in two results.
type Change struct {
	ID, Name string
	Old, New float64 // ratios to the peer; 0 if there is none
	Factor   float64 // above 1 is worse, whichever way is better; 0 if not compared
	Verdict  Verdict
	Why      string
}

// Comparison is a newer result beside an older one.
type Comparison struct {
	Old, New  Result
	Tolerance float64
	Changes   []Change
}

// Compare compares only our figures with a ratio to a peer: a ratio of two alternate
// measurements is stable on a slower or busier machine, an absolute time is not. A ratio
// that is worse by more than the tolerance (0.25 is a quarter) is a regression, and so is
// a figure that can no longer be measured through our own fault.
func Compare(old, new Result, tolerance float64) Comparison {
	c := Comparison{Old: old, New: new, Tolerance: tolerance}
	before := make(map[string]Figure)
	for _, f := range old.Figures {
		before[f.ID] = f
	}
	ran := make(map[string]*Scenario)
	for i := range new.Scenarios {
		ran[new.Scenarios[i].Name] = &new.Scenarios[i]
	}
	seen := make(map[string]bool)
	for _, now := range new.Figures {
		seen[now.ID] = true
		then, known := before[now.ID]
		if now.Role != Ours || !known && now.Ratio == 0 || known && then.Ratio == 0 && now.Ratio == 0 {
			continue
		}
		c.Changes = append(c.Changes, change(then, now, tolerance))
	}
	for _, then := range old.Figures {
		if seen[then.ID] || then.Role != Ours || then.Ratio == 0 {
			continue
		}
		ch := Change{ID: then.ID, Name: then.Name, Old: then.Ratio, Verdict: Unsure, Why: "not run"}
		if s := ran[then.Scenario]; s != nil {
			ch.Verdict, ch.Why = Gone, "its scenario no longer has it"
			if s.Error != "" {
				ch.Why = s.Error
			}
		}
		c.Changes = append(c.Changes, ch)
	}
	return c
}

func change(then, now Figure, tolerance float64) Change {
	c := Change{ID: now.ID, Name: now.Name, Old: then.Ratio, New: now.Ratio}
	switch {
	case then.Ratio == 0:
		c.Verdict = New
	case now.Missing != "":
		c.Verdict, c.Why = Gone, now.Missing
	case now.Ratio == 0:
		c.Verdict, c.Why = Unsure, now.Note // the peer is missing
	case now.Peer != then.Peer:
		c.Verdict, c.Why = Unsure, fmt.Sprintf("compared with %s then and with %s now", then.Peer, now.Peer)
	default:
		c.Factor = now.Ratio / then.Ratio
		if now.More {
			c.Factor = then.Ratio / now.Ratio
		}
		switch {
		case c.Factor > 1+tolerance:
			c.Verdict = Worse
		case c.Factor < 1/(1+tolerance):
			c.Verdict = Better
		default:
			c.Verdict = Same
		}
	}
	return c
}

// Compared counts the figures with a ratio in both results.
func (c Comparison) Compared() int {
	n := 0
	for _, ch := range c.Changes {
		if ch.Factor > 0 {
			n++
		}
	}
	return n
}

// Regressions are the changes for the worse.
func (c Comparison) Regressions() []Change {
	var out []Change
	for _, ch := range c.Changes {
		if ch.Verdict == Worse || ch.Verdict == Gone {
			out = append(out, ch)
		}
	}
	return out
}

// Table formats both results and their differences.
func (c Comparison) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "before: %s\nnow:    %s\n", c.Old.about(), c.New.about())
	if c.Old.Machine.CPU != c.New.Machine.CPU || c.Old.Machine.CPUs != c.New.Machine.CPUs {
		b.WriteString("note: the machines differ; ratios carry over only roughly\n")
	}
	b.WriteByte('\n')
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ratio to the peer\tbefore\tnow\tchange\t")
	for _, ch := range c.Changes {
		before, now, percent := "–", "–", ""
		if ch.Old > 0 {
			before = number(ch.Old)
		}
		if ch.New > 0 {
			now = number(ch.New)
		}
		if ch.Factor > 0 {
			percent = fmt.Sprintf("%+.0f%%", 100*(ch.New/ch.Old-1))
		}
		verdict := string(ch.Verdict)
		if ch.Why != "" {
			verdict += ": " + ch.Why
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", ch.Name, before, now, percent, verdict)
	}
	w.Flush()
	fmt.Fprintf(&b, "\n%d ratios compared, tolerance %.0f%%, %d worse\n", c.Compared(), 100*c.Tolerance, len(c.Regressions()))
	return b.String()
}
