package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// security is the access control and TLS of an HTTP server.
type security struct {
	verifier *auth.Verifier // nil: no authentication
	cert     *certificate   // nil: no TLS
	audit    *slog.Logger   // nil: none
	rate     float64
	burst    int
	files    []reloadFile
	closers  []func()
}

// peersTLS returns the configuration of connections to other servers; nil without TLS.
func (s *security) peersTLS() *tls.Config {
	if s.cert == nil {
		return nil
	}
	return s.cert.others()
}

// openSecurity opens what cfg configures. The caller closes it.
func openSecurity(cfg *config.Config, log *slog.Logger) (s security, err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.rate, s.burst = cfg.Rate()
	if cfg.TLS() {
		if s.cert, err = openCertificate(cfg.TLSCert, cfg.TLSKey, log); err != nil {
			return s, withHint(err, "--tls-cert and --tls-key must be PEM files of one key pair")
		}
		s.closers = append(s.closers, s.cert.close)
		s.files = append(s.files, reloadFile{"certificate", s.cert.load})
	}
	if cfg.Auth() {
		s.verifier, err = auth.Open(authConfig(cfg, log))
		if err != nil {
			return s, explainAuth(err)
		}
		s.closers = append(s.closers, s.verifier.Close)
		if cfg.TokensFile != "" {
			s.files = append(s.files, reloadFile{"tokens file", s.verifier.Reload})
		}
		s.audit = log
	}
	if cfg.AuditLog != "" {
		file, err := openLogFile(cfg, cfg.AuditLog)
		if err != nil {
			return s, withHint(fmt.Errorf("open the audit log: %w", err), "choose another file with --audit-log or GLOVEBOX_AUDIT_LOG")
		}
		s.audit = slog.New(slog.NewJSONHandler(file, nil))
		s.closers = append(s.closers, func() { file.Close() })
		s.files = append(s.files, reloadFile{"audit log", file.Close})
	}
	return s, nil
}

func authConfig(cfg *config.Config, log *slog.Logger) auth.Config {
	c := auth.Config{TokensFile: cfg.TokensFile, Log: log}
	for _, url := range cfg.OIDCIssuers {
		c.Issuers = append(c.Issuers, auth.IssuerConfig{
			URL: url, Audiences: cfg.Audiences(),
			SubjectClaim: cfg.OIDCSubjectClaim, ScopeClaim: cfg.OIDCScopeClaim, RequireScopes: cfg.OIDCRequireScopes,
		})
	}
	return c
}

// close stops all watchers and fetchers.
func (s *security) close() {
	for _, c := range s.closers {
		c()
	}
}

// listener adds TLS to ln if there is a certificate.
func (s *security) listener(ln net.Listener) net.Listener {
	if s.cert == nil {
		return ln
	}
	return tls.NewListener(ln, s.cert.config())
}

// checkBind rejects an address beyond this machine without authentication, or without
// TLS. abuse is what anyone could do without.
func checkBind(cfg *config.Config, abuse string) error {
	var why, hint string
	switch {
	case cfg.InsecureBind || address.IsLoopback(cfg.Host):
		return nil
	case !cfg.Auth():
		why = fmt.Sprintf("without authentication, anyone who can reach it could %s", abuse)
		hint = "require tokens (--tokens-file or --oidc-issuer) and protect them with TLS (--tls-cert, --tls-key) or --behind-proxy; or keep it on 127.0.0.1 behind a proxy that authenticates; or pass --insecure-bind if you trust the network"
	case !cfg.TLS() && !cfg.BehindProxy:
		why = "tokens would cross the network in clear text, where others could read and use them"
		hint = "set a certificate with --tls-cert and --tls-key; or pass --behind-proxy if a proxy in front terminates TLS; or --insecure-bind if you trust the network"
	default:
		return nil
	}
	return withHint(&config.Error{Text: fmt.Sprintf("refuse to listen on %s: %s", cfg.Host, why)}, "%s", hint)
}

// explainAuth adds the remedy to an error of access control; nil stays nil.
func explainAuth(err error) error {
	if e, ok := errors.AsType[*auth.SetupError](err); ok {
		return withHint(err, "%s", printable(e.Fix))
	}
	return withHint(err, "glovebox token new creates a tokens file; docs/security.md describes it and the settings of an issuer")
}

// checkTokens checks the tokens file before the program enters a user namespace, where
// all other users' files have one owner.
func checkTokens(cfg *config.Config) error {
	if cfg.TokensFile == "" {
		return nil
	}
	_, _, err := auth.ReadTokens(cfg.TokensFile)
	return explainAuth(err)
}

var errNoTokensFile = errors.New("no tokens file")
