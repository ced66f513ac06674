package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/cli/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/perplexity"
)

// ownersIdle is the time without calls after which an owner's servers are closed. The
// servers of the local user stay: some keep state in memory.
const ownersIdle = 15 * time.Minute

// codeMode lets code in boxes call the tools of MCP servers: the local user's, or those of
// each owner. Its methods may be called concurrently.
type codeMode struct {
	env    mcpcli.Env
	log    *slog.Logger
	calls  *slog.Logger // of calls
	search codemode.Local
	pool   *codemode.Pool
	// approvals asks the users of all owners.
	approvals *approval.Approver
	memory    *codemode.Memory // of all owners

	mu     sync.Mutex
	owners map[string]*codeOwner // guarded by mu
	// brokers has those of removed owners, too, which deny all calls: code that still runs
	// has them, and an owner who returns gets no new budget.
	brokers map[string]*codemode.Broker // guarded by mu
}

// codeOwner has the servers of an owner's code.
type codeOwner struct {
	servers *mcpcli.CodeServers
	rules   []string        // of the owner
	policy  codemode.Policy // rules, and those of the settings
	broker  *codemode.Broker
}

// checkTools rejects settings of code mode that do not fit the transports.
func checkTools(cfg *config.Config, overHTTP, overStdio bool) error {
	switch tokens := overHTTP && cfg.Auth(); {
	case cfg.Tools != "" && tokens && !overStdio:
		return withHint(&config.Error{Text: fmt.Sprintf("tools (%s) is for the user of this machine, and with access tokens the server has other users", cfg.Tools)},
			"name an mcp.json for each owner with --tools-owners; docs/code-mode.md describes the file")
	case cfg.ToolsOwners != "" && !tokens:
		return withHint(&config.Error{Text: fmt.Sprintf("tools-owners (%s) needs access tokens over HTTP, which tell owners apart", cfg.ToolsOwners)},
			"require tokens with --tokens-file or --oidc-issuer, or use --tools")
	}
	return nil
}

// openCodeMode reads the configurations of servers and connects to none. It returns nil if
// code mode is not configured. The caller closes it.
//
// Code also gets the tools of search, which may be nil, as those of a server of that name.
func (a *app) openCodeMode(cfg *config.Config, search *perplexity.Client, log, calls *slog.Logger) (*codeMode, error) {
	if cfg.Tools == "" && cfg.ToolsOwners == "" {
		if warning := unusedRules(cfg); warning != "" {
			log.Warn(warning)
		}
		return nil, nil
	}
	if os.Getenv(config.NestedEnv) != "" {
		return nil, withHint(&config.Error{Text: "tools: the code of another Glovebox calls this one, and would call itself without end"},
			"remove --tools from the definition of this server in the other one's mcp.json")
	}
	m := &codeMode{env: a.mcpEnv(), log: log, calls: calls, approvals: openApprovals(cfg, log, calls), memory: codemode.NewMemory()}
	if search != nil {
		m.search.Name = "perplexity"
		for _, t := range searchTools(search, cfg) {
			m.search.Tools = append(m.search.Tools, codemode.LocalTool{Def: t.Def, Handler: t.Handler})
		}
	}
	m.env.StateDir = func() (string, error) { return cfg.StateDir, nil }
	m.env.Prefix = statePrefix(cfg.StateDir)
	m.pool = codemode.NewPool(codemode.PoolOptions{Names: m.names, Open: m.openServers, Max: cfg.ToolsMaxOwners, Idle: ownersIdle, Log: log})
	wanted, faulty, err := m.load(cfg)
	if err == nil {
		err = m.leaveOut(wanted, faulty)
	}
	if err != nil {
		return nil, err
	}
	m.warnRules(cfg, wanted, len(faulty) == 0)
	m.brokers = make(map[string]*codemode.Broker)
	m.replaceLocked(wanted)
	return m, nil
}

// newBroker returns a broker for the code of an owner.
func (m *codeMode) newBroker(owner string, o *codeOwner) *codemode.Broker {
	servers := m.pool.Of(owner)
	if len(m.search.Tools) > 0 {
		servers = codemode.WithLocal(servers, owner, m.search)
	}
	return codemode.New(codemode.Options{Servers: servers, Policy: o.policy, Approve: m.approvals.Approve, Called: m.approvals.Called, Memory: m.memory, Log: m.calls})
}

