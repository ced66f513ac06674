package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// doctorTimeout bounds all checks: a hundred times what they take.
const doctorTimeout = 2 * time.Minute

// finding is the result of a check. The output of doctor --json is part of the
// interface.
type finding struct {
	Name   string `json:"name"`
	Level  string `json:"level"` // ok, warn (boxes work with restrictions) or fail (they do not)
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // command or other remedy
}

// The levels of findings.
const (
	levelOK   = string(engine.LevelOK)
	levelWarn = string(engine.LevelWarn)
	levelFail = string(engine.LevelFail)
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON, inspect bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether boxes work on this machine",
		Long: `Doctor checks this machine or, with --engine kube, a cluster. With --engine microsandbox, it
checks whether this machine boots microVMs. At the end, it boots a box for each installed language
and runs code in it. Exit code 0: boxes work; 1: they do not.

With --box, it boots a box and restores a copy instead, and reports from outside how
each of their processes is confined: user, namespaces, capabilities, filters, open
descriptors. Exit code 1: a process is not as docs/threat-model.md promises.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			if inspect {
				return a.doctorBox(cmd.Context(), cfg, asJSON)
			}
			return a.doctor(cmd.Context(), cfg, asJSON)
		},
	}
	bind(cmd, "volumes", "host", "engine")
	cmd.Flags().BoolVar(&inspect, "box", false, "inspect the processes of a box")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) doctor(ctx context.Context, cfg *config.Config, asJSON bool) error {
	ctx, stop := untilSignal(ctx, func() {}, nil)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, fmt.Errorf("the checks took longer than %v", doctorTimeout))
	defer cancel()

	// If the program restarts in new namespaces, the checks run there.
	entered := enter(cfg)
	found := append(probe(ctx), examineUnit(ctx)...)
	if entered != nil {
		found = append(found, failed("start", entered))
	} else {
		found = append(found, examine(ctx, cfg)...)
	}
	ok := true
	for _, f := range found {
		ok = ok && f.Level != levelFail
	}
	if err := a.printFindings(found, ok, asJSON); err != nil {
		return err
	}
	if !ok {
		return &exitStatus{code: ExitFailure}
	}
	return nil
}

// probe returns the engine's findings, without booting a guest.
func probe(ctx context.Context) []finding {
	var list []finding
	for _, f := range engines.Default().Probe(ctx) {
		list = append(list, finding{f.Name, string(f.Level), f.Detail, f.Fix})
	}
	return list
}

// failed converts an error into a finding.
func failed(name string, err error) finding {
	f := finding{Name: name, Level: levelFail, Detail: err.Error()}
	var h *hinted
	if host, ok := errors.AsType[*engine.HostError](err); ok {
		f.Detail, f.Fix = host.Cause.Error(), host.Fix
	} else if errors.As(err, &h) {
		f.Fix = h.hint
	}
	var e *box.Error
	if f.Fix == "" && errors.As(err, &e) {
		f.Fix = e.Hint
	}
	return f
}

// examine opens everything that a server opens, and boots boxes.
func examine(ctx context.Context, cfg *config.Config) []finding {
	found := []finding{{Name: "state", Level: levelOK, Detail: cfg.StateDir}}
	h, err := openHost(ctx, cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return append(found, failed("start", err))
	}
	// These boxes use no disk.
	if err := h.manage(ctx, boxConfig(cfg), box.Parts{Machines: h.maker, Log: h.log}); err != nil {
		return append(found, failed("start", errors.Join(err, h.close())))
	}
	for _, l := range h.engine.Info().Limits {
		f := finding{Name: "limit " + l.Resource, Level: levelOK, Detail: "hard, by " + l.By}
		if !l.Hard {
			f.Level, f.Detail = levelWarn, "soft, by "+l.By
			if l.Why != "" {
				f.Detail += ": " + l.Why
			}
		}
		found = append(found, f)
	}
	for _, language := range []string{image.Python, image.JavaScript} {
		f := interpreter(h.image, language)
		if cfg.Image != "" {
			f.Fix = "" // it applies to this machine's programs
		}
		found = append(found, f)
	}
	for _, warning := range h.image.Warnings {
		found = append(found, finding{Name: "interpreters", Level: levelWarn, Detail: warning})
	}
	for _, note := range h.image.Notes {
		found = append(found, finding{Name: "note", Level: levelOK, Detail: note})
	}
	if len(h.image.Interpreters) == 0 {
		f := finding{Name: "box", Level: levelFail, Detail: "neither Python nor Node.js found", Fix: "type: apt-get install python3 nodejs"}
		if cfg.Image != "" {
			f.Level, f.Detail, f.Fix = levelWarn, f.Detail+" in "+cfg.Image+": boxes run commands only", "choose another image to run code"
		}
		found = append(found, f)
	}
	for _, language := range []string{image.Python, image.JavaScript} {
		if _, ok := h.image.Interpreters[language]; ok {
			found = append(found, prove(ctx, h.manager, language))
		}
	}
	if err := h.close(); err != nil {
		found = append(found, failed("stop", err))
	}
	return found
}

// interpreter returns the finding on the interpreter of a language.
func interpreter(img *image.Image, language string) finding {
	i, ok := img.Interpreters[language]
	if !ok {
		fix := map[string]string{
			image.Python:     "type: apt-get install python3 python3-pandas python3-matplotlib (or name one: --python ~/venv/bin/python)",
			image.JavaScript: "type: apt-get install nodejs (or name one: --node ~/node/bin/node)",
		}
		return finding{language, levelWarn, "none found", fix[language]}
	}
	f := finding{Name: language, Level: levelOK, Detail: strings.TrimSpace(i.Version + " " + i.Path)}
	if language != image.Python {
		return f
	}
	if i.Prefix != "/usr" {
		f.Detail += " in " + i.Prefix
	}
	if len(i.Libraries) > 0 {
		f.Detail += ", has " + strings.Join(i.Libraries, " ")
	} else {
		f.Detail += ", no data libraries"
	}
	var missing []string
	for _, lib := range []string{"numpy", "pandas", "matplotlib"} {
		if !slices.Contains(i.Libraries, lib) {
			missing = append(missing, lib)
		}
	}
	if len(missing) > 0 {
		f.Level = levelWarn
		f.Fix = "for data analysis, type: " + i.HowToInstall(missing...) + " (or name another Python: --python ~/venv/bin/python)"
	}
	return f
}

// proofs are programs and their output.
var proofs = map[string][2]string{
	image.Python:     {"print(6 * 7)", "42"},
	image.JavaScript: {"console.log(6 * 7)", "42"},
}

// prove boots a box and runs code in it.
func prove(ctx context.Context, m *box.Manager, language string) finding {
	name := "box " + language
	begin := time.Now()
	b, err := m.CreateContext(ctx, "", box.ContextOptions{Name: "doctor", Language: language})
	if err != nil {
		return failed(name, err)
	}
	booted := time.Now()
	res, err := b.Run(ctx, box.RunRequest{Code: proofs[language][0], Language: language})
	if err != nil {
		return failed(name, err)
	}
	ran := time.Now()
	if strings.TrimSpace(res.Stdout) != proofs[language][1] {
		return finding{name, levelFail, fmt.Sprintf("%s printed %q: %s", proofs[language][0], res.Stdout, res.Stderr), "report this with the output of glovebox doctor --json"}
	}
	if _, err := m.Stop(ctx, "", box.KindContext, b.ID()); err != nil {
		return failed(name, err)
	}
	return finding{Name: name, Level: levelOK, Detail: fmt.Sprintf("booted in %d ms, ran code in %.1f ms",
		booted.Sub(begin).Milliseconds(), float64(ran.Sub(booted).Microseconds())/1000)}
}

func (a *app) printFindings(found []finding, ok, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			OK       bool      `json:"ok"`
			Findings []finding `json:"findings"`
		}{ok, found})
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	for _, f := range found {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Name, printable(f.Detail))
		if f.Fix != "" {
			fmt.Fprintf(w, "\t\t> %s\n", printable(f.Fix))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	where := "on this machine"
	if engines.BoxesElsewhere() != nil {
		where = "in this cluster"
	}
	verdict := "Boxes work " + where + "."
	if !ok {
		verdict = "Boxes do not work " + where + " yet: fix the findings marked fail."
	}
	_, err := fmt.Fprintln(a.Out, "\n"+verdict)
	return err
}
