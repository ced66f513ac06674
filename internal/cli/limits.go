package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// maxNetworkEntries bounds the entries to which a box or template is narrowed.
const maxNetworkEntries = 32

// canonicalNetwork returns the canonical form of presets and hosts to which a network is
// narrowed, sorted and without repetitions; not nil.
func canonicalNetwork(entries []string) ([]string, error) {
	if len(entries) > maxNetworkEntries {
		return nil, fmt.Errorf("%d entries, at most %d are allowed", len(entries), maxNetworkEntries)
	}
	canonical := []string{}
	for _, entry := range entries {
		r, err := policy.ParseRule(strings.ToLower(strings.TrimSpace(entry)))
		if err != nil {
			return nil, err
		}
		canonical = append(canonical, r.String())
	}
	slices.Sort(canonical)
	return slices.Compact(canonical), nil
}

// layersOf returns the layers that limits add to the policies of an owner. One that this
// version cannot read allows nothing.
func layersOf(limits snapshot.NetLimits) []policy.Layer {
	var layers []policy.Layer
	for _, limit := range limits {
		p, err := policy.Parse(limit.Allow, nil)
		if err != nil {
			p = &policy.Policy{Version: "unreadable"}
		}
		name := egress.LayerBox
		if limit.Of == snapshot.OfTemplate {
			name = egress.LayerTemplate
		}
		layers = append(layers, policy.Layer{Name: name, Policy: p})
	}
	return layers
}

// templateLimits returns the limit of the boxes of a template; none if entries is nil.
func templateLimits(entries []string) (snapshot.NetLimits, error) {
	if entries == nil {
		return nil, nil
	}
	canonical, err := canonicalNetwork(entries)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	limits := snapshot.NetLimits{{Of: snapshot.OfTemplate, Allow: canonical}}
	return limits, limits.Check()
}

// describeLimits lists what limits leave, for people; "" if there are none.
func describeLimits(limits snapshot.NetLimits) string {
	var texts []string
	for _, limit := range limits {
		text := strings.Join(limit.Allow, ", ")
		if text == "" {
			text = "nothing"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " and ")
}

// showTemplateLimits prints the limits of an owner's templates, and what they leave of the
// owner's policy.
func (a *app) showTemplateLimits(cfg *config.Config, set policy.Set, owner string) (err error) {
	dir := filepath.Join(cfg.StateDir, "catalog")
	if _, err := os.Stat(dir); err != nil {
		return nil // no template was ever made, or by another user
	}
	c, err := catalog.Open(catalog.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	list, err := c.List(owner)
	if err != nil {
		return err
	}
	for _, t := range list {
		if len(t.Limits) == 0 {
			continue
		}
		left := "nothing"
		if allowed := set.Narrow(layersOf(t.Limits)...).Allowed(); len(allowed) > 0 {
			left = strings.Join(allowed, ", ")
		}
		fmt.Fprintln(a.Out, printable(fmt.Sprintf("Boxes of the template %s: at most %s, which leaves %s.", t.Name, describeLimits(t.Limits), left)))
	}
	return nil
}
