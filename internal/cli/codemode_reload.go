package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/glovebox-dev/glovebox/internal/cli/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// checkOwners checks the file of owners before the program enters a user namespace, where
// all other users' files have one owner.
func checkOwners(cfg *config.Config) error {
	if cfg.ToolsOwners == "" {
		return nil
	}
	_, err := config.ReadOwners(cfg.ToolsOwners)
	return err
}

// load reads the configurations of servers, without brokers. faulty has the errors of the
// owners whose configurations cannot be used; err is for all owners.
func (m *codeMode) load(cfg *config.Config) (owners map[string]*codeOwner, faulty map[string]error, err error) {
	if err := m.checkRules(cfg); err != nil {
		return nil, nil, err
	}
	owners, faulty = make(map[string]*codeOwner), make(map[string]error)
	add := func(owner, setting string, tools config.OwnerTools) {
		servers, err := mcpcli.LoadCodeServers(m.env, tools.Tools, owner, m.log)
		if err != nil {
			faulty[owner] = explainServers(setting, tools.Tools, err)
			return
		}
		o := &codeOwner{servers: servers, rules: tools.Rules}
		if o.policy, err = o.policyWith(cfg.ToolRules); err != nil {
			faulty[owner] = explainRules(setting, err)
			return
		}
		owners[owner] = o
	}
	if cfg.Tools != "" {
		add("", "tools", config.OwnerTools{Tools: cfg.Tools})
	}
	if cfg.ToolsOwners != "" {
		listed, err := config.ReadOwners(cfg.ToolsOwners)
		if err != nil {
			return nil, nil, err
		}
		for owner, tools := range listed {
			add(owner, fmt.Sprintf("tools-owners: owner %q", owner), tools)
		}
	}
	return owners, faulty, nil
}

// leaveOut logs the owners whose configurations cannot be used when the server starts. It
// returns an error for that of the local user, and if no owner is left.
func (m *codeMode) leaveOut(owners map[string]*codeOwner, faulty map[string]error) error {
	if err := faulty[""]; err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(faulty))
	if len(owners) == 0 && len(names) > 0 {
		return faulty[names[0]]
	}
	for _, owner := range names {
		m.log.Error("code of an owner calls no tools until its configuration is corrected and reloaded", logkey.Who, owner, logkey.Error, faulty[owner])
	}
	return nil
}

// checkRules returns an error if the rules of the settings are invalid.
func (m *codeMode) checkRules(cfg *config.Config) error {
	if m == nil {
		return nil
	}
	if _, err := codemode.ParsePolicy(cfg.ToolRules); err != nil {
		return explainRules("tool-rules", err)
	}
	return nil
}

// explainRules returns the error for rules that cannot be used.
func explainRules(setting string, err error) error {
	return withHint(&config.Error{Text: setting + ": " + err.Error()}, "docs/code-mode.md describes the rules")
}

// policyWith returns the policy of an owner: its own rules come before those of the
// settings.
func (o *codeOwner) policyWith(rules []string) (codemode.Policy, error) {
	return codemode.ParsePolicy(slices.Concat(o.rules, rules))
}

// reload reads the configurations again and applies them with the rules of cfg, all at once.
// Servers whose definitions have changed are opened anew; budgets and connections of other
// owners stay. An owner whose configuration cannot be used keeps the previous one, with the
// new rules of the settings, and the error says so.
func (m *codeMode) reload(cfg *config.Config) error {
	if err := m.checkRules(cfg); err != nil {
		return err
	}
	wanted, faulty, err := m.load(cfg)
	errs := append([]error{err}, slices.Collect(maps.Values(faulty))...)
	m.warnRules(cfg, wanted, err == nil && len(faulty) == 0)
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := maps.Keys(faulty)
	if err != nil {
		wanted, kept = make(map[string]*codeOwner), maps.Keys(m.owners)
	}
	for owner := range kept {
		if old := m.owners[owner]; old != nil {
			same := *old
			if same.policy, err = old.policyWith(cfg.ToolRules); err != nil {
				return errors.Join(append(errs, explainRules("tool-rules", err))...)
			}
			wanted[owner] = &same
		}
	}
	for owner, old := range m.owners {
		if next := wanted[owner]; next == nil || !next.servers.Same(old.servers) {
			m.pool.Renew(owner) // opens no servers before the lock is free
		}
	}
	m.replaceLocked(wanted)
	return errors.Join(errs...)
}

// replaceLocked replaces the owners, and applies their rules.
func (m *codeMode) replaceLocked(wanted map[string]*codeOwner) {
	for owner, broker := range m.brokers {
		if wanted[owner] == nil {
			broker.SetPolicy(codemode.Policy{{Decision: codemode.Deny}})
		}
	}
	for owner, next := range wanted {
		if next.broker = m.brokers[owner]; next.broker != nil {
			next.broker.SetPolicy(next.policy)
			continue
		}
		next.broker = m.newBroker(owner, next)
		m.brokers[owner] = next.broker
	}
	m.owners = wanted
}
