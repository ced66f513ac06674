package mcpcli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// minHashPrefix is the minimum length of an abbreviated hash of an approval.
const minHashPrefix = 4

func (a *app) approvalsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "List and revoke your approvals of calls by code in boxes",
		Long: `Approvals manages the tool calls for which you answered "always" when code in a box
asked. Without a subcommand, it lists them.`,
		Args: noCommand,
		RunE: a.run(a.listApprovals),
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "ls",
		Short: "List the calls that you always allow",
		Long: `Ls lists the calls that you always allow. Each line has the tool, the date, and the
beginning of the SHA-256 of the call with its arguments, which are not stored.`,
		SuggestFor: []string{"list"},
		Args:       exactly(0),
		RunE:       a.run(a.listApprovals),
	}, &cobra.Command{
		Use:   "revoke SERVER|SERVER.TOOL|HASH…",
		Short: "Revoke approvals by server, tool or hash",
		Long: `Revoke removes all approvals of a server or of a tool, or the one with a hash, as ls
shows it; the first four characters are enough. The next such call needs approval again.`,
		Args: atLeast(1),
		RunE: a.run(a.revokeApprovals),
	})
	return cmd
}

// noCommand rejects arguments of a command with subcommands.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	hint := suggestion(args[0], names, "the commands are: "+strings.Join(names, ", "))
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("did you mean %s?", near[0])
	}
	return usage(hint, "unknown command %q for %s", args[0], cmd.CommandPath())
}

// approvals returns the store that servers with --tools use, and what it holds for the
// owner of the flags.
func (a *app) approvals() (*approval.Store, []approval.Remembered, error) {
	dir, err := a.StateDir()
	if err != nil {
		return nil, nil, err
	}
	store := &approval.Store{Dir: filepath.Join(dir, "approvals")}
	all, err := store.List(a.flags.owner)
	return store, all, err
}

func (a *app) listApprovals(context.Context, []string) error {
	_, all, err := a.approvals()
	if err != nil {
		return err
	}
	if a.flags.output == "json" {
		if all == nil {
			all = []approval.Remembered{}
		}
		return a.json(map[string]any{"approvals": all})
	}
	if len(all) == 0 {
		a.note(`glovebox: no approvals; the answer "always" to a question about a call adds one`)
		return nil
	}
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	for _, one := range all {
		fmt.Fprintf(w, "%s\t%s\t%.12s\n", oneLine(one.Server+"."+one.Tool), one.At.Format(time.DateOnly), oneLine(one.SHA256))
	}
	return w.Flush()
}

// revokeApprovals revokes what the names match, also if others match nothing.
func (a *app) revokeApprovals(ctx context.Context, names []string) error {
	store, all, err := a.approvals()
	if err != nil {
		return err
	}
	chosen := make(map[string]bool) // by hash
	var faulty error                // of the first name
	for _, name := range names {
		hashes, err := approvalsOf(all, name)
		for _, hash := range hashes {
			chosen[hash] = true
		}
		if faulty == nil {
			faulty = err
		}
	}
	if len(chosen) > 0 {
		revoked, err := store.Revoke(ctx, a.flags.owner, func(r approval.Remembered) bool { return chosen[r.SHA256] })
		if err != nil {
			return err
		}
		a.note("glovebox: revoked %s", plural.N(len(revoked), "approval"))
	}
	return faulty
}

// approvalsOf returns the hashes of the approvals that a name stands for: those of a
// server or tool or, if there are none, the one whose hash begins so.
func approvalsOf(all []approval.Remembered, name string) (hashes []string, err error) {
	for _, one := range all {
		if name == one.Server || name == one.Server+"."+one.Tool {
			hashes = append(hashes, one.SHA256)
		}
	}
	if len(hashes) > 0 {
		return hashes, nil
	}
	known := make([]string, 0, 2*len(all))
	for _, one := range all {
		if len(name) >= minHashPrefix && strings.HasPrefix(one.SHA256, strings.ToLower(name)) {
			hashes = append(hashes, one.SHA256)
		}
		known = append(known, one.Server, one.Server+"."+one.Tool)
	}
	const list = "glovebox mcp approvals ls lists them"
	switch len(hashes) {
	case 0:
		return nil, usage(suggestion(name, known, list), "revoke approvals of %q: no server, tool or hash of an approval has this name", name)
	case 1:
		return hashes, nil
	}
	return nil, usage(list+"; with -o json, in full", "revoke approval %q: %d hashes begin so", name, len(hashes))
}
