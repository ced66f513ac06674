package egress

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
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
	if n.policies().Decide(t.host, 443).OK {
		text += fmt.Sprintf(" Use https://%s.", shown(t.host, 0))
	} else {
		text += fmt.Sprintf(" The operator can allow it with the entry https://%s.", shown(t.host, 0))
	}
	n.note(&refusal{host: t.host, port: t.port, rule: v.Rule, reason: Unencrypted, text: text})
}
