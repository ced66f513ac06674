package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

func (a *app) networkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Show and check what boxes may reach",
		Long: `Network shows the network policy of boxes, as the settings --network and --network-file
have it, and checks it for a host. These commands read the settings of this command
line, environment and file, and not those of a running server.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.networkShowCommand(), a.networkCheckCommand())
	return cmd
}

// bindNetwork adds the flags of a network command.
func bindNetwork(cmd *cobra.Command, owner *string, group string) {
	cmd.Flags().StringVar(owner, "owner", "", `whose boxes, as in the file: "token NAME" [the local user]`)
	help.Group(cmd.Flags(), group, "owner")
	bind(cmd, "network", "host")
}

func (a *app) networkShowCommand() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the hosts that boxes may reach",
		Long: `Show lists what boxes may reach: each rule with its ports and hosts. Without --owner, it
shows the policy of the local user and lists the owners with policies of their own. It
lists the secrets of these boxes, too, without their values, the authorities of
--egress-ca, and templates with a limit of their own, with what that leaves of the policy. A single box can be narrower still, by
the argument network of the tool that made it.`,
		Example: `  glovebox network show --network npm,api.example.org`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			n, err := readNetwork(cfg)
			if err != nil {
				return err
			}
			if err := showPolicy(a.Out, n.Of(owner)); err != nil {
				return err
			}
			if err := a.showTemplateLimits(cfg, n.Set(owner), owner); err != nil {
				return err
			}
			if err := showSecrets(a.Out, n.Secrets(), owner); err != nil {
				return err
			}
			if err := a.showAuthorities(cfg); err != nil {
				return err
			}
			a.noteOwner(cfg, n, owner)
			if owner == "" {
				for _, o := range n.Owners() {
					a.note("glovebox: %s has a policy of its own: glovebox network show --owner %q", printable(o), o)
				}
			}
			return a.checkSecrets(cfg, n)
		},
	}
	bindNetwork(cmd, &owner, "Show")
	return cmd
}

// noteOwner says that the file has no section for an owner, who may be misspelled.
func (a *app) noteOwner(cfg *config.Config, n *config.Network, owner string) {
	if owner == "" || cfg.NetworkFile == "" || slices.Contains(n.Owners(), owner) {
		return
	}
	hint := ""
	if near := nearest.Of(owner, n.Owners()); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	a.note("glovebox: %s has no section for the owner %q, so the default applies%s", printable(cfg.NetworkFile), owner, hint)
}

// showSecrets prints the secrets of an owner's boxes: where they are used, and no value.
func showSecrets(out io.Writer, all []config.Secret, owner string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	shown := false
	for _, s := range all {
		owners := s.Owners
		if len(owners) == 0 {
			owners = []string{""}
		}
		if !slices.Contains(owners, owner) && !slices.Contains(owners, secret.Everyone) {
			continue
		}
		if !shown {
			fmt.Fprintln(w, "\nSECRET\tVARIABLE\tHEADERS\tHOSTS")
		}
		shown = true
		headers := strings.Join(s.Headers, " ")
		fmt.Fprintln(w, printable(fmt.Sprintf("%s\t%s\t%s\t%s", s.Name, cmp.Or(s.As, "-"), cmp.Or(headers, "Authorization"), strings.Join(s.Hosts, " "))))
	}
	if !shown {
		return nil
	}
	return w.Flush()
}

// showPolicy prints a policy, which may be nil.
func showPolicy(out io.Writer, p *policy.Policy) error {
	if !(policy.Set{Owner: p}).On() {
		_, err := fmt.Fprintln(out, "Network: off.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tPORTS\tHOSTS")
	for _, r := range p.Allow {
		fmt.Fprintln(w, ruleLine("allow "+r.Name, portsOf(r), r))
	}
	for _, r := range p.Deny {
		ports := "all"
		if !r.DeniesAllPorts() {
			ports = portsOf(r)
		}
		fmt.Fprintln(w, ruleLine("deny "+r.Name, ports, r))
	}
	fmt.Fprintf(w, "\nEverything else is refused. Version %s.\n", p.Version)
	return w.Flush()
}

// portsOf lists the ports of a rule.
func portsOf(r policy.Rule) string {
	var ports []string
	for _, p := range r.Ports {
		ports = append(ports, fmt.Sprint(p))
	}
	if r.Kind == policy.Raw {
		ports = append(ports, "(any protocol)")
	}
	return strings.Join(ports, " ")
}

func ruleLine(name, ports string, r policy.Rule) string {
	var hosts []string
	for _, h := range r.Hosts {
		hosts = append(hosts, h.String())
	}
	if len(r.Methods) > 0 {
		hosts = append(hosts, "methods "+strings.Join(r.Methods, ","))
	}
	if len(r.Paths) > 0 {
		hosts = append(hosts, "paths "+strings.Join(r.Paths, ","))
	}
	return printable(fmt.Sprintf("%s\t%s\t%s", name, ports, strings.Join(hosts, " ")))
}

func (a *app) networkCheckCommand() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "check HOST[:PORT]",
		Short: "Check whether boxes may reach a host",
		Long: `Check says whether a box may connect to HOST, and which rule decides. The port is 443 by
