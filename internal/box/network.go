package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// Networks opens the networks of boxes. Its methods may be called concurrently.
type Networks interface {
	// Open returns the network of one machine of a box, which is never nil and whose Close
	// the caller calls. It is called once the machine has an owner, and does not wait. The
	// limits narrow what the owner's boxes may reach; a limit that cannot be read allows
	// nothing.
	Open(owner Owner, box, template string, limits snapshot.NetLimits) Network
	// Parse returns the canonical form of presets and hosts to which a client narrows the
	// network of a box, sorted and without repetitions. It is not nil without an error.
	Parse(entries []string) ([]string, error)
	// Within returns those of the entries of which the owner's boxes with these limits may
	// reach nothing, and a list of what they may reach.
	Within(owner Owner, limits snapshot.NetLimits, entries []string) (outside, allowed []string)
}

// Network connects the programs of one box to other hosts. Its methods may be called
// concurrently.
type Network interface {
	client.Network
	// Settings returns what the agent needs to know.
	Settings() protocol.Network
	// Changed returns a channel that can be received from once the settings have changed
	// since the last call of Settings.
	Changed() <-chan struct{}
	// Allowed lists what the programs can reach, in words for people. It is empty if the
	// network is off.
	Allowed() []string
	// Where says where the operator allows hosts to the box, in words for people: in the
	// setting --network, or in a section of a file.
	Where() string
	// Active reports whether bytes have been transferred in the last seconds.
	Active() bool
	// Connected reports whether connections are open, for which Close may have to wait.
	Connected() bool
	// Take returns the refused connections since the last call: some dozens of
	// destinations at most, the most frequent first.
	Take() []Refusal
	// Close ends all connections and waits until they have ended.
	Close() error
}

// A Refusal is a connection, or several to one destination, that the network refused, or a
// name that is allowed but could not be resolved.
// The guest chose Host.
type Refusal struct {
	Host  string
	Port  int    // 0: the program only looked up the name
	Rule  string // that denied it; "": no rule allowed it
	Why   string // one of a closed set, such as "no_rule"
	Text  string // why, and what to do, as the program was told
	Count int    // connections, at least 1
	Other bool   // not refused: it failed, or the program should know something else about it
}

const (
	// maxRefusals bounds the refusals in one result.
	maxRefusals = 5
	maxHost     = 300  // bytes
	maxRefusal  = 1000 // bytes of a text
	// activeNetwork is how long a transfer keeps a box without calls from being paused: a
	// large download takes minutes, and a stream that never ends must not keep the box in
	// memory.
	activeNetwork = 10 * time.Minute
)

// errNetworkClosed is the error of a connection to the network of a box that leaves memory.
var errNetworkClosed = errors.New("the network of the box is closed")

// boxNetwork is the network of one box, and nil before its machine is made. It stays the same
// when the box fails to hibernate and goes on with a new [Network].
type boxNetwork struct {
	agent   *client.Conn
	open    func() Network // nil: boxes have no network
	limited bool           // the box has limits, so that its notice may not be the usual one

	sending sync.Mutex // held while settings are sent; before mu

	mu      sync.Mutex
	current Network         // guarded by mu; nil: closed
	changed <-chan struct{} // guarded by mu; of current
	stale   bool            // guarded by mu; the agent lacks the settings of current
	on      bool            // guarded by mu; the agent's network is on
	old     bool            // guarded by mu; the agent has no network, and current is on
}

// openNetwork connects the machine of a box, which has its owner now, to its network. Until
// then the agent has none, also in a machine that is restored from one that had.
func (f *machineFactory) openNetwork(ctx context.Context, b *Box, made *startedMachine) error {
	n := &boxNetwork{agent: made.machine.Agent, limited: len(b.limits) > 0}
	if nets := f.parts.Networks; nets != nil {
		n.open = func() Network {
			return nets.Open(b.key.owner, b.key.id, cmp.Or(b.template, string(b.interpreter)), b.limits)
		}
	}
	made.network = n
	n.reopen()
	n.agent.SetNetwork(n)
	return n.send(ctx)
}

// reopen gives the box a new network in place of none. The agent gets the settings before
// the next call.
func (n *boxNetwork) reopen() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stale = true
	if n.open != nil && n.current == nil {
		n.current = n.open()
		n.changed = n.current.Changed()
	}
}

// close ends all connections. It may be called again.
func (n *boxNetwork) close() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	current := n.current
	n.current, n.changed = nil, nil
	n.mu.Unlock()
	if current == nil {
		return nil
	}
	return current.Close()
}

