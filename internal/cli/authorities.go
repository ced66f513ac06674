package cli

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// readAuthorities reads the authorities of egress-ca, and warns of those that are not valid
// now: one of them must not keep a server from starting.
func readAuthorities(cfg *config.Config, log *slog.Logger) (config.Authorities, error) {
	authorities, err := cfg.ReadAuthorities()
	if err != nil {
		return authorities, withHint(err, "docs/egress.md describes the file")
	}
	now := time.Now()
	for _, cert := range authorities.Certificates {
		if now.After(cert.NotAfter) || now.Before(cert.NotBefore) {
			log.Warn("an authority of --egress-ca is not valid now, so nothing trusts it",
				logkey.File, cfg.EgressCA, logkey.Authority, printable(cert.Subject.String()))
		}
	}
	return authorities, nil
}

// hostRoots returns the authorities with which the server verifies the hosts of secrets: nil
// for those of this machine.
func hostRoots(authorities config.Authorities) (*x509.CertPool, error) {
	if len(authorities.Certificates) == 0 {
		return nil, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the authorities of this machine, beside those of --egress-ca: %w", err)
	}
	for _, cert := range authorities.Certificates {
		roots.AddCert(cert)
	}
	return roots, nil
}

// showAuthorities prints the authorities of egress-ca.
func (a *app) showAuthorities(cfg *config.Config) error {
	authorities, err := readAuthorities(cfg, slog.New(slog.DiscardHandler))
	if err != nil || len(authorities.Certificates) == 0 {
		return err
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nAUTHORITY\tVALID UNTIL")
	for _, cert := range authorities.Certificates {
		fmt.Fprintf(w, "%s\t%s\n", printable(cert.Subject.String()), cert.NotAfter.UTC().Format(time.DateOnly))
	}
	return w.Flush()
}
