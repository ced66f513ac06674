package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke access tokens",
		Long: `Token manages the access tokens in the file that serve --tokens-file reads. The file
has hashes only: a token is shown once, when it is created. A running server applies
changes within two seconds.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().String("tokens-file", "", "`file` with the tokens ($GLOVEBOX_TOKENS_FILE)")
	cmd.PersistentFlags().String("config", "", "`file` read settings from this JSON file ($"+config.FileEnv+")")
	cmd.AddCommand(a.tokenNewCommand(), a.tokenListCommand(), a.tokenRemoveCommand())
	return cmd
}

// tokensFile returns the tokens file of the flags or settings; "" if there is none.
func (a *app) tokensFile(cmd *cobra.Command) (string, error) {
	cfg, _, err := config.Load(cmd.Flags(), a.lookup)
	if err != nil {
		return "", err
	}
	return cfg.TokensFile, nil
}

func (a *app) needTokensFile(cmd *cobra.Command) (string, error) {
	path, err := a.tokensFile(cmd)
	if err == nil && path == "" {
		err = withHint(errNoTokensFile, "set it with --tokens-file or GLOVEBOX_TOKENS_FILE")
	}
	return path, err
}

func (a *app) tokenNewCommand() *cobra.Command {
	var name, expires string
	var scopes []string
	cmd := &cobra.Command{
		Use:   "new --name NAME",
		Short: "Create a token, show it once and add it to the file",
		Long: `New creates a token of 256 random bits, writes it to standard output, and adds its
hash to the file, which it creates if necessary (mode 0600). Without a file, it writes
the entry for the file after the token.`,
		Example: "  glovebox token new --name alice --expires 90d --tokens-file tokens.toml",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && name == "" {
				return &usageError{err: fmt.Errorf("unexpected argument %q", args[0]), cmd: cmd.CommandPath(),
					hint: fmt.Sprintf("name the owner with a flag: glovebox token new --name %s", printable(args[0]))}
			}
			return noArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return &usageError{err: errors.New("the name of the token's owner is missing"), cmd: cmd.CommandPath(),
					hint: "name the owner, as in: glovebox token new --name alice"}
			}
			path, err := a.tokensFile(cmd)
			if err != nil {
				return err
			}
			end, err := expiryTime(expires, time.Now())
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			may, err := parseScopes(scopes)
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			secret, token, err := auth.NewToken(name, end, may)
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			if path != "" {
				if err := auth.AddToken(path, &token); err != nil {
					return explainTokens(err)
				}
				a.note("glovebox: added token %s of %s to %s; it is shown only this once", token.ID(), name, path)
				_, err = fmt.Fprintln(a.Out, secret)
				return err
			}
			_, err = fmt.Fprintf(a.Out, "%s\n\n%s", secret, token.Entry())
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`NAME` owner of the token's boxes; need not be unique")
	cmd.Flags().StringVar(&expires, "expires", "", "`when` 90d, 12h, or the last day, such as 2027-01-31 [never]")
	cmd.Flags().StringSliceVar(&scopes, "scope", []string{string(auth.Use)}, "`list` of use (all tools), read (no changes), metrics")
	cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"use", "read", "metrics"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// explainTokens adds the remedy to an error of editing the tokens file.
func explainTokens(err error) error {
	if missing, ok := errors.AsType[*auth.MissingDir](err); ok {
		return withHint(err, "create the directory with mkdir -p %s, or choose another file with --tokens-file", printable(missing.Dir))
	}
	if _, ok := errors.AsType[*auth.SetupError](err); ok {
		return explainAuth(err)
	}
	return err
}

// expiryTime parses a duration, such as 90d or 12h, or a date.
func expiryTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= 36500 {
			return now.AddDate(0, 0, n), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(d), nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		if end := day.AddDate(0, 0, 1); end.After(now) {
			return end, nil
		}
	}
	return time.Time{}, fmt.Errorf("--expires must be in the future, such as 90d, 12h or 2027-01-31, got %q", text)
}

func parseScopes(words []string) (auth.Scopes, error) {
	var scopes auth.Scopes
	for _, w := range words {
		if !slices.Contains(auth.AllScopes(), auth.Scope(w)) {
			return nil, fmt.Errorf("--scope must be read, use or metrics, got %q", w)
		}
		scopes = append(scopes, auth.Scope(w))
	}
	return scopes, nil
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the tokens",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := a.needTokensFile(cmd)
			if err != nil {
				return err
			}
			tokens, _, err := auth.ReadTokens(path)
			if errors.Is(err, fs.ErrNotExist) {
				return withHint(err, "glovebox token new creates it")
			}
			if err != nil {
				return explainTokens(err)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tSCOPES\tEXPIRES")
			for _, t := range tokens {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", t.ID(), t.Name, scopeWords(t.Scopes), expiryWords(t.Expires, time.Now()))
			}
			return w.Flush()
		},
	}
}

func scopeWords(scopes auth.Scopes) string {
	if len(scopes) == 0 {
		return "-"
	}
	words := make([]string, len(scopes))
	for i, s := range scopes {
		words[i] = string(s)
	}
	return strings.Join(words, ",")
}

func expiryWords(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !now.Before(t):
		return t.UTC().Format(time.RFC3339) + " (expired)"
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) tokenRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm ID|NAME",
		Aliases: []string{"remove"},
		Short:   "Revoke a token by its id, or all tokens of a name",
		Long: `Rm removes a token from the file by its id, which ls shows, or all tokens of a name.
Within two seconds, a running server ends their streams and cancels their calls. Boxes
stay: they belong to the name.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{err: fmt.Errorf("want one id or name, got %d arguments", len(args)), cmd: cmd.CommandPath()}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := a.needTokensFile(cmd)
			if err != nil {
				return err
			}
			n, err := auth.RemoveTokens(path, func(t *auth.Token) bool { return t.ID() == args[0] || t.Name == args[0] })
			if err != nil {
				return explainTokens(err)
			}
			if n == 0 {
				return withHint(fmt.Errorf("remove token %q: %s has no token of that id or name", args[0], path), "glovebox token ls lists them")
			}
			a.note("glovebox: revoked %d of the tokens in %s", n, path)
			return nil
		},
	}
}