default. It resolves the name as a server on this machine would, and connects to
nothing. The exit code is 1 if a connection would be refused.`,
		Example: `  glovebox network check --network github api.github.com`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			host, port, err := destination(args)
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			n, err := readNetwork(cfg)
			if err != nil {
				return err
			}
			a.noteOwner(cfg, n, owner)
			return a.checkDestination(cmd.Context(), n.Set(owner), cfg.Pins(), host, port)
		},
	}
	bindNetwork(cmd, &owner, "Check")
	return cmd
}

// destination parses the arguments of check.
func destination(args []string) (host string, port uint16, err error) {
	if len(args) != 1 {
		return "", 0, errors.New("name one host, with or without a port: glovebox network check HOST[:PORT]")
	}
	host, port = args[0], 443
	if h, p, err := net.SplitHostPort(host); err == nil {
		if port, err = policy.ParsePort(p); err != nil {
			return "", 0, err
		}
		host = h
	}
	host, err = policy.ParseHost(host)
	return host, port, err
}

// checkTimeout bounds the lookup of a name.
const checkTimeout = 10 * time.Second

// checkDestination prints the decision on a connection. The error is a status if it would
// be refused.
func (a *app) checkDestination(ctx context.Context, set policy.Set, pins []resolve.Pin, host string, port uint16) error {
	target := net.JoinHostPort(host, fmt.Sprint(port))
	v := set.Decide(host, port)
	if !v.OK {
		fmt.Fprintf(a.Out, "refused  %s: %s\n", target, explainVerdict(v))
		return &exitStatus{code: ExitFailure}
	}
	var f floor.Floor
	r := resolve.New(resolve.Options{
		Lookup: &net.Resolver{PreferGo: true}, Pins: pins,
		Refuses: func(addr netip.Addr) string { return string(f.Refuses(addr)) },
	})
	defer r.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	addrs, pinned, err := r.Resolve(ctx, host, port)
	if err != nil {
		fmt.Fprintf(a.Out, "refused  %s: rule %s allows it, but %s\n", target, v.Rule, printable(err.Error()))
		return &exitStatus{code: ExitFailure}
	}
	how := "resolves to"
	if pinned {
		how = "is pinned to"
	}
	fmt.Fprintf(a.Out, "allowed  %s: by rule %s; it %s %s\n", target, v.Rule, how, addrs[0])
	return nil
}

// explainVerdict says why a policy refuses a connection.
func explainVerdict(v policy.Verdict) string {
	switch v.Reason {
	case policy.Off:
		return "the network is off; allow hosts with --network or --network-file"
	case policy.Denied:
		return fmt.Sprintf("rule %s denies it", v.Rule)
	case policy.Method:
		return "rules allow only some methods or paths of plain HTTP"
	case policy.Name:
		return "it is neither a host name nor an address"
	}
	return "no rule allows it"
}
