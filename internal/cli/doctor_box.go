package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/posture"
)

// boxReport is the result of doctor --box. Its JSON is part of the interface.
type boxReport struct {
	OK        bool         `json:"ok"`
	Mode      posture.Mode `json:"mode"`
	Processes []boxProcess `json:"processes"`

	server posture.Facts
	groups bool // the memory of boxes is limited by cgroups of their own
}

// newBoxReport returns a report with the server.
func newBoxReport(server posture.Facts, groups bool) *boxReport {
	r := &boxReport{OK: true, Mode: posture.ModeOf(server), server: server, groups: groups}
	r.add("", server)
	return r
}

// add adds a process of the box of that name, and its differences from the threat model.
func (r *boxReport) add(box string, f posture.Facts) {
	p := boxProcess{Box: box, Facts: f, Differences: posture.Check(r.Mode, r.server, f, r.groups)}
	r.OK = r.OK && len(p.Differences) == 0
	r.Processes = append(r.Processes, p)
}

// boxProcess is a process of a box, or the server.
type boxProcess struct {
	Box string `json:"box"` // empty for the server
	posture.Facts
	Differences []string `json:"differences"` // from docs/threat-model.md
}

// The boxes that doctor --box inspects.
const (
	newBox      = "new"
	restoredBox = "restored" // a copy of the first: what forks, templates and waking boxes are
)

// doctorBox boots boxes and compares the confinement of their processes with the threat
// model.
func (a *app) doctorBox(ctx context.Context, cfg *config.Config, asJSON bool) (err error) {
	ctx, stop := untilSignal(ctx, func() {}, nil)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, fmt.Errorf("the inspection took longer than %v", doctorTimeout))
	defer cancel()
	if err := enter(cfg); err != nil {
		return err
	}
	if engines.BoxesElsewhere() != nil {
		return withHint(fmt.Errorf("inspect the processes of a box: with the engine %s they are on another machine", cfg.Engine), "docs/kubernetes.md says how Pods are confined")
	}
	h, err := openHost(ctx, cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	report, err := inspectBoxes(ctx, h, cfg)
	if err != nil {
		return err
	}
	return a.reportPosture(report, asJSON)
}

// reportPosture prints a report, and returns an error with [ExitFailure] if it has a
// difference.
func (a *app) reportPosture(r *boxReport, asJSON bool) error {
	if err := a.printPosture(r, asJSON); err != nil {
		return err
	}
	if !r.OK {
		return &exitStatus{code: ExitFailure}
	}
	return nil
}

// inspectBoxes boots a box, restores a copy of it, and inspects both and the server.
func inspectBoxes(ctx context.Context, h *host, cfg *config.Config) (*boxReport, error) {
	inspector, ok := engine.As[posture.Inspector](h.engine)
	if !ok {
		return nil, fmt.Errorf("inspect a box: engine %s has no processes on this host: %w", h.engine.Info().Name, engine.ErrUnsupported)
	}
	server, err := posture.Read(posture.Process{PID: os.Getpid(), Role: posture.Server})
	if err != nil {
		return nil, err
	}
	groups := slices.ContainsFunc(h.engine.Info().Limits, func(l engine.Limit) bool { return l.Resource == "memory" && l.Hard })
	r := newBoxReport(server, groups)
	inspect := func(name string, m *machine.Machine) error {
		list, err := inspector.Processes(ctx, m.ID)
		if err != nil {
			return err
		}
		for _, p := range list {
			f, err := posture.Read(p)
			if errors.Is(err, os.ErrNotExist) {
				continue // a stub that has ended since
			}
			if err != nil {
				return err
			}
			r.add(name, f)
		}
		return nil
	}
	return r, withBoxes(ctx, h, box.Flavor(cfg.DefaultFlavor).Limits(), inspect)
}

// withBoxes calls do with a new machine that runs an interpreter and, if the engine
// restores machines, with a copy of it.
func withBoxes(ctx context.Context, h *host, limits engine.Limits, do func(string, *machine.Machine) error) (err error) {
	closed := func(m *machine.Machine) {
		freeing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, m.Close(freeing))
	}
	id := "doctor-" + strings.ToLower(rand.Text()[:8])
	m, err := h.maker.Boot(ctx, id, limits)
	if err != nil {
		return fmt.Errorf("boot a box: %w", explain(err))
	}
	defer closed(m)
	for language := range h.maker.Interpreters {
		if err := m.Start(ctx, language, nil); err != nil {
			return err
		}
	}
	if err := do(newBox, m); err != nil || !h.maker.Snapshots() {
		return err
	}
	dir, err := os.MkdirTemp("", "glovebox-doctor-")
	if err != nil {
		return fmt.Errorf("make a directory for a copy of the box: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := m.Snapshot(ctx, dir); err != nil {
		return fmt.Errorf("write the box: %w", err)
	}
	c, err := h.maker.Restore(ctx, id+"-copy", limits, dir, true)
	if err != nil {
		return fmt.Errorf("restore the box: %w", err)
	}
	defer closed(c)
	return do(restoredBox, c)
}

func (a *app) printPosture(r *boxReport, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	for _, alike := range groupAlike(r.Processes) {
		if err := a.printProcesses(alike); err != nil {
			return err
		}
	}
	verdict := "Every process is as docs/threat-model.md promises."
	if !r.OK {
		verdict = "Some processes are not as docs/threat-model.md promises: report this with the output of glovebox doctor --box --json."
	}
	_, err := fmt.Fprintf(a.Out, "Mode: %s. %s\n", r.Mode, verdict)
	return err
}

// groupAlike puts processes together that differ in nothing but their numbers, such as the
// dozens of stubs of a box.
func groupAlike(list []boxProcess) [][]boxProcess {
	var groups [][]boxProcess
next:
	for _, p := range list {
		for i, g := range groups {
			same := g[0]
			same.PID = p.PID
			if reflect.DeepEqual(same, p) {
				groups[i] = append(g, p)
				continue next
			}
		}
		groups = append(groups, []boxProcess{p})
	}
	return groups
}

// printProcesses prints processes that are alike.
func (a *app) printProcesses(alike []boxProcess) error {
	p := alike[0]
	title := string(p.Role)
	if len(alike) > 1 {
		title = fmt.Sprintf("%d processes: %s", len(alike), title)
	}
	if p.Box != "" {
		title += " of a " + p.Box + " box"
	}
	if _, err := fmt.Fprintf(a.Out, "%s, process %d\n", title, p.PID); err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(w, "  %s\t%s\n", name, printable(value)) }
	line("user, group, others", fmt.Sprintf("%d, %d, %v", p.UID, p.GID, p.Groups))
	line("user namespace", p.UserNamespace+", maps "+strings.Join(p.UIDMap, "; "))
	line("other namespaces", strings.Join(p.Namespaces, " "))
	line("capabilities", orNone(p.Capabilities))
	line("bounding set", orNone(p.Bounding))
	line("seccomp, no_new_privs", fmt.Sprintf("%t, %t", p.Seccomp, p.NoNewPrivs))
	line("core dumps, dumpable", fmt.Sprintf("%t, %s", p.CoreDumps, p.Dumpable))
	line("memory cgroup", p.MemoryGroup)
	line("oom_score_adj", fmt.Sprint(p.OOMScoreAdj))
	var open []string
	for _, kind := range slices.Sorted(maps.Keys(p.Descriptors)) {
		open = append(open, fmt.Sprintf("%d %s", p.Descriptors[kind], kind))
	}
	line("open descriptors", strings.Join(open, "; "))
	for _, d := range p.Differences {
		line("FAIL", d)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Out)
	return err
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, " ")
}
