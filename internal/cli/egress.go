package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/filewatch"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// networks gives boxes the network that the settings allow. Its methods may be called
// concurrently.
type networks struct {
	gate     *egress.Gate
	policies atomic.Pointer[config.Network]
	// reloading is held by reload: a signal and a changed file may come at the same time, and
	// what was read first must not replace what was read later.
	reloading sync.Mutex
	secrets   *secret.Interceptor // nil: none
	log       *slog.Logger
	audit     *slog.Logger // nil: none
}

// readNetwork reads the network policies of the settings, and explains an error.
func readNetwork(cfg *config.Config) (*config.Network, error) {
	n, err := cfg.ReadNetwork()
	var bad *config.Error
	if errors.As(err, &bad) && cfg.NetworkFile != "" {
		return nil, withHint(err, "docs/egress.md describes the file; check it with: glovebox network show --network-file %s", cfg.NetworkFile)
	}
	return n, err
}

// openNetworks returns the networks of boxes. audit may be nil. The caller closes them.
func openNetworks(cfg *config.Config, log, audit *slog.Logger) (*networks, error) {
	policies, err := readNetwork(cfg)
	if err != nil {
		return nil, err
	}
	n := &networks{log: log, audit: audit}
	n.policies.Store(policies)
	for _, pin := range cfg.EgressPins {
		log.Info("boxes may reach a pinned address, which can be of this machine or a private network", logkey.Host, pin)
	}
	authorities, err := readAuthorities(cfg, log)
	if err != nil {
		return nil, err
	}
	if err := n.openInterceptor(cfg, policies, authorities); err != nil {
		return nil, err
	}
	n.gate = egress.New(n.options(cfg, authorities.PEM))
	return n, nil
}

// options returns the options of the gate. authorities are certificates in PEM that boxes trust
// besides their own.
func (n *networks) options(cfg *config.Config, authorities string) egress.Options {
	options := egress.Options{
		Policies: func(owner string) policy.Set { return n.policies.Load().Set(owner) },
		Where:    func(owner string) string { return n.policies.Load().Where(owner) },
		Pins:     cfg.Pins(), MaxConnections: cfg.EgressMaxConnections, MaxBytesPerMinute: int64(cfg.EgressMaxMBPerMinute) << 20,
		Authorities: authorities, Record: n.record, Log: n.log,
	}
	if n.secrets != nil {
		options.Intercept = n.secrets
	}
	return options
}

// Open implements box.Networks.
func (n *networks) Open(owner box.Owner, id, template string, limits snapshot.NetLimits) box.Network {
	return &boxNetwork{n.gate.Open(egress.Box{Owner: string(owner), ID: id, Template: template}, layersOf(limits)...)}
}

// Parse implements box.Networks.
func (n *networks) Parse(entries []string) ([]string, error) { return canonicalNetwork(entries) }

// Within implements box.Networks.
func (n *networks) Within(owner box.Owner, limits snapshot.NetLimits, entries []string) (outside, allowed []string) {
	set := n.policies.Load().Set(string(owner)).Narrow(layersOf(limits)...)
	for _, entry := range entries {
		limit := snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{entry}}}
		if len(set.Narrow(layersOf(limit)...).Allowed()) == 0 {
			outside = append(outside, entry)
		}
	}
	if len(outside) > 0 {
		allowed = set.Allowed()
	}
	return outside, allowed
}

// described says what the boxes of an owner can reach, for models.
func (n *networks) described(owner box.Owner) tools.Network {
	set := n.policies.Load().Set(string(owner))
	d := tools.Network{Allowed: set.Allowed()}
	if n.secrets != nil {
		for _, u := range n.secrets.Secrets().Uses(string(owner)) {
			u.Hosts = slices.DeleteFunc(slices.Clone(u.Hosts), func(host string) bool { return !overHTTPS(set, host) })
			if len(u.Hosts) > 0 {
				d.Secrets = append(d.Secrets, useText(u))
			}
		}
	}
	return d
}

// boxNetwork is the network of a box.
type boxNetwork struct{ *egress.Network }

