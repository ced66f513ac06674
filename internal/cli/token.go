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
		Short: "Make, list and revoke the tokens of clients",
		Long: `Token edits the file of static tokens that serve --tokens-file reads. The file
has hashes only: a token is shown once, when it is made. A server that runs takes a
change over within two seconds.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().String("tokens-file", "", "`file` file of tokens ($GLOVEBOX_TOKENS_FILE)")
	cmd.PersistentFlags().String("config", "", "`file` read settings from this JSON file ($"+config.FileEnv+")")
	cmd.AddCommand(a.tokenNewCommand(), a.tokenListCommand(), a.tokenRemoveCommand())
	return cmd
}

// tokensFile is the file that the flags or the settings name; "" if none do.
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
		err = withHint(errNoTokensFile, "name it with --tokens-file or GLOVEBOX_TOKENS_FILE")
	}
	return path, err
}

func (a *app) tokenNewCommand() *cobra.Command {
	var name, expires string
	var scopes []string
	cmd := &cobra.Command{
		Use:   "new --name NAME",
		Short: "Make a token, show it once and add it to the file",
		Long: `New makes a token of 256 random bits and writes it to standard output. Its hash
is added to the file, which is made if there is none (mode 0600). Without a file the
entry to add is written after the token.`,
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
				return &usageError{err: errors.New("a token needs the name of its owner"), cmd: cmd.CommandPath(),
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
				a.note("glovebox: token %s of %s was added to %s; it is shown only now", token.ID(), name, path)
				_, err = fmt.Fprintln(a.Out, secret)
				return err
			}
			_, err = fmt.Fprintf(a.Out, "%s\n\n%s", secret, token.Entry())
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`NAME` owner of the boxes made with it; need not be unique")
	cmd.Flags().StringVar(&expires, "expires", "", "`when` 90d, 12h, or the last day, as 2027-01-31 [never]")
	cmd.Flags().StringSliceVar(&scopes, "scope", []string{string(auth.Use)}, "`list` of use (all tools), read (only look), metrics")
	cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"use", "read", "metrics"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// explainTokens adds what to do about a file of tokens that cannot be edited.
func explainTokens(err error) error {
	if missing, ok := errors.AsType[*auth.MissingDir](err); ok {
		return withHint(err, "make the directory first, with mkdir -p %s, or name another file with --tokens-file", printable(missing.Dir))
	}
	return err
}

// expiryTime reads a time from now in days, hours and so on, or a date.
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
			return nil, fmt.Errorf("--scope must be of %v, got %q", auth.AllScopes(), w)
		}
		scopes = append(scopes, auth.Scope(w))
	}
	return scopes, nil
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the tokens of the file",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := a.needTokensFile(cmd)
			if err != nil {
				return err
			}
			tokens, _, err := auth.ReadTokens(path)
			if errors.Is(err, fs.ErrNotExist) {
				return withHint(err, "glovebox token new makes it")
			}
			if err != nil {
				return err
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
		Short:   "Revoke a token by its id, or all of a name",
		Long: `Rm takes a token out of the file: the one of an id, as ls shows it, or all of a
name. A server that runs ends within two seconds what they began: streams, running
calls, everything. Boxes stay, for other tokens of the name.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{err: fmt.Errorf("one id or name is needed, got %d arguments", len(args)), cmd: cmd.CommandPath()}
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
			a.note("glovebox: %d of the tokens in %s revoked", n, path)
			return nil
		},
	}
}