// openApprovals returns what asks users for approval of calls.
func openApprovals(cfg *config.Config, log, audit *slog.Logger) *approval.Approver {
	remedy := func(server, tool string) string { return ruleRemedy(cfg.ToolsOwners != "", server, tool) }
	return approval.New(approval.Options{
		Store: &approval.Store{Dir: filepath.Join(cfg.StateDir, "approvals")},
		Park:  box.Park, Remedy: remedy, Audit: audit, Log: log,
	})
}

// ruleRemedy tells the reader of a program's output who can allow a tool to programs, and how. It
// names Glovebox, because its reader would take "the server" for that of the tool.
func ruleRemedy(owners bool, server, tool string) string {
	rule := "allow " + rulePattern(server) + " " + rulePattern(tool)
	if owners {
		return fmt.Sprintf("The operator of Glovebox can allow it by the rule %q.", rule)
	}
	return fmt.Sprintf("The user of Glovebox can allow it: start Glovebox with --tool-rules %q, or with that rule in GLOVEBOX_TOOL_RULES.", rule)
}

// rulePattern returns a pattern of a rule that matches a name.
func rulePattern(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || strings.ContainsRune(`*?[\,`, r) || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}

// explainServers returns the error for an mcp.json that cannot be used.
func explainServers(setting, path string, err error) error {
	text := fmt.Sprintf("%s: %v", setting, err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return withHint(&config.Error{Text: text}, `write one, such as {"mcpServers": {"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/data"]}}}, or name that of a client`)
	case errors.Is(err, mcpcli.ErrNoServers):
		return withHint(&config.Error{Text: text}, `add one: {"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}, or {"url": "https://…"}`)
	}
	return withHint(&config.Error{Text: text}, "correct the file, and check it with: glovebox mcp ls --config %s", mcpcli.ShellWord(path))
}

// broker returns the broker of an owner's code, nil if it may call no tools.
func (m *codeMode) broker(owner box.Owner) *codemode.Broker {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.owners[string(owner)]; o != nil {
		return o.broker
	}
	return nil
}

func (m *codeMode) serversOf(owner string) *mcpcli.CodeServers {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.owners[owner]; o != nil {
		return o.servers
	}
	return nil
}

func (m *codeMode) names(owner string) []string {
	if s := m.serversOf(owner); s != nil {
		return s.Names()
	}
	return nil
}

// openServers opens the servers of an owner.
func (m *codeMode) openServers(owner string) (codemode.Servers, func() error, error) {
	servers := m.serversOf(owner)
	if servers == nil {
		return nil, nil, errors.New("the operator has removed the tools of this user")
	}
	g, err := servers.Open()
	if err != nil {
		if owner == "" {
			return nil, nil, err
		}
		m.log.Error("servers of an owner not opened", logkey.Who, owner, logkey.Error, err)
		return nil, nil, errors.New("the servers cannot be opened, and the operator finds the cause in the log")
	}
	so := &mcp.ServerOptions{Capabilities: gateway.Capabilities()}
	g.Configure(so)
	g.Register(mcp.NewServer(&mcp.Implementation{Name: "glovebox", Version: m.env.Version}, so)) // has no clients
	return codemode.FromGateway(g), g.Close, nil
}

// close closes all servers.
func (m *codeMode) close() {
	if m != nil {
		m.pool.Close()
	}
}

// statePrefix returns the beginning of a command that uses a state directory: nothing for
// the default one.
func statePrefix(dir string) string {
	usual := filepath.Join(os.Getenv("HOME"), ".local", "state", "glovebox")
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		usual = filepath.Join(state, "glovebox")
	}
	if os.Geteuid() == 0 && owned.MapsAllUsers() { // not an ordinary user who looks like root
		usual = "/var/lib/glovebox"
	}
	if dir == usual {
		return ""
	}
	return "GLOVEBOX_STATE_DIR=" + mcpcli.ShellWord(dir) + " "
}
