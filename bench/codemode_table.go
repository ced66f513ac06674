//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/bench/codemode"
)

// codemodeTables formats the tables of docs/code-mode-benchmark.md. ways are direct calls,
// those through one server, code in JavaScript, and others.
func codemodeTables(ways []*way) string {
	direct, code := ways[0], ways[2]
	var b strings.Builder
	b.WriteString("| task | servers | direct | code | code ÷ direct | definitions of all servers | carried | without definitions | round trips | time, direct | time, code |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	var sums [2]struct{ direct, code solution }
	for _, t := range codemode.Tasks {
		d, c := direct.solved[t.Name], code.solved[t.Name]
		group := &sums[1]
		if t.Large {
			group = &sums[0]
		}
		group.direct.add(d)
		group.code.add(c)
		b.WriteString(codemodeRow(t.Name, strings.Join(t.Servers, ", "), d, c))
	}
	for i, name := range []string{"**the eight large tasks**", "**the four small tasks**"} {
		b.WriteString(codemodeRow(name, "", &sums[i].direct, &sums[i].code))
	}

	b.WriteString("\n| | definitions | large tasks | small tasks | large, carried | time, all tasks |\n|---|---|---|---|---|---|\n")
	for _, one := range ways {
		if one.why != "" {
			fmt.Fprintf(&b, "| %s | %s | | | | |\n", one.name, one.why)
			continue
		}
		var large, small, all solution
		for _, t := range codemode.Tasks {
			s := one.solved[t.Name]
			all.add(s)
			if t.Large {
				large.add(s)
			} else {
				small.add(s)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", one.name, thousands(one.solved[codemode.Tasks[0].Name].All.Catalogue),
			thousands(large.All.Sum()), thousands(small.All.Sum()), thousands(large.All.Carried), duration(&all))
	}
	return b.String()
}

// codemodeRow formats a row that compares two solutions, and marks where code costs more.
func codemodeRow(name, servers string, d, c *solution) string {
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %d → %d | %s | %s |\n", name, servers,
		thousands(d.Cost.Sum()), thousands(c.Cost.Sum()), share(c.Cost.Sum(), d.Cost.Sum()),
		share(c.All.Sum(), d.All.Sum()), share(c.Cost.Carried, d.Cost.Carried),
		share(c.Cost.Requests+c.Cost.Results, d.Cost.Requests+d.Cost.Results),
		d.Cost.Turns, c.Cost.Turns, duration(d), duration(c))
}

// add adds the costs of another task.
func (s *solution) add(other *solution) {
	s.Cost.Add(other.Cost)
	s.All.Add(other.All)
	s.Ms = []float64{s.milliseconds() + other.milliseconds()}
}

// share formats a ratio as a percentage, and marks one that is no saving.
func share(x, y int) string {
	percent := 100 * float64(x) / float64(y)
	text := fmt.Sprintf("%.1f%%", percent)
	if percent >= 10 {
		text = fmt.Sprintf("%.0f%%", percent)
	}
	if x >= y {
		return "**" + text + "**, more"
	}
	return text
}

func duration(s *solution) string {
	if ms := s.milliseconds(); ms < 995 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", s.milliseconds()/1000)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