// refresh sends the settings to the agent if they have changed. The box is not paused.
func (n *boxNetwork) refresh(ctx context.Context) error {
	n.mu.Lock()
	select {
	case <-n.changed:
		n.stale, n.changed = true, n.current.Changed()
	default:
	}
	stale := n.stale
	n.mu.Unlock()
	if !stale {
		return nil
	}
	return n.send(ctx)
}

// elsewhereLocked reports whether another place than the setting allows hosts, which the agent's own
// text about a network that is off names.
func (n *boxNetwork) elsewhereLocked() bool {
	return n.current != nil && n.current.Where() != usualWhere
}

// send sends the settings to the agent, unless it has them, or has no network and gets none
// for the usual reason.
func (n *boxNetwork) send(ctx context.Context) error {
	n.sending.Lock()
	defer n.sending.Unlock()
	n.mu.Lock()
	if !n.stale {
		n.mu.Unlock()
		return nil // another call has sent them
	}
	n.stale = false
	var settings protocol.Network
	if n.current != nil {
		settings = n.current.Settings()
	}
	needed := settings.On || n.on || n.limited || n.elsewhereLocked()
	n.mu.Unlock()
	var err error
	if needed {
		err = n.agent.Configure(ctx, settings)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		n.old = settings.On
		return nil
	case err != nil:
		n.stale = true
		return fmt.Errorf("configure the network of the box: %w", err)
	}
	n.on = settings.On
	return nil
}

// Lookup implements client.Network.
func (n *boxNetwork) Lookup(ctx context.Context, name string) protocol.LookupResult {
	if current := n.now(); current != nil {
		return current.Lookup(ctx, name)
	}
	return protocol.LookupResult{Status: protocol.LookupRefused}
}

// Serve implements client.Network.
func (n *boxNetwork) Serve(ctx context.Context, d protocol.Dial, c net.Conn) error {
	if current := n.now(); current != nil {
		return current.Serve(ctx, d, c)
	}
	return errors.Join(errNetworkClosed, c.Close())
}

func (n *boxNetwork) now() Network {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

// active reports whether programs transfer data.
func (n *boxNetwork) active() bool {
	current := n.now()
	return current != nil && current.Active()
}

// connected reports whether programs have open connections.
func (n *boxNetwork) connected() bool {
	current := n.now()
	return current != nil && current.Connected()
}

// A networkState is the network of a box as the result of a call describes it.
type networkState struct {
	allowed []string  // empty: off
	where   string    // of Network.Where; "": the setting
	refused []Refusal // since the last result, the most frequent ones
	more    int       // further refused destinations, which refused omits
	notes   []string  // for the model
}

// usualWhere is the setting that allows hosts to all owners.
const usualWhere = "--network"

// allow says with what the operator allows presets. The setting has no effect on boxes that a section
// of a file is for.
func (n networkState) allow(presets string) string {
	if n.where == "" || n.where == usualWhere {
		return usualWhere + " " + presets
	}
	return n.where + ": " + presets
}

// take returns the refused connections since the last call.
func (n *boxNetwork) take() networkState {
	current := n.now()
	if current == nil {
		return networkState{}
	}
	n.mu.Lock()
	on, old := n.on, n.old
	n.mu.Unlock()
	state := networkState{where: current.Where()}
	all := current.Take()
	state.more = max(0, len(all)-maxRefusals)
	for _, r := range all[:len(all)-state.more] {
		r.Host, r.Rule, r.Text = clip(r.Host, maxHost), clip(r.Rule, maxHost), clip(r.Text, maxRefusal)
		state.refused = append(state.refused, r)
	}
	if on {
		state.allowed = current.Allowed()
	}
	if old {
		state.notes = append(state.notes, "This box was made by an earlier version of Glovebox and has no network; a new box has one.")
	}
	for _, r := range state.refused {
		text := r.Text
		if r.Count > 1 {
			text = fmt.Sprintf("%s (%d times)", text, r.Count)
		}
		state.notes = append(state.notes, text)
	}
	if state.more > 0 {
		state.notes = append(state.notes, fmt.Sprintf("Glovebox refused, or could not resolve, at least %s.", plural.N(state.more, "more destination")))
	}
	return state
}

// discardMachine frees a machine that has become no box.
func (e *env) discardMachine(made startedMachine) {
	e.closeNetwork(made.network, made.machine.ID)
	e.discard(made.machine)
}

// closeNetwork closes the network of a machine that ends.
func (e *env) closeNetwork(n *boxNetwork, guest string) {
	if err := n.close(); err != nil {
		e.log.Warn("network of a box not closed", logkey.Guest, guest, logkey.Error, err)
	}
}
