package egress

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func layer(t testing.TB, name string, entries ...string) policy.Layer {
	t.Helper()
	p, err := policy.Parse(entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Layer{Name: name, Policy: p}
}

// A narrowed box is refused with a text that names the limit, and follows the policy of its
// owner but never beyond its limit.
func TestNarrow_RefusalsAndChanges(t *testing.T) {
	w := newWorld(t, Options{}, []string{"a.example.org", "b.example.org"})
	get := func(n *Network, host string) string {
		t.Helper()
		return say(t, w.doorOf(n, protocol.Dial{Door: protocol.DoorHTTP}), "GET http://"+host+"/ HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
	}
	open := func(limits ...policy.Layer) *Network {
		t.Helper()
		n := w.g.Open(Box{Owner: "alice", ID: "narrow"}, limits...)
		t.Cleanup(func() { n.Close() })
		return n
	}
	own := open(layer(t, LayerBox, "a.example.org", "c.example.org"))
	wants := func(when, got, want string) {
		t.Helper()
		if !strings.Contains(got, want) || !strings.Contains(got, " 403 ") {
			t.Errorf("%s: got %.400q, want %q", when, got, want)
		}
	}
	why := func(when string, n *Network, want policy.Reason) {
		t.Helper()
		if refused := n.Take(); len(refused) == 0 || refused[len(refused)-1].Reason != string(want) {
			t.Errorf("%s: why is %+v, want %s", when, refused, want)
		}
	}
	if got := own.Allowed(); strings.Join(got, " ") != "a.example.org" || !own.Settings().On {
		t.Errorf("allowed: got %q", got)
	}
	wants("by the box", get(own, "b.example.org"), "this box was made with the argument network, which allows less than the policy (allowed: a.example.org). Do not retry; a new box whose argument network has it can reach it.")
	why("by the box", own, Narrowed)
	wants("by the policy", get(own, "c.example.org"), "no rule allows it (allowed: a.example.org).")
	why("by the policy", own, policy.NoRule)
	byTemplate := open(layer(t, LayerTemplate, "a.example.org"))
	wants("by the template", get(byTemplate, "b.example.org"), "the template of this box allows less than the policy (allowed: a.example.org). Do not retry; the operator can add it to network of the template.")
	why("by the template", byTemplate, Narrowed)
	wants("by the policy and the template", get(byTemplate, "c.example.org"), "; the template of this box refuses it too: add it to network of the template")
	wants("by the policy and the box", get(own, "d.example.org"), "; the argument network of this box refuses it too: make a new box with it")

	none := open(layer(t, LayerTemplate, "a.example.org"), layer(t, LayerBox))
	wants("no network", get(none, "a.example.org"), "this box has no network: it was made without one (network: []). Do not retry")
	if s := none.Settings(); s.On || !strings.Contains(s.Notice, "this box has no network: it was made without one") {
		t.Errorf("settings without a network: %+v", s)
	}

	second := open(layer(t, LayerBox, "a.example.org", "c.example.org"))
	w.allow("b.example.org", "c.example.org")
	w.g.Reevaluate()
	if got := second.Allowed(); strings.Join(got, " ") != "c.example.org" {
		t.Errorf("after a change of the policy: got %q, want what both allow", got)
	}
	wants("after a change", get(second, "a.example.org"), "no rule allows it")
	w.allow()
	w.g.Reevaluate()
	if second.Settings().On {
		t.Error("a limit has taken the place of a policy")
	}
}
