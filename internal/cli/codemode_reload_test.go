package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// ownersFiles is a directory with configurations of owners.
type ownersFiles struct {
	t   *testing.T
	dir string
}

func (o ownersFiles) write(name, text string) {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, name), []byte(text), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

// owners writes owners.json and returns settings that name it.
func (o ownersFiles) owners(entries ...string) *config.Config {
	o.t.Helper()
	o.write("owners.json", `{"owners": {`+strings.Join(entries, ", ")+`}}`)
	return &config.Config{ToolsOwners: filepath.Join(o.dir, "owners.json"), StateDir: o.dir}
}

// serversNamed returns an mcp.json.
func serversNamed(names ...string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf(`%q: {"command": "/bin/true"}`, name))
	}
	return `{"mcpServers": {` + strings.Join(all, ", ") + `}}`
}

const (
	ownerAlice = `"token alice": {"tools": "alice.json"}`
	ownerBob   = `"token bob": {"tools": "bob.json", "rules": ["allow b"]}`
)

// TestCodeMode_faultyAtStart starts with the faulty configuration of one owner, who gets no
// tools until it is corrected, and of all owners.
func TestCodeMode_faultyAtStart(t *testing.T) {
	for name, faulty := range map[string]func(ownersFiles) *config.Config{
		"its mcp.json": func(o ownersFiles) *config.Config {
			o.write("alice.json", `{"mcpServers": `)
			return o.owners(ownerAlice, ownerBob)
		},
		"its rules": func(o ownersFiles) *config.Config {
			return o.owners(`"token alice": {"tools": "alice.json", "rules": ["permit a"]}`, ownerBob)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := ownersFiles{t, t.TempDir()}
			o.write("alice.json", serversNamed("a"))
			o.write("bob.json", serversNamed("b"))
			cfg := faulty(o)
			var log strings.Builder
			logger := slog.New(slog.NewTextHandler(&log, nil))
			m, err := new(app).openCodeMode(cfg, nil, logger, logger)
			if err != nil {
				t.Fatalf("one owner stops the service for all: %v", err)
			}
			defer m.close()
			if m.broker("token alice") != nil || m.broker("token bob") == nil || fmt.Sprint(m.names("token bob")) != "[b]" {
				t.Errorf("alice has %v, bob has %v", m.names("token alice"), m.names("token bob"))
			}
			if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, `who="token alice"`) || strings.Contains(text, `who="token bob"`) {
				t.Errorf("the log has\n%s", text)
			}
			o.write("alice.json", serversNamed("a"))
			if err := m.reload(o.owners(ownerAlice, ownerBob)); err != nil || m.broker("token alice") == nil {
				t.Errorf("corrected: %v", err)
			}
		})
	}
	o := ownersFiles{t, t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	if _, err := new(app).openCodeMode(o.owners(ownerAlice, ownerBob), nil, log, log); err == nil || !strings.Contains(err.Error(), `owner "token alice"`) {
		t.Errorf("no owner is left: got %v", err)
	}
	o.write("alice.json", serversNamed("a"))
	cfg := o.owners(ownerAlice)
	cfg.Tools = filepath.Join(o.dir, "none.json")
	if _, err := new(app).openCodeMode(cfg, nil, log, log); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("the file of the local user is missing: got %v", err)
	}
}

