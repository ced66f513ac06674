package config

import "net/url"

// Auth reports whether HTTP clients need an access token.
func (c *Config) Auth() bool { return c.TokensFile != "" || len(c.OIDCIssuers) > 0 }

// TLS reports whether the server speaks TLS itself.
func (c *Config) TLS() bool { return c.TLSCert != "" }

// authRate is the default rate limit with tokens, in requests per second: more than a
// client of a model sends, and little for the server.
const authRate = 100

// Rate returns the requests per second and the burst of one owner or address; 0 is no
// limit.
func (c *Config) Rate() (perSecond float64, burst int) {
	limit := c.RateLimit
	if limit < 0 {
		limit = 0
		if c.Auth() {
			limit = authRate
		}
	}
	if burst = c.RateBurst; burst == 0 {
		burst = 2 * limit
	}
	return float64(limit), burst
}

// OwnerCalls returns the limit of concurrent calls of one owner, 0 for none. With
// tokens, half of the server's limit is left to other owners.
func (c *Config) OwnerCalls() int {
	if c.OwnerMaxCalls == 0 && c.Auth() {
		return max(c.MaxCalls/2, 1)
	}
	return c.OwnerMaxCalls
}

// OwnerStreams is like OwnerCalls, for streams.
func (c *Config) OwnerStreams() int {
	if c.Auth() {
		return max(c.MaxStreams/2, 1)
	}
	return 0
}

// Audiences returns the accepted audiences of signed tokens.
func (c *Config) Audiences() []string {
	if len(c.OIDCAudiences) == 0 && c.PublicURL != "" {
		return []string{c.PublicURL}
	}
	return c.OIDCAudiences
}

func (c *Config) checkSecurity() (errs []error) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, invalid("tls-cert and tls-key must be set together, got '%s' and '%s'", c.TLSCert, c.TLSKey))
	}
	if c.PublicURL != "" {
		u, err := url.Parse(c.PublicURL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			errs = append(errs, invalid("public-url must be a URL such as https://boxes.example.org/mcp, got '%s'", c.PublicURL))
		}
	}
	if len(c.OIDCIssuers) > 0 && len(c.Audiences()) == 0 {
		errs = append(errs, invalid("oidc-issuer needs oidc-audience or public-url: without an audience, tokens for other services would be accepted"))
	}
	if c.OwnerSnapshotMB > c.SnapshotDiskMB/2 {
		errs = append(errs, invalid("owner-max-snapshot-mb must not exceed half of snapshot-disk-mb (%d), got %d", c.SnapshotDiskMB/2, c.OwnerSnapshotMB))
	}
	if need := flavorMB[c.DefaultFlavor]; c.OwnerMaxMemoryMB != 0 && c.OwnerMaxMemoryMB < need {
		errs = append(errs, invalid("owner-max-memory-mb must be at least the %d MB of the flavor %s, got %d", need, c.DefaultFlavor, c.OwnerMaxMemoryMB))
	}
	return errs
}
