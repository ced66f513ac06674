package cli

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// TestCodeMode_rulesWithoutEffect checks which rules the log warns about at the start and
// after a reload.
func TestCodeMode_rulesWithoutEffect(t *testing.T) {
	o := ownersFiles{t, t.TempDir()}
	o.write("alice.json", serversNamed("files"))
	o.write("bob.json", `{"mcpServers": {"git": {"command": "x"}, "off": {"command": "x", "disabled": true}}}`)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	warned := func(what string, count int, wants ...string) {
		t.Helper()
		text := log.String()
		log.Reset()
		if got := strings.Count(text, "level=WARN"); got != count {
			t.Errorf("%s: got %d warnings, want %d:\n%s", what, got, count, text)
		}
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the log has no %s:\n%s", what, want, text)
			}
		}
	}
	open := func(cfg *config.Config) *codeMode {
		t.Helper()
		m, err := new(app).openCodeMode(cfg, nil, logger, logger)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.close)
		return m
	}

	local := &config.Config{Tools: o.dir + "/bob.json", StateDir: o.dir, ToolsMaxOwners: 1, ToolRules: []string{"allow * status", "ask of? x", "deny g*", "allow git"}}
	m := open(local)
	warned("rules that match", 0)
	local.ToolRules = []string{"allow gti status", "deny prod-*", "allow git"}
	if err := m.reload(local); err != nil {
		t.Fatal(err)
	}
	warned("a reload", 2, `no server \"gti\" in `+o.dir+`/bob.json; did you mean git?`, `no server \"prod-*\"`, "setting=tool-rules")

	owners := o.owners(ownerAlice, ownerBob)
	owners.ToolRules = []string{"allow files", "allow git", "allow gone"}
	m = open(owners)
	warned("rules for some owners", 2, `setting="tools-owners: owner \"token bob\"" note="\"allow b\": no server`, `no server \"gone\" in `+owners.ToolsOwners)
	o.write("bob.json", "{")
	if err := m.reload(owners); err == nil {
		t.Error("a faulty file is no error")
	}
	warned("rules that may be for an owner with a faulty file", 0)

	if m := open(&config.Config{ToolRules: []string{"allow files"}}); m != nil {
		t.Error("code mode without tools")
	}
	warned("rules without tools", 1, "tool-rules (allow files) has no effect without tools or tools-owners")
}

// TestRuleRemedy_namesGlovebox checks that a model does not take the option for one of the MCP
// server that has the tool.
func TestRuleRemedy_namesGlovebox(t *testing.T) {
	for owners, want := range map[bool]string{
		false: `The user of Glovebox can allow it: start Glovebox with --tool-rules "allow files write_file", or with that rule in GLOVEBOX_TOOL_RULES.`,
		true:  `The operator of Glovebox can allow it by the rule "allow files write_file".`,
	} {
		if got := ruleRemedy(owners, "files", "write_file"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
