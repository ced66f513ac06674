package egress

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// notePlain notes that a request of plain HTTP to t, which v allows, has placeholders of
// secrets. The host gets them as they are, and its answer does not say why it refuses them.
func (n *Network) notePlain(t target, v policy.Verdict, r *http.Request) {
	i := n.gate.opts.Intercept
	if i == nil {
		return
	}
	secrets := i.Plain(n.box, t.host, r)
	if len(secrets) == 0 {
		return
	}
	text := fmt.Sprintf("Glovebox sent the placeholder of the secret %s to %s as it is: secrets go out over https only.", strings.Join(secrets, ", "), t)
	if at := n.secureAt(t); at != "" {
		text += fmt.Sprintf(" Use https://%s.", at)
	} else {
		text += fmt.Sprintf(" The operator can allow it with the entry https://%s.", shown(t.host, 0))
	}
	n.note(&refusal{host: t.host, port: t.port, rule: v.Rule, reason: Unencrypted, text: text})
}

// secureAt returns where the box reaches the host of t over https, for a text; "" if it does not.
// The port of https comes first, then that of t, unless it is that of plain HTTP.
func (n *Network) secureAt(t target) string {
	policies := n.policies()
	for _, port := range append([]uint16{443, t.port}, policies.Ports(t.host)...) {
		v := policies.Decide(t.host, port)
		switch {
		case port == 80 || !v.OK || v.RequestsOnly: // nothing can be decided on requests inside of TLS
		case v.Kind == policy.Raw && port != 443 && port != t.port: // another protocol, such as that of a database
		case port == 443:
			return shown(t.host, 0)
		default:
			return shown(t.host, port)
		}
	}
	return ""
}

// noteLast notes that d is the last connection that the box may have at the same time. The
// agent resets further ones, of which the host learns nothing.
func (n *Network) noteLast(d protocol.Dial) {
	n.note(&refusal{host: d.Name, port: uint16(d.Port), reason: Limit, text: fmt.Sprintf(
		"Glovebox refuses further connections while this box has %d: open fewer at once, or close some.", n.gate.maxBox)})
}

// slowNote is the time that a connection waits for the limits of bytes before a note says so.
// Longer waits make users look for a cause.
const slowNote = 2 * time.Second

// noteSlow notes once that the limits of bytes slow the flow down, which waited for them.
func (f *flow) noteSlow(waited time.Duration) {
	total := f.waited.Add(int64(waited))
	if total < int64(slowNote) || total-int64(waited) >= int64(slowNote) {
		return
	}
	f.n.note(&refusal{host: f.t.host, port: f.t.port, rule: f.verdict.Rule, reason: Slowed, text: fmt.Sprintf(
		"Glovebox slows transfers down, such as that of %s: boxes here may move %d MB a minute, and those of an owner together %d times as many.",
		f.t, max(f.n.gate.opts.MaxBytesPerMinute>>20, 1), ownerBytes)})
}

// noteLimited notes that the flow has ended because it would wait too long for the limits of bytes.
func (f *flow) noteLimited() {
	f.n.note(&refusal{host: f.t.host, port: f.t.port, reason: Limit, text: fmt.Sprintf(
		"Glovebox ended a connection to %s: this box or its owner used up the bytes a minute.", f.t)})
}

// noteCut notes that a flow in use has ended because the policy no longer allows it. The program
// sees only that the transfer is incomplete.
func (f *flow) noteCut() {
	if time.Since(time.Unix(0, f.last.Load())) >= activeFor {
		return // nobody waits for it
	}
	f.n.note(&refusal{host: f.t.host, port: f.t.port, reason: Cut, text: fmt.Sprintf(
		"Glovebox ended a connection to %s: the policy does not allow it any more. Do not retry or work around it.", f.t)})
}