// Take implements box.Network.
func (n *boxNetwork) Take() []box.Refusal {
	var list []box.Refusal
	for _, r := range n.Network.Take() {
		list = append(list, box.Refusal{Host: r.Host, Port: r.Port, Rule: r.Rule, Why: r.Reason, Text: r.Text, Count: r.Count, Other: !r.Refused()})
	}
	return list
}

// record logs a connection or refusal.
func (n *networks) record(r egress.Record) {
	attrs := []slog.Attr{
		slog.String(logkey.Who, cmp.Or(r.Box.Owner, "local")), slog.String(logkey.Box, r.Box.ID), slog.String(logkey.Outcome, string(r.Outcome)),
	}
	text := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	text(logkey.Door, r.Door)
	text(logkey.Host, r.Host)
	text(logkey.Site, r.Site)
	text(logkey.Hash, r.Hash)
	if r.Port != 0 {
		attrs = append(attrs, slog.Int(logkey.Port, int(r.Port)))
	}
	if r.Addr.IsValid() {
		attrs = append(attrs, slog.String(logkey.Addr, r.Addr.String()))
	}
	text(logkey.Rule, r.Rule)
	text(logkey.Policy, r.Policy)
	text(logkey.Why, string(r.Reason))
	if r.Omitted > 0 {
		attrs = append(attrs, slog.Int64(logkey.Omitted, r.Omitted))
	}
	level := slog.LevelInfo
	if r.Outcome == egress.Refused {
		level = slog.LevelWarn
	} else {
		attrs = append(attrs, slog.Int64(logkey.Sent, r.Sent), slog.Int64(logkey.Received, r.Received), slog.Int64(logkey.DurationMS, r.Duration.Milliseconds()))
	}
	if n.audit != nil {
		n.audit.LogAttrs(context.Background(), level, "egress", attrs...)
		return
	}
	n.log.LogAttrs(context.Background(), slog.LevelDebug, "egress", attrs...)
}

// reload reads the policies of the settings again. Connections that are no longer allowed
// end. After an error, the policies and the definitions of secrets are unchanged; the values of
// secrets are read again in any case, so that a mistake in the one file does not keep a value in
// use that was rotated in another.
func (n *networks) reload(cfg *config.Config) error {
	n.reloading.Lock()
	defer n.reloading.Unlock()
	next, err := cfg.ReadNetwork()
	if err == nil && n.secrets != nil {
		err = n.reloadSecrets(cfg, next)
	}
	if err != nil {
		if n.secrets == nil {
			return err
		}
		return errors.Join(err, n.reloadSecrets(cfg, n.policies.Load()))
	}
	if n.secrets != nil {
		n.warnOfSecrets(next)
	}
	n.policies.Store(next)
	n.gate.Reevaluate()
	return nil
}

// watch reloads the policies and the secrets when one of their files changes, until ctx ends. The caller calls wait
// after that.
func (n *networks) watch(ctx context.Context, cfg func() *config.Config) (wait func()) {
	path := cfg().NetworkFile
	if path == "" {
		return func() {}
	}
	done := make(chan struct{})
	w := filewatch.NewList(func() []string { return n.files(path) })
	go func() {
		defer close(done)
		w.Run(ctx, func() {
			if err := n.reload(cfg()); err != nil {
				n.log.Error("network policies and definitions of secrets unchanged: a file is invalid", logkey.File, path, logkey.Error, err)
				return
			}
			n.log.Info("network policies and secrets reloaded", logkey.File, path)
		})
	}()
	return func() { <-done }
}

// close ends all connections.
func (n *networks) close() error { return n.gate.Close() }

// checkFiles checks the files of the settings before the program enters a user namespace,
// in which the files of all other users have one owner.
func checkFiles(cfg *config.Config) error {
	if err := checkOwners(cfg); err != nil {
		return err
	}
	n, err := readNetwork(cfg)
	if err == nil {
		_, err = loadSecrets(cfg, n)
	}
	if err == nil {
		_, err = readAuthorities(cfg, slog.New(slog.DiscardHandler))
	}
	return err
}
