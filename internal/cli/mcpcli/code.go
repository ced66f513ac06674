package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// CodeServers are the servers of an mcp.json whose tools code in boxes may call, on
// behalf of one owner. Approvals, logins and caches are those of the commands of this
// package with the same configuration and owner.
type CodeServers struct {
	a   *app
	cfg *mcpjson.Config
	log *slog.Logger
}

// ErrNoServers reports an mcp.json without servers for code.
var ErrNoServers = errors.New("it has no enabled server that code could call")

// LoadCodeServers reads the mcp.json at an absolute path. owner is "" for the user of this
// machine; others have approvals, logins and caches of their own. It connects to nothing.
// Errors name the path. It leaves out servers that would start this program again, whose code
// would call itself.
func LoadCodeServers(env Env, path, owner string, log *slog.Logger) (*CodeServers, error) {
	a := &app{Env: env, hashes: &consent.Cache{}, terminal: func() bool { return false }}
	a.flags.config, a.flags.owner = path, owner
	a.flags.output, a.flags.era = "text", "auto"
	cfg, err := mcpjson.LoadFile(path, mcpjson.Options{Required: true, Import: true})
	if err != nil {
		return nil, withPath(path, err)
	}
	for _, w := range cfg.Warnings {
		log.Warn("warning about the servers of code", logkey.Note, w)
	}
	cfg.Servers = slices.DeleteFunc(cfg.Servers, func(s *mcpjson.Server) bool {
		own := isOwn(s)
		if own {
			log.Warn("server left out: code would call this program in a circle", logkey.Server, s.Name)
		}
		return own
	})
	if !slices.ContainsFunc(cfg.Servers, func(s *mcpjson.Server) bool { return !s.Disabled }) {
		return nil, fmt.Errorf("%s: %w", path, ErrNoServers)
	}
	return &CodeServers{a: a, cfg: cfg, log: log}, nil
}

// withPath returns an error of reading the mcp.json at an absolute path, with this path.
// Package mcpjson names the file relative to its project.
func withPath(path string, err error) error {
	if faulty, ok := err.(*mcpjson.Error); ok && strings.HasSuffix(path, string(filepath.Separator)+faulty.File) {
		whole := *faulty
		whole.File = path
		return &whole
	}
	return fmt.Errorf("%s: %w", path, err)
}

// isOwn reports whether a server is this program as a server of boxes.
func isOwn(s *mcpjson.Server) bool {
	if s.Transport != mcpjson.TransportStdio {
		return false
	}
	argv := s.Program(context.Background(), mcpjson.Resolver{Root: s.Dir}).Argv
	if len(argv) < 2 || !slices.Contains(argv, "stdio") && !slices.Contains(argv, "serve") || slices.Contains(argv, "search") || slices.Contains(argv, "mcp") {
		return false
	}
	if filepath.Base(argv[0]) == "glovebox" {
		return true
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return false
	}
	self, err := os.Executable()
	if err != nil {
		return false
	}
	this, err := os.Stat(self)
	if err != nil {
		return false
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(this, other)
}

// Names returns the names of the servers that are not disabled, in the order of the file.
func (s *CodeServers) Names() (names []string) {
	for _, def := range s.cfg.Servers {
		if !def.Disabled {
			names = append(names, def.Name)
		}
	}
	return names
}

// Path returns the absolute path of the mcp.json.
func (s *CodeServers) Path() string { return s.a.flags.config }

// Defined returns the names of all servers, also of disabled ones, in the order of the file.
func (s *CodeServers) Defined() []string { return serverNames(s.cfg) }

// Same reports whether two configurations define the same servers.
func (s *CodeServers) Same(other *CodeServers) bool {
	return slices.EqualFunc(s.cfg.Servers, other.cfg.Servers, func(x, y *mcpjson.Server) bool {
		return x.Name == y.Name && x.Disabled == y.Disabled && x.Hash() == y.Hash()
	})
}

// Open returns a gateway to the servers, which it does not start. The caller registers and
// closes it.
func (s *CodeServers) Open() (*gateway.Gateway, error) {
	servers, err := s.a.options(s.cfg)
	if err != nil {
		return nil, err
	}
	logins, err := s.a.logins()
	if err != nil {
		return nil, err
	}
	listings, err := s.a.listings()
	if err != nil {
		return nil, err
	}
	pins, err := s.a.pins()
	if err != nil {
		return nil, err
	}
	servers.OAuth = s.a.advised(login.New(login.Options{Store: logins, ClientName: clientName, Log: s.log}))
	servers.Resolver.Input = func(_ context.Context, in mcpjson.Input) (string, error) {
		return "", fmt.Errorf("the definition asks for the input %q, and there is nobody to ask: use an environment variable, such as ${env:NAME}", in.ID)
	}
	servers.Log = s.log
	servers.Env = []string{config.NestedEnv + "=1"}
	servers.Limits.Request = callTimeout
	return gateway.New(gateway.Options{
		Servers: servers, Listings: listings, Pins: pins, Log: s.log, HideHost: s.a.flags.owner != "",
		ReviewCommand: s.a.reviewCommand, UnpinCommand: s.a.unpinCommand,
		TrustCommand: func(server string) string { return s.a.lineFor("trust", server) },
		ToolsCommand: func(server string) string { return s.a.lineFor("tools", server) },
		ToolsOnly:    true,
	}), nil
}
