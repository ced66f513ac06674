package mcpcli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
)

func (a *app) trustCommand() *cobra.Command {
	var yes, tools, noPin bool
	cmd := &cobra.Command{
		Use:   "trust SERVER…",
		Short: "Approve servers",
		Long: `Trust shows the definitions of servers and asks whether to use them. It stores your
approval with hashes of the definition and of the local files that it runs: any change
requires a new approval. It does not cover what these files load, nor packages that
are downloaded.

A tool whose definition has changed since it was first used is not called until you
review it with --tools. For a server that changes its tools each time, such as one with
the time in a description, --no-pin accepts all changes.`,
		Args:              atLeast(1),
		ValidArgsFunction: a.completeServers,
		RunE: a.run(func(ctx context.Context, args []string) error {
			if noPin {
				for _, name := range args {
					if err := a.unpin(ctx, name, yes); err != nil {
						return err
					}
				}
				return nil
			}
			if !tools {
				return a.trustServers(ctx, args, yes)
			}
			for _, name := range args {
				if err := a.reviewTools(ctx, name, yes); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&tools, "tools", false, "connect, show the tools that have changed since they were first used, and ask whether to use them")
	cmd.Flags().BoolVar(&noPin, "no-pin", false, "accept all changes of the servers' tools, now and later; --tools compares them again")
	cmd.MarkFlagsMutuallyExclusive("tools", "no-pin")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "approve without asking")
	cmd.AddCommand(&cobra.Command{
		Use: "ls", Short: "List approved servers", Args: exactly(0), RunE: a.run(a.listTrust),
	}, &cobra.Command{
		Use: "revoke SERVER…", Short: "Revoke the approval of servers with that name, in all configurations",
		Long: `Revoke takes back the approval of servers with that name, in all configurations. A
running Glovebox goes on with the servers that it has started, until it restarts.`,
		Args: atLeast(1), RunE: a.run(a.revoke),
	})
	return cmd
}

func (a *app) trustServers(ctx context.Context, names []string, yes bool) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	store, err := a.consents()
	if err != nil {
		return err
	}
	m, err := a.open(cfg, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	for _, name := range names {
		session, err := m.Session(name) // connects to nothing
		if err != nil {
			return err
		}
		s := session.Definition()
		q, err := a.question(ctx, store, s)
		if err != nil {
			return err
		}
		switch {
		case q.state == consent.Granted:
			a.note("glovebox: %s is already approved", name)
			continue
		case !yes && !a.terminal():
			return usage("use --yes", "no terminal to ask about mcp server %q", name)
		}
		if q.Files, err = a.files(ctx, s); err != nil {
			return err
		}
		switch {
		case yes:
			a.describe(ctx, a.Err, s, q.Files)
		default:
			ok, err := a.consent(ctx, s, q)
			if err != nil {
				return err
			}
			if !ok {
				return &Error{Code: ExitRefused, Err: fmt.Errorf("mcp server %q was not approved", name)}
			}
		}
		if err := store.Grant(ctx, q.Definition); err != nil {
			return err
		}
		a.note("glovebox: approved %s of %s", visible.Line(s.Name), visible.Line(source(s)))
	}
	return nil
}

func (a *app) listTrust(context.Context, []string) error {
	store, err := a.consents()
	if err != nil {
		return err
	}
	grants, err := store.Grants()
	if err != nil {
		return err
	}
	if a.flags.output == "json" {
		return a.json(map[string]any{"servers": grants})
	}
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	for _, g := range grants {
		fmt.Fprintf(w, "%s\t%s\t%s\n", oneLine(g.Server), g.At.Format(time.DateOnly), oneLine(g.Source))
	}
	return w.Flush()
}

// revoke revokes the approvals of the servers with the names, also if others have none.
func (a *app) revoke(ctx context.Context, names []string) error {
	store, err := a.consents()
	if err != nil {
		return err
	}
	grants, err := store.Grants()
	if err != nil {
		return err
	}
	known := make([]string, len(grants))
	for i, g := range grants {
		known[i] = g.Server
	}
	revoked := 0
	var faulty error // of the first name without an approval
	for _, name := range names {
		gone, err := store.Revoke(ctx, name, "")
		if err != nil {
			return err
		}
		if len(gone) == 0 && faulty == nil {
			faulty = usage(suggestion(name, known, "glovebox mcp trust ls lists the approved servers"), "revoke the approval of mcp server %q: no approved server has this name", name)
		}
		for _, g := range gone {
			a.note("glovebox: revoked the approval of %s of %s", visible.Line(g.Server), visible.Line(g.Source))
		}
		revoked += len(gone)
	}
	if revoked > 0 {
		a.note("glovebox: note: a running Glovebox goes on with the servers that it has started, until it restarts")
	}
	return faulty
}
