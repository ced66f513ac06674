package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/perplexity"
	"github.com/glovebox-dev/glovebox/internal/server"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// searchCommand returns the commands for web search without boxes.
func (a *app) searchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "search",
		Short: "Serve the tools for web search alone",
		Long: `Search serves the tools for web search, which ask Perplexity's API or a compatible
gateway, without boxes. The server of boxes offers them, too, if it has a key.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	stdio := &cobra.Command{
		Use:   "stdio",
		Short: "Serve web search over standard input and output",
		Long: `Stdio serves the MCP client that starts it over standard input and output. It stops
at the end of its input, after the last answer. The log goes to standard error.
PERPLEXITY_API_KEY is the key of the API.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, notes, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			cfg.Mode = "stdio"
			return a.serveSearch(cmd.Context(), cfg, notes)
		},
	}
	bind(stdio, "search", "log")
	cmd.AddCommand(stdio)
	return cmd
}

// serveSearch serves the tools for web search over standard input and output.
func (a *app) serveSearch(ctx context.Context, cfg *config.Config, notes []string) error {
	log, closeLog, err := a.openLog(cfg, notes)
	if err != nil {
		return err
	}
	defer closeLog()
	v, _ := buildVersion()
	search, err := openSearch(cfg, v, log)
	if err != nil {
		return err
	}
	if search == nil {
		return withHint(&config.Error{Text: "no key of the search API"}, "set PERPLEXITY_API_KEY, or name a file that contains the key with --perplexity-api-key-file")
	}
	defer search.Close()
	ctx, stop := untilSignal(ctx, func() { a.note("glovebox: stopping at once") }, nil)
	defer stop()
	return server.New(server.Options{
		Version:      v,
		Instructions: perplexity.Instructions,
		Extend:       server.Extension{Alone: true, Tools: searchTools(search, cfg)},
		Log:          log,
	}).ServeStdio(ctx, a.In, a.Out)
}

// openSearch returns a client of the search API, or nil if no key is configured.
func openSearch(cfg *config.Config, version string, log *slog.Logger) (*perplexity.Client, error) {
	key, err := searchKey(cfg, log)
	if key == "" || err != nil {
		return nil, err
	}
	if cfg.Search.Invalid != nil {
		return nil, cfg.Search.Invalid
	}
	if strings.HasPrefix(key, "${") && strings.HasSuffix(key, "}") { // not shown: it may have a default, ${NAME:-KEY}
		return nil, withHint(&config.Error{Text: "the key of the search API is a reference ${…} to a variable, which the client that starts Glovebox did not expand"},
			"set the variable in the environment of the client, or write the key itself")
	}
	client, err := perplexity.New(perplexity.Options{
		Key: key, BaseURL: cfg.PerplexityURL, Mode: perplexity.Mode(cfg.PerplexityMode), Model: cfg.PerplexityModel,
		Timeout: cfg.PerplexityTimeout, Proxy: cfg.PerplexityProxy, Version: version, Log: log,
	})
	if err != nil {
		return nil, &config.Error{Text: err.Error()}
	}
	if cfg.PerplexityURL == perplexity.DefaultURL && !strings.HasPrefix(key, "pplx-") {
		log.Warn("the key of the search API does not begin with pplx-, as Perplexity's keys do")
	}
	return client, nil
}

// maxKeyFile bounds the file with the key, in bytes.
const maxKeyFile = 4 << 10

// searchKey returns the key of the search API, or "" if none is configured.
func searchKey(cfg *config.Config, log *slog.Logger) (string, error) {
	if cfg.PerplexityKeyFile == "" {
		if cfg.Search.SecretFile != "" {
			info, err := os.Stat(cfg.Search.SecretFile)
			warnReadable(log, cfg.Search.SecretFile, info, err)
		}
		return cfg.PerplexityKey, nil
	}
	if cfg.PerplexityKey != "" {
		return "", &config.Error{Text: "perplexity-api-key and perplexity-api-key-file must not be set together"}
	}
	f, err := os.Open(cfg.PerplexityKeyFile)
	if err != nil {
		return "", &config.Error{Text: fmt.Sprintf("read the key of the search API: %v", err)}
	}
	defer f.Close()
	info, err := f.Stat()
	warnReadable(log, cfg.PerplexityKeyFile, info, err)
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return "", &config.Error{Text: fmt.Sprintf("read the key of the search API: %v", err)}
	}
	key := strings.TrimSpace(string(data))
	if key == "" || len(data) > maxKeyFile {
		return "", &config.Error{Text: fmt.Sprintf("read the key of the search API: %s is empty or larger than %d bytes", cfg.PerplexityKeyFile, maxKeyFile)}
	}
	return key, nil
}

// warnReadable warns if every user can read a file with the key, as of its state.
func warnReadable(log *slog.Logger, path string, info os.FileInfo, err error) {
	if runtime.GOOS != "windows" && err == nil && info.Mode().Perm()&0o004 != 0 && !owned.OnlyUser() {
		log.Warn("the file with the key of the search API is readable by every user; chmod 600", logkey.File, path)
	}
}

// searchTools returns the tools for web search, with the aliases if the settings ask for
// them.
func searchTools(client *perplexity.Client, cfg *config.Config) []server.Tool {
	var list []server.Tool
	for _, t := range client.Tools(cfg.PerplexityAliases || slices.Contains(cfg.Toolsets, tools.EverySet)) {
		tool := server.Tool{Def: t.Def, Handler: t.Handler, Direct: true}
		if t.Long {
			tool.Task = &tasks.Policy{}
		}
		list = append(list, tool)
	}
	return list
}
