package cli

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// TestSettings_ReachTheLimits: the settings of the table of limits in docs/security.md, and those of
// access, reach what enforces them, each in its place. So does a time there that is no setting.
func TestSettings_ReachTheLimits(t *testing.T) {
	cfg := &config.Config{
		Endpoint: "/x", CORS: true, AllowedOrigins: []string{"https://a.example"}, AllowedHosts: []string{"b.example"}, PublicURL: "https://c.example/mcp", BehindProxy: true,
		DrainTimeout: 2 * time.Second, MCPSessionTimeout: 3 * time.Second, MaxBodyMB: 5, MaxConnections: 7, MaxStreams: 22, MaxCalls: 26, MaxMCPSessions: 17, OwnerMaxCalls: 19,
		TokensFile: "tokens.toml", OIDCIssuers: []string{"https://issuer.example"}, OIDCAudiences: []string{"aud"}, OIDCSubjectClaim: "email", OIDCScopeClaim: "perms", OIDCRequireScopes: true,
		EgressPins: []string{"a.example=10.1.2.3"}, EgressMaxConnections: 67, EgressMaxMBPerMinute: 71, SnapshotDiskMB: 73, OwnerSnapshotMB: 79, DiskReserveMB: 83, DiskGuarantee: 97, HibernateMaxAge: 89 * time.Hour,
		MaxSessions: 29, MaxContexts: 31, MaxTotalMemoryMB: 37, OwnerMaxBoxes: 41, OwnerMaxMemoryMB: 43, SessionTimeout: 47 * time.Second, MaxSnapshots: 53,
	}
	o := frontOptions(cfg, &security{rate: 59, burst: 61})
	l := o.Limits
	auth := authConfig(cfg, slog.New(slog.DiscardHandler))
	if len(auth.Issuers) != 1 {
		t.Fatalf("%d issuers", len(auth.Issuers))
	}
	issuer := auth.Issuers[0]
	b := boxConfig(cfg)
	e := (&networks{}).options(cfg, "certificates")
	sn := (&host{diskReserve: diskReserve(cfg)}).snapshotConfig(cfg)
	for what, ok := range map[string]bool{
		"endpoint":                     o.Path == "/x",
		"cors":                         o.CORS,
		"allowed-origins":              slices.Equal(o.AllowedOrigins, cfg.AllowedOrigins),
		"allowed-hosts":                slices.Equal(o.AllowedHosts, cfg.AllowedHosts),
		"public-url":                   o.PublicURL == cfg.PublicURL,
		"behind-proxy":                 o.BehindProxy,
		"drain-timeout":                l.Grace == 2*time.Second,
		"mcp-session-timeout":          l.SessionIdle == 3*time.Second,
		"max-body-mb":                  l.Body == 5<<20,
		"max-connections":              l.Connections == 7,
		"max-streams":                  l.Streams == 22 && l.OwnerStreams == 11,
		"max-calls":                    l.Calls == 26,
		"max-mcp-sessions":             l.Sessions == 17,
		"owner-max-calls":              l.OwnerCalls == 19,
		"rate and rate-burst":          l.Rate == 59 && l.Burst == 61,
		"tokens-file":                  auth.TokensFile == "tokens.toml",
		"oidc-issuers":                 issuer.URL == "https://issuer.example" && slices.Equal(issuer.Audiences, []string{"aud"}),
		"oidc-subject-claim":           issuer.SubjectClaim == "email",
		"oidc-scope-claim":             issuer.ScopeClaim == "perms",
		"oidc-require-scopes":          issuer.RequireScopes,
		"max-sessions":                 b.MaxSessions == 29,
		"max-contexts":                 b.MaxContexts == 31,
		"max-total-memory-mb":          b.MaxTotalMemoryMB == 37,
		"owner-max-boxes":              b.MaxPerOwner == 41,
		"owner-max-memory-mb":          b.MaxMemoryPerOwnerMB == 43,
		"halves with tokens":           b.Halves,
		"session-timeout":              b.IdleTimeout == 47*time.Second,
		"max-snapshots":                b.MaxSnapshots == 53,
		"egress-pins":                  len(e.Pins) == 1 && slices.Equal(e.Pins, cfg.Pins()),
		"egress-max-connections":       e.MaxConnections == 67,
		"egress-max-mb-per-minute":     e.MaxBytesPerMinute == 71<<20,
		"certificates of the settings": e.Authorities == "certificates",
		"snapshot-disk-mb":             sn.MaxBytes == 73<<20,
		"owner-snapshot-mb":            sn.MaxSaved == 79<<20,
		"disk-reserve-mb":              sn.MinFree == 83<<20,
		"disk-guarantee":               (&host{}).diskPolicy(cfg).Guaranteed == 0.97,
		"hibernate-max-age":            sn.MaxAge == 89*time.Hour,
		"time that a disk may be full": sn.DiskGrace == 5*time.Minute, // constant
		"boxes and snapshots on disk":  sn.MaxRecords == 10_000,       // constant
	} {
		if !ok {
			t.Errorf("the setting %s does not reach what enforces it: %+v, %+v, %+v, %+v, %+v", what, o, issuer, b, e, sn)
		}
	}
}