// TestReloader_toolsAfterSettings checks that a reload brings new owners and rules together,
// and neither of them before the settings are known to be valid.
func TestReloader_toolsAfterSettings(t *testing.T) {
	o := ownersFiles{t, t.TempDir()}
	o.write("alice.json", serversNamed("a"))
	o.write("bob.json", serversNamed("b"))
	log := slog.New(slog.DiscardHandler)
	cfg, _, err := config.Load(nil, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	cfg.ToolsOwners, cfg.StateDir = o.owners(ownerAlice).ToolsOwners, o.dir
	m, err := new(app).openCodeMode(cfg, nil, log, log)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	rules := func(owner string) string {
		m.mu.Lock()
		defer m.mu.Unlock()
		if o := m.owners[owner]; o != nil {
			return fmt.Sprint(len(o.policy), o.policy)
		}
		return "none"
	}
	next := *cfg
	next.ToolRules = []string{"deny *"}
	var failure error
	during := ""
	r := &reloader{
		log: log, level: new(slog.LevelVar), load: func() (*config.Config, error) { return &next, nil }, tools: m.reload,
		apply: func(*config.Config) error { during = rules("token alice") + rules("token bob"); return failure },
	}
	r.now.Store(cfg)
	before := rules("token alice")
	o.owners(ownerAlice, ownerBob)

	failure = errors.New("the limits cannot be applied")
	r.reload()
	if during != before+"none" {
		t.Errorf("while the settings are applied the rules of alice and bob are %s, want %snone", during, before)
	}
	if got := rules("token alice"); got != before {
		t.Errorf("settings that cannot be used change the rules to %s", got)
	}
	if got := rules("token bob"); !strings.HasPrefix(got, "1 ") {
		t.Errorf("the file of owners is read without new settings: bob has the rules %s", got)
	}

	failure = nil
	r.reload()
	if alice, bob := rules("token alice"), rules("token bob"); !strings.HasPrefix(alice, "1 ") || !strings.HasPrefix(bob, "2 ") {
		t.Errorf("new rules: alice has %s, bob has %s", alice, bob)
	}

	// New rules of the settings apply to an owner whose file is faulty, and to all if the
	// file of owners is.
	next.ToolRules = []string{"deny a", "deny b"}
	o.write("alice.json", "{")
	r.reload()
	if alice, bob := rules("token alice"), rules("token bob"); !strings.HasPrefix(alice, "2 ") || !strings.HasPrefix(bob, "3 ") || fmt.Sprint(m.names("token alice")) != "[a]" {
		t.Errorf("a faulty mcp.json: alice has %s, bob has %s", alice, bob)
	}
	next.ToolRules = nil
	o.write("owners.json", "{")
	r.reload()
	if alice, bob := rules("token alice"), rules("token bob"); !strings.HasPrefix(alice, "0 ") || !strings.HasPrefix(bob, "1 ") {
		t.Errorf("a faulty file of owners: alice has %s, bob has %s", alice, bob)
	}
}

// TestCodeMode_reload edits the file of owners, and checks that a faulty configuration
// leaves other owners their changes, and that an owner who was removed calls nothing and
// returns with the same budgets.
func TestCodeMode_reload(t *testing.T) {
	o := ownersFiles{t, t.TempDir()}
	write, servers := o.write, serversNamed
	const alice, bob = ownerAlice, ownerBob
	write("alice.json", servers("a"))
	write("bob.json", servers("b"))
	cfg := o.owners(alice, bob)
	log := slog.New(slog.DiscardHandler)
	m, err := new(app).openCodeMode(cfg, nil, log, log)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()

	write("alice.json", `{"mcpServers": `)
	write("bob.json", servers("b", "b2"))
	if err := m.reload(cfg); err == nil || !strings.Contains(err.Error(), `owner "token alice"`) {
		t.Errorf("got %v", err)
	}
	if a, b := fmt.Sprint(m.names("token alice")), fmt.Sprint(m.names("token bob")); a != "[a]" || b != "[b b2]" {
		t.Errorf("after a faulty file alice has %s and bob %s", a, b)
	}

	before := m.broker("token bob")
	write("alice.json", servers("a"))
	write("owners.json", `{"owners": {`+alice+`}}`)
	if err := m.reload(cfg); err != nil || m.broker("token bob") != nil {
		t.Errorf("bob is not removed: %v", err)
	}
	if m.brokers["token bob"] != before {
		t.Error("bob's broker is forgotten")
	}
	write("owners.json", `{"owners": {`+alice+`, `+bob+`}}`)
	if err := m.reload(cfg); err != nil || m.broker("token bob") != before {
		t.Errorf("bob returns with new budgets: %v", err)
	}
}
