package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// definitionsOf returns the secrets of network-file.
func definitionsOf(n *config.Network) []secret.Definition {
	var definitions []secret.Definition
	for _, s := range n.Secrets() {
		definitions = append(definitions, secret.Definition{
			Name: s.Name, Owners: s.Owners, Hosts: s.Hosts, Headers: s.Headers, As: s.As, Like: s.Like, File: s.File, Env: s.Env,
		})
	}
	return definitions
}

// explainSecrets names the file that the error of secrets is about.
func explainSecrets(cfg *config.Config, err error) error {
	if err == nil {
		return nil
	}
	return withHint(&config.Error{Text: "network-file: " + cfg.NetworkFile + ": " + err.Error()}, "docs/egress.md describes secrets")
}

// loadSecrets checks the secrets of network-file and reads their values.
func loadSecrets(cfg *config.Config, n *config.Network) (*secret.Secrets, error) {
	s, err := secret.Load(definitionsOf(n))
	return s, explainSecrets(cfg, err)
}

// checkSecrets returns the error that a server has with the secrets. It notes variables
// that are missing here, since the environment of a server can be another.
func (a *app) checkSecrets(cfg *config.Config, n *config.Network) error {
	missing, err := secret.Check(definitionsOf(n))
	for _, m := range missing {
		a.note("glovebox: note: %s; a server with this environment does not start", printable(m.Error()))
	}
	if err == nil {
		for _, text := range secretsWithoutHTTPS(n) {
			a.note("glovebox: note: %s", printable(text))
		}
	}
	return explainSecrets(cfg, err)
}

// reloadSecrets reads the secrets that next defines again. One whose value cannot be read keeps
// the value that it has. After an error, nothing has changed.
func (n *networks) reloadSecrets(cfg *config.Config, next *config.Network) error {
	prev := n.secrets.Secrets()
	secrets, changed, kept, err := secret.Reload(definitionsOf(next), prev)
	if err != nil {
		return explainSecrets(cfg, err)
	}
	for _, err := range kept {
		n.log.Warn("a secret keeps the value from before", logkey.Error, err)
	}
	n.secrets.Replace(secrets)
	for _, name := range changed {
		n.log.Info("the value of a secret changed", logkey.Secret, name)
	}
	for _, name := range prev.Withdrawn(secrets) {
		n.log.Info("a secret was withdrawn", logkey.Secret, name)
	}
	return nil
}

// overHTTPS reports whether a policy allows connections to a host at another port than that of
// plain HTTP.
func overHTTPS(set policy.Set, host string) bool {
	return slices.ContainsFunc(set.Ports(host), func(port uint16) bool { return port != 80 })
}

// secretsWithoutHTTPS says of each secret, and each owner that it names, which of its hosts no
// policy lets boxes reach over TLS: there the placeholder is never replaced.
func secretsWithoutHTTPS(n *config.Network) (warnings []string) {
	reach := func(owner, host string) bool { return overHTTPS(n.Set(owner), host) }
	for _, s := range n.Secrets() {
		owners := s.Owners
		if len(owners) == 0 {
			owners = []string{""}
		}
		for _, owner := range owners {
			of, some := cmp.Or(owner, "the local user"), []string{owner}
			if owner == secret.Everyone {
				of, some = "any owner", append(n.Owners(), "", secret.Everyone)
			}
			for _, host := range s.Hosts {
				if !slices.ContainsFunc(some, func(o string) bool { return reach(o, host) }) {
					warnings = append(warnings, fmt.Sprintf("the secret %s does not work at %s: the policy of %s does not allow https to it; add https://%s to allow", s.Name, host, of, host))
				}
			}
		}
	}
	return warnings
}

// warnOfSecrets logs secrets that boxes cannot use.
func (n *networks) warnOfSecrets(policies *config.Network) {
	for _, text := range secretsWithoutHTTPS(policies) {
		n.log.Warn("warning about a secret", logkey.Note, text)
	}
}

// files lists the files that the networks are read from: network-file, and those with the
// values of secrets.
func (n *networks) files(networkFile string) []string {
	files := []string{networkFile}
	for _, s := range n.policies.Load().Secrets() {
		if s.File != "" {
			files = append(files, s.File)
		}
	}
	return files
}

// openInterceptor returns the interceptor of the settings; nil without a file, which alone
// has secrets.
func (n *networks) openInterceptor(cfg *config.Config, policies *config.Network, authorities config.Authorities) error {
	if cfg.NetworkFile == "" {
		return nil
	}
	secrets, err := loadSecrets(cfg, policies)
	if err != nil {
		return err
	}
	key, err := secret.LoadKey(filepath.Join(cfg.StateDir, "egress"))
	if err != nil {
		return err
	}
	roots, err := hostRoots(authorities)
	if err != nil {
		return err
	}
	n.warnOfSecrets(policies)
	n.secrets = secret.New(secret.Options{Key: key, Roots: roots, Report: n.report, Log: n.log}, secrets)
	return nil
}

// report logs the use of secrets. It has no values.
func (n *networks) report(e secret.Event) {
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String(logkey.Who, cmp.Or(e.Box.Owner, "local")), slog.String(logkey.Box, e.Box.ID), slog.String(logkey.Host, e.Host),
		slog.String(logkey.Secret, strings.Join(e.Secrets, ",")), slog.String(logkey.Outcome, string(e.Kind)),
	}
	if e.Kind == secret.Unencrypted {
		level = slog.LevelWarn
	}
	if e.Omitted > 0 {
		attrs = append(attrs, slog.Int64(logkey.Omitted, e.Omitted))
	}
	if n.audit != nil {
		n.audit.LogAttrs(context.Background(), level, "secret", attrs...)
		return
	}
	n.log.LogAttrs(context.Background(), slog.LevelDebug, "secret", attrs...)
}

// maxUseHosts bounds the hosts of a secret in the text for models.
const maxUseHosts = 3

// useText says where a secret works, as in "API_TOKEN (Authorization at https://api.example.com)".
func useText(u secret.Use) string {
	var hosts []string
	for _, h := range u.Hosts[:min(len(u.Hosts), maxUseHosts)] {
		hosts = append(hosts, "https://"+h)
	}
	if n := len(u.Hosts) - len(hosts); n > 0 {
		hosts = append(hosts, fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("%s (%s at %s)", u.Variable, strings.Join(u.Headers, " or "), strings.Join(hosts, ", "))
}
