package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// An Outcome is the end of a connection. It is one of a closed set, for metrics.
type Outcome string

const (
	OK            Outcome = "ok"
	Refused       Outcome = "refused"
	Failed        Outcome = "failed"         // no address, or no connection to it
	Limited       Outcome = "limit"          // ended because of a limit
	Idle          Outcome = "idle"           // ended after 10 minutes without a byte
	PolicyChanged Outcome = "policy_changed" // ended because it is no longer allowed
)

// Outcomes returns all outcomes.
func Outcomes() []Outcome { return []Outcome{OK, Refused, Failed, Limited, Idle, PolicyChanged} }

// Reasons of refusals beside those of package policy.
const (
	Narrowed policy.Reason = "narrowed" // the policy allows it, a limit of the box or its template does not
	Floor    policy.Reason = "floor"    // the name leads to an address that boxes never reach
	SNI      policy.Reason = "sni"      // TLS asks for another name, or for none
	Host     policy.Reason = "host"     // HTTP asks for another host
	Protocol policy.Reason = "protocol" // neither TLS nor HTTP
	Limit    policy.Reason = "limit"
)

// Unresolved is the reason of a failure, not of a refusal: a rule allows the name, and it has
// no address.
const Unresolved policy.Reason = "unresolved"

// Unreachable is one, too: the name has addresses, and none of them accepts the connection. Only
// notes have it.
const Unreachable policy.Reason = "unreachable"

// Unencrypted is no reason of a refusal either: a request of plain HTTP has the placeholder of
// a secret, which is replaced inside of TLS only.
const Unencrypted policy.Reason = "unencrypted"

// Misplaced is none, either: a request has the placeholder of a secret where it is not replaced.
const Misplaced policy.Reason = "misplaced"

// Ranges is none, either: a request for a part of what a host with a secret has got the whole.
const Ranges policy.Reason = "ranges"

// Reasons of notes about connections that were not refused.
const (
	Slowed policy.Reason = "slowed"         // it waits for the limit of bytes
	Cut    policy.Reason = "policy_changed" // it ended, since it is no longer allowed
)

// Reasons returns all reasons of refusals.
func Reasons() []policy.Reason {
	return []policy.Reason{policy.Off, policy.NoRule, policy.Denied, policy.Name, policy.Method, Narrowed, Floor, SNI, Host, Protocol, Limit}
}

// A Record describes a connection that has ended, or a refusal. It contains nothing of
// what was transferred.
type Record struct {
	Box Box
	// Door is http, socks or tcp of the agent protocol, dns for a lookup, and "" in the last
	// record of a network that closes.
	Door string
	// Host is empty if no rule allowed it: a guest could choose names to write data into
	// logs. Then Site is the registrable domain, of at most 64 bytes, and Hash 8 hexadecimal
	// digits of the SHA-256 of the name.
	Host, Site, Hash string
	Port             uint16
	Addr             netip.Addr // that was dialled; may be invalid
	Rule             string     // the text of the rule that decided
	Policy           string     // version
	Sent, Received   int64      // bytes from and to the guest
	Duration         time.Duration
	Outcome          Outcome
	Reason           policy.Reason // of a refusal, Limit of a connection that is Limited, or Unresolved
	// Omitted is the number of refusals, or failed lookups, of this box and Reason since the
	// last record of one. For each Reason a box gets five records, and an owner twenty, and
	// then one every ten seconds. A record without a Reason and a Door is made when the network
	// of a box closes: Omitted is the number of those that no other record counts.
	Omitted int64
}

// redacted returns the fields of a Record for a host that no rule allows. The host may
// contain any bytes; the site consists of letters, digits and ".-_:".
func redacted(host string) (site, hash string) {
	sum := sha256.Sum256([]byte(host))
	hash = hex.EncodeToString(sum[:4])
	if addr, err := netip.ParseAddr(host); err == nil {
		// A zone is any text.
		return addr.WithZone("").Unmap().String(), hash
	}
	name, err := policy.ParseName(host)
	if err != nil {
		return "", hash
	}
	site, err = publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil {
		site = name[strings.LastIndexByte(name, '.')+1:]
	}
	if len(site) > maxSite {
		site = site[len(site)-maxSite:]
	}
	return site, hash
}

const maxSite = 64

// Stats are counts since the Gate was made, except for Open.
type Stats struct {
	Open           int                // connections of guests now
	Connections    map[Outcome]uint64 // that have ended
	Sent, Received uint64             // bytes from and to guests
	Refusals       map[policy.Reason]uint64
	Lookups        map[string]uint64 // by the status of the agent protocol
}

// Stats returns the counts, with a key for each value of the closed sets.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	c := &g.count
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Open: open, Connections: maps.Clone(c.connections), Refusals: maps.Clone(c.refusals), Lookups: maps.Clone(c.lookups),
		Sent: c.sent.Load(), Received: c.received.Load(),
	}
}

type counters struct {
	sent, received atomic.Uint64

	mu          sync.Mutex
	connections map[Outcome]uint64       // guarded by mu
	refusals    map[policy.Reason]uint64 // guarded by mu
	lookups     map[string]uint64        // guarded by mu
}

func (c *counters) init() {
	c.connections = make(map[Outcome]uint64)
	for _, o := range Outcomes() {
		c.connections[o] = 0
	}
	c.refusals = make(map[policy.Reason]uint64)
	for _, r := range Reasons() {
		c.refusals[r] = 0
	}
	c.lookups = make(map[string]uint64)
	for _, s := range lookupStatuses {
		c.lookups[s] = 0
	}
}

func (c *counters) ended(o Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections[o]++
}

func (c *counters) refused(r policy.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections[Refused]++
	c.refusals[r]++
}

func (c *counters) lookedUp(status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookups[status]++
}
