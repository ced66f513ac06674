package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// maxConcurrent bounds the servers that status checks at the same time.
const maxConcurrent = 4

// health is the result of a check.
type health struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Version  string `json:"protocol,omitempty"`
	Server   string `json:"server,omitempty"`
	Tools    int    `json:"tools"`
	Millis   int64  `json:"ms"`
	Login    string `json:"login,omitempty"`
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
	ExitCode int    `json:"code"`
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [SERVER…]",
		Short: "Check servers",
		Long: `Status connects to servers, by default all that are not disabled, and lists their
tools. It refuses servers that you have not approved, without asking. The exit code is
the highest of all servers.`,
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(a.status),
	}
}

func (a *app) status(ctx context.Context, names []string) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	terminal := a.terminal
	a.terminal = func() bool { return false }
	defer func() { a.terminal = terminal }()
	m, err := a.open(cfg, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	if len(names) == 0 {
		for _, s := range cfg.Servers {
			if !s.Disabled {
				names = append(names, s.Name)
			}
		}
	}
	found := make([]health, len(names))
	slots := make(chan struct{}, maxConcurrent)
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			found[i] = a.check(ctx, m, name)
		})
	}
	wg.Wait()
	worst := 0
	for i := range found {
		worst = max(worst, found[i].ExitCode)
		if err := a.addLogin(ctx, cfg, &found[i]); err != nil {
			return err
		}
	}
	if a.flags.output == "json" {
		err = a.json(map[string]any{"servers": found})
	} else {
		w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
		for _, h := range found {
			if h.OK {
				server := oneLine(h.Server)
				if h.Login != "" {
					server += "\t" + h.Login
				}
				fmt.Fprintf(w, "%s\tok\t%s\t%s\t%d ms\t%s\n", oneLine(h.Name), oneLine(h.Version), plural.N(h.Tools, "tool"), h.Millis, server)
			} else {
				why := h.Error
				if h.Hint != "" {
					why += " (" + h.Hint + ")"
				}
				fmt.Fprintf(w, "%s\t%s\t\t\t%d ms\t%s\n", oneLine(h.Name), kinds[h.ExitCode], h.Millis, oneLine(why))
			}
		}
		err = w.Flush()
	}
	if err != nil {
		return err
	}
	if worst != 0 {
		return &Error{Code: worst, Err: errors.New("some servers failed"), Silent: true}
	}
	return nil
}

func (a *app) check(ctx context.Context, m *mcpkit.Manager, name string) health {
	begun := time.Now()
	h := health{Name: name}
	err := func() error {
		s, err := m.Session(name)
		if err != nil {
			return err
		}
		info, err := s.Initialize(ctx)
		if err != nil {
			return a.unreached(err)
		}
		h.Version = info.ProtocolVersion
		if info.ServerInfo != nil {
			h.Server = info.ServerInfo.Name + " " + info.ServerInfo.Version
		}
		tools, err := s.Tools(ctx)
		h.Tools = len(tools)
		return err
	}()
	h.Millis = time.Since(begun).Milliseconds()
	if e := a.classify(err); e != nil {
		h.Error, h.Hint, h.ExitCode = e.Error(), e.HintTo, e.Code
	}
	h.OK = err == nil
	return h
}

// addLogin adds the state of the login, after its use.
func (a *app) addLogin(ctx context.Context, cfg *mcpjson.Config, h *health) error {
	s := cfg.Server(h.Name)
	if s == nil {
		return nil
	}
	trust, err := a.trustState(ctx, s)
	if err == nil {
		h.Login, err = a.loginState(ctx, s, a.flags.trust || trust == "trusted")
	}
	return err
}
