package egress

import (
	"fmt"
	"strings"
	"testing"
)

// TestRefusal_EndsConnection checks that one connection causes one refusal only.
func TestRefusal_EndsConnection(t *testing.T) {
	w := newWorld(t, Options{}, []string{"good.example.org"})
	got := say(t, w.httpDoor(), strings.Repeat("GET http://a.b/ HTTP/1.1\r\nHost: a\r\n\r\n", 100)+"GET http://a.b/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if n := w.g.Stats().Connections[Refused]; n != 1 || strings.Count(got, "HTTP/1.1 403 ") != 1 {
		t.Errorf("%d refusals, got %.300q", n, got)
	}
}

// TestRefusal_UnreadableRequestHasNoRecord checks that a request without a destination, about which
// the policy decides nothing, is no refusal in the audit log, the notes and the figures.
func TestRefusal_UnreadableRequestHasNoRecord(t *testing.T) {
	w := newWorld(t, Options{}, []string{"good.example.org"})
	door := w.httpDoor()
	for _, start := range []string{"GET /", "GET https://a.b/", "GET http://u@a.b/", "GET http://a.b:0/", "CONNECT a.b", "CONNECT a.b:x"} {
		if got := say(t, door, start+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%s: got %.300q, want the status 400", start, got)
		}
	}
	if records, notes, n := w.recorded(), w.n.Take(), w.g.Stats().Connections[Refused]; len(records)+len(notes) != 0 || n != 0 {
		t.Errorf("records %+v, notes %+v and %d refusals, want none", records, notes, n)
	}
	say(t, door, "GET http://a.b/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	w.wantOutcomes(t, "a.b refused")
}

// TestRefusal_ReasonPhraseHasWholeEntries: the reason phrase of a refused CONNECT is bounded, and
// ends before an entry of the policy, not within its host name.
func TestRefusal_ReasonPhraseHasWholeEntries(t *testing.T) {
	for length := range 60 { // so that the bound is at each part of an entry
		entry := strings.Repeat("a", length+1) + ".example.org"
		allow := []string{entry}
		for i := range 4 {
			allow = append(allow, fmt.Sprintf("h%d.", i)+entry)
		}
		w := newWorld(t, Options{}, allow)
		refused := w.n.refuseVerdict("http", "evil.example.org", 443, w.n.policies().Decide("evil.example.org", 443))
		var b strings.Builder
		refused.writeRaw(&b, "")
		line, _, _ := strings.Cut(b.String(), "\r\n")
		phrase := strings.TrimPrefix(line, "HTTP/1.1 403 ")
		start, cut := strings.CutSuffix(phrase, " ...")
		if !cut || len(phrase) > maxReason || !strings.HasPrefix(refused.text, start+" ") {
			t.Errorf("the reason phrase is %q, want the beginning of %q up to a space, and at most %d bytes", phrase, refused.text, maxReason)
		}
	}
	if short := "Glovebox refused it."; reasonPhrase(short) != short {
		t.Errorf("a short text becomes %q", reasonPhrase(short))
	}
	if long := strings.Repeat("a", maxReason+1); len(reasonPhrase(long)) != maxReason {
		t.Errorf("one word becomes %q", reasonPhrase(long))
	}
}

// TestRefusal_Cost checks that a refusal does not compute the list of a long policy again.
func TestRefusal_Cost(t *testing.T) {
	var allow []string
	for i := range 256 {
		allow = append(allow, fmt.Sprintf("h%d.example.org", i))
	}
	w := newWorld(t, Options{}, allow)
	first := w.n.allowed()
	if !strings.HasSuffix(first, "h4.example.org and 251 more") {
		t.Errorf("allowed: %q", first)
	}
	if n := testing.AllocsPerRun(10, func() { w.n.allowed() }); n > 20 {
		t.Errorf("%v allocations for the list of the same policy", n)
	}
	if n := testing.AllocsPerRun(10, func() { w.n.policies().Ports("evil.example.org") }); n > 20 {
		t.Errorf("%v allocations for the ports of a host without a rule", n)
	}
	w.allow("other.example.org")
	if got := w.n.allowed(); got != "other.example.org" {
		t.Errorf("after a change of the policy: %q", got)
	}
}
