package server

import "testing"

// TestShares_AreThoseOfTheDocument: an owner gets the part of each limit that docs/security.md
// promises.
func TestShares_AreThoseOfTheDocument(t *testing.T) {
	limits := Limits{Connections: 1000, Calls: 400, Streams: 60, Sessions: 80, Body: 7 << 20, OwnerCalls: 200, OwnerStreams: 30}
	for _, proxied := range []bool{false, true} {
		p := newPeople(t)
		o := Options{Auth: p.v, BehindProxy: proxied, Limits: limits}
		s := New(o)
		inFlight := int64(1000+2*400+60) / 2
		connections := 500
		if proxied {
			inFlight, connections = 500, 0
		}
		for _, c := range []struct {
			name      string
			got, want int64
		}{
			{"calls of an owner", s.quota.each, 200},
			{"requests of other kinds, a quarter more", s.requests.each, 250},
			{"requests", s.requests.all, 400},
			{"requests about tasks of an owner, counted apart", s.polls.each, 250},
			{"requests about tasks, counted apart", s.polls.all, 400},
			{"streams of an owner", s.streams.each, 30},
			{"streams", s.streams.all, 60},
			{"bodies of an owner", s.bodies.each, 4 * 7 << 20},
			{"bodies", s.bodies.all, 8 * 7 << 20},
			{"answers of an owner", s.answers.each, 64 << 20},
			{"answers", s.answers.all, 128 << 20},
			{"events", int64(s.replay.total), 64 << 20},
			{"requests in flight of an owner", s.inFlight.each, inFlight},
			{"connections", int64(s.connections.limit), 1000},
			{"connections of an owner", int64(s.connections.each), int64(connections)},
			{"sessions", int64(s.sessions.limit), 80},
			{"sessions of an owner", int64(s.sessions.each), 40},
		} {
			if c.got != c.want {
				t.Errorf("behind a proxy %t: %s: got %d, want %d", proxied, c.name, c.got, c.want)
			}
		}
	}
}

// TestNetwork_OfAnAddress: a client's own addresses of IPv6 count as one, and those of IPv4 do
// not.
func TestNetwork_OfAnAddress(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"fe80::1%eth0", "fe80::2%eth1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{addressOf("[::ffff:192.0.2.1]:80"), addressOf("[::ffff:192.0.2.2]:80"), false},
	} {
		if got := addressPrefix(c.a) == addressPrefix(c.b); got != c.same {
			t.Errorf("%s and %s count as one address: got %t, want %t", c.a, c.b, got, c.same)
		}
	}
}
