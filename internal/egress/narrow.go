package egress

import (
	"fmt"
	"slices"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// LayerBox and LayerTemplate are the names of limits of a box: its own, and that of its
// template.
const (
	LayerBox      = "box"
	LayerTemplate = "template"
)

// narrowed reports whether a limit of the box refused a connection that the policies of
// the Gate allow.
func (n *Network) narrowed(v policy.Verdict) bool {
	return !v.OK && v.Reason != policy.Name && slices.ContainsFunc(n.limits, func(l policy.Layer) bool { return l.Name == v.Layer })
}

// narrowedText says why a limit refused a connection, and what to do.
func (n *Network) narrowedText(target string, v policy.Verdict) string {
	if v.Reason == policy.Off {
		return fmt.Sprintf("Glovebox refused %s: %s. Do not retry or work around it.", target, offText(v))
	}
	narrows, remedy := "this box was made with the argument network, which allows", "a new box whose argument network has it can reach it."
	if v.Layer == LayerTemplate {
		narrows, remedy = "the template of this box allows", "the operator can add it to network of the template."
	}
	return fmt.Sprintf("Glovebox refused %s: %s less than the policy (allowed: %s). Do not retry; %s", target, narrows, n.allowed(), remedy)
}

// offText says which limit leaves a box without a network.
func offText(v policy.Verdict) string {
	if v.Layer == LayerTemplate {
		return "this box has no network: its template leaves it none"
	}
	return "this box has no network: it was made without one (network: [])"
}
