package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// policies returns what the build may reach. A recipe in flags allows what its --net says,
// since the user has typed it. That of a file, which may come from elsewhere, only narrows
// the network that the settings allow the owner.
func (b *recipeBuild) policies() (policy.Set, error) {
	net, err := policy.Parse(b.recipe.Net, nil)
	if err != nil {
		return policy.Set{}, fmt.Errorf("net: %w", err)
	}
	if b.typed {
		return policy.Set{Owner: net}, nil
	}
	settings, err := readNetwork(b.cfg)
	if err != nil {
		return policy.Set{}, err
	}
	owner := b.owner
	if owner == catalog.Everyone {
		owner = "" // built by the local user, for others
	}
	set := settings.Set(owner)
	if !set.On() {
		return policy.Set{}, withHint(fmt.Errorf("net = %q: the settings allow this build no network", b.recipe.Net), "if you trust the recipe, allow it with: --network %s", strings.Join(b.recipe.Net, ","))
	}
	return set.Narrow(policy.Layer{Name: egress.LayerTemplate, Policy: net}), nil
}

// connect gives the programs of the machine the network of the build. The caller calls
// disconnect before the machine is written as a template.
func (b *recipeBuild) connect(ctx context.Context, m *machine.Machine) (disconnect func() error, err error) {
	if len(b.recipe.Net) == 0 {
		return func() error { return nil }, nil
	}
	set, err := b.policies()
	if err != nil {
		return nil, err
	}
	authorities, err := readAuthorities(b.cfg, b.host.log)
	if err != nil {
		return nil, err
	}
	gate := egress.New(egress.Options{
		Authorities: authorities.PEM,
		Policies:    func(string) policy.Set { return set },
		Pins:        b.cfg.Pins(), MaxConnections: b.cfg.EgressMaxConnections, MaxBytesPerMinute: int64(b.cfg.EgressMaxMBPerMinute) << 20, Log: b.host.log,
	})
	network := gate.Open(egress.Box{Owner: b.owner, ID: "build", Template: b.name})
	m.Agent.SetNetwork(network)
	if err := m.Agent.Configure(ctx, network.Settings()); err != nil {
		return nil, errors.Join(fmt.Errorf("connect the box to the network: %w", err), gate.Close())
	}
	return func() error {
		for _, r := range network.Take() {
			b.say("%s", r.Text)
		}
		err := m.Agent.Configure(ctx, protocol.Network{})
		return errors.Join(err, gate.Close())
	}, nil
}
