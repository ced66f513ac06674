package cli

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// loadSecrets checks the secrets of network-file and reads their values.
func loadSecrets(cfg *config.Config, n *config.Network) (*secret.Secrets, error) {
	return readSecrets(cfg, n.Secrets())
}

// checkSecretFiles returns the error that a server has with the files of secrets. It leaves
// out variables, since the environment of a server can be another.
func checkSecretFiles(cfg *config.Config, n *config.Network) error {
	var inFiles []config.Secret
	for _, s := range n.Secrets() {
		if s.File != "" {
			inFiles = append(inFiles, s)
		}
	}
	_, err := readSecrets(cfg, inFiles)
	return err
}

// readSecrets reads the values of secrets.
func readSecrets(cfg *config.Config, list []config.Secret) (*secret.Secrets, error) {
	var definitions []secret.Definition
	for _, s := range list {
		definitions = append(definitions, secret.Definition{
			Name: s.Name, Owners: s.Owners, Hosts: s.Hosts, Headers: s.Headers, As: s.As, Like: s.Like, File: s.File, Env: s.Env,
		})
	}
	secrets, err := secret.Load(definitions)
	if err != nil {
		return nil, withHint(&config.Error{Text: "network-file: " + cfg.NetworkFile + ": " + err.Error()}, "docs/egress.md describes secrets")
	}
	return secrets, nil
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
	n.secrets = secret.New(secret.Options{Key: key, Roots: roots, Report: n.report, Log: n.log}, secrets)
	return nil
}

// report logs the use of secrets. It has no values.
func (n *networks) report(e secret.Event) {
	attrs := []slog.Attr{
		slog.String(logkey.Who, cmp.Or(e.Box.Owner, "local")), slog.String(logkey.Box, e.Box.ID), slog.String(logkey.Host, e.Host),
		slog.String(logkey.Secret, strings.Join(e.Secrets, ",")), slog.String(logkey.Outcome, string(e.Kind)),
	}
	if e.Omitted > 0 {
		attrs = append(attrs, slog.Int64(logkey.Omitted, e.Omitted))
	}
	if n.audit != nil {
		n.audit.LogAttrs(context.Background(), slog.LevelInfo, "secret", attrs...)
		return
	}
	n.log.LogAttrs(context.Background(), slog.LevelDebug, "secret", attrs...)
}
