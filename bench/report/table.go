package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table formats the result: rows by scenario with remarks last, then the number of met
// targets.
func (r Result) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.about())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tp50\tp95\tp99\tn\tratio\tto\ttarget\tmet\tremarks")
	scenario := ""
	for _, f := range r.Figures {
		if f.Scenario != scenario {
			scenario = f.Scenario
			fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\t\t\n", strings.ToUpper(scenario))
		}
		fmt.Fprintln(w, strings.Join(f.cells(), "\t"))
	}
	w.Flush()
	text := b.String()
	b.Reset()
	for line := range strings.Lines(text) { // tabwriter pads what is empty
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	b.WriteString("\n" + r.verdict())
	return b.String()
}

// cells returns the columns of a row. Peers have short names, with which their own rows
// begin.
func (f Figure) cells() []string {
	name := "  " + f.Name
	switch f.Role {
	case Part:
		name = "    " + f.Name
	case Peer:
		name = "  " + short(f.ID) + ": " + f.Name
	}
	remarks := f.Note
	if f.Missing != "" {
		remarks = "– " + f.Missing
		if f.Note != "" {
			remarks += "; " + f.Note
		}
		var target string
		if len(f.Targets) > 0 {
			target = f.targets()
		}
		return []string{name, "–", "", "", "", "", "", target, "", remarks}
	}
	cells := []string{name, strings.TrimSpace(number(f.P50) + " " + f.Unit), "", "", fmt.Sprint(f.N), "", "", "", "", remarks}
	if f.N > 1 {
		cells[2], cells[3] = number(f.P95), number(f.P99)
	}
	if f.Ratio > 0 {
		cells[5], cells[6] = number(f.Ratio)+" ×", short(f.Peer)
	}
	if len(f.Targets) > 0 {
		cells[7], cells[8] = f.targets(), "yes"
		for _, t := range f.Targets {
			if t.Met == nil {
				cells[8] = "?"
			}
		}
		if len(f.Missed()) > 0 {
			cells[8] = "NO"
		}
	}
	return cells
}

// short returns the name of a peer in the ratio column.
func short(id string) string { return strings.TrimPrefix(id, "peer.") }

func (f Figure) targets() string {
	var all []string
	for _, t := range f.Targets {
		all = append(all, t.text(f.Unit))
	}
	return strings.Join(all, ", ")
}

func (t Target) text(unit string) string {
	sign := "≤"
	if t.AtLeast {
		sign = "≥"
	}
	limit := strconv.FormatFloat(t.Limit, 'f', -1, 64)
	switch t.Of {
	case Ratio:
		return fmt.Sprintf("%s %s ×", sign, limit)
	case Tail:
		return fmt.Sprintf("p99 %s %s p50", sign, limit)
	case Worst:
		return strings.TrimSpace(fmt.Sprintf("max %s %s %s", sign, limit, unit))
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", sign, limit, unit))
}

// number formats three significant digits without an exponent.
func number(x float64) string {
	digits := 0
	switch a := math.Abs(x); {
	case a == 0 || a >= 99.95:
	case a >= 9.995:
		digits = 1
	case a >= 0.9995:
		digits = 2
	default:
		digits = min(6, 2-int(math.Floor(math.Log10(a))))
	}
	return fmt.Sprintf("%.*f", digits, x)
}

func (r Result) about() string {
	mode := ""
	if r.Quick {
		mode = ", quick: few samples, for a look only"
	}
	return fmt.Sprintf("glovebox %s, %s, %d × %s, %d MB, Linux %s, %.0f s in all%s",
		r.Versions["glovebox"], r.At.UTC().Format("2006-01-02 15:04 UTC"),
		r.Machine.CPUs, r.Machine.CPU, r.Machine.MemoryMB, r.Machine.Kernel, r.Seconds, mode)
}

// verdict counts the targets and lists missed targets and failed scenarios.
func (r Result) verdict() string {
	var b strings.Builder
	met, judged, all := 0, 0, 0
	for _, f := range r.Figures {
		for _, t := range f.Targets {
			all++
			if t.Met == nil {
				continue
			}
			judged++
			if *t.Met {
				met++
			}
		}
	}
	fmt.Fprintf(&b, "targets: %d of %d met", met, judged)
	if judged < all {
		fmt.Fprintf(&b, ", %d not measured", all-judged)
	}
	b.WriteByte('\n')
	for _, f := range r.Figures {
		for _, t := range f.Missed() {
			value, _ := f.value(t.Of)
			fmt.Fprintf(&b, "missed: %s: %s, target %s\n", f.Name, number(value), t.text(f.Unit))
		}
	}
	for _, s := range r.Scenarios {
		if s.Error != "" {
			fmt.Fprintf(&b, "failed: %s: %s\n", s.Name, s.Error)
		}
	}
	return b.String()
}
