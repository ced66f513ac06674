// Package machine combines a guest with the connection to its agent, and boots, restores,
// snapshots, pauses and closes the two together. Boxes, templates and the pool consist of
// machines. Machines have no owners and no timeouts of their own.
//
//	m, err := maker.Boot(ctx, id, limits)      // or Restore, from a snapshot
//	res, err := m.Agent.Run(ctx, …)
//	err = m.Snapshot(ctx, dir)                 // the machine continues
//	err = m.Close(ctx)                         // frees everything
package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Home is the home directory of user code inside, unless a Maker says otherwise.
const Home = "/home/user"

// Hostname is the host name of every machine. It is not the id, which changes with a
// restore. The /etc/hosts of image.Toolchain resolves it.
const Hostname = "glovebox"

const (
	// overheadMB and overheadPIDs are what the agent and the isolation need
	// inside a guest, beyond what is promised to the user's code: measured about
	// 20 MB and 15 threads, with room for growth.
	overheadMB   = 64
	overheadPIDs = 64
	// closeTimeout bounds the destruction of a guest whose agent could not be
	// reached. It takes well under a second unless the host is in trouble.
	closeTimeout = 30 * time.Second
)

// Maker makes machines of one kind. Its fields are constant; its methods may be
// called concurrently.
type Maker struct {
	Engine  engine.Engine  // not closed by the Maker
	Agent   engine.Program // the agent's executable and arguments
	Root    engine.Root    // the file system
	Volumes []engine.Mount // host directories in every machine
	// Interpreters has the absolute path inside for each language that the root
	// file system offers.
	Interpreters map[string]string
	Home         string   // of the user inside
	UID, GID     int      // of user code; -1: the agent's own
	Env          []string // of user code, KEY=value
	Log          *slog.Logger
}

// WithImage returns a Maker of the same kind of machines with another file system.
func (k *Maker) WithImage(root engine.Root, interpreters map[string]string) *Maker {
	other := *k
	other.Root, other.Interpreters = root, interpreters
	return &other
}

// WithAgent returns a Maker of the same kind of machines with another agent of the
// same version of the protocol.
func (k *Maker) WithAgent(agent engine.Program) *Maker {
	other := *k
	other.Agent = agent
	return &other
}

// WithVolumes returns a Maker of the same kind of machines with other volumes at the same
// paths inside: snapshots of one Maker's machines fit the other.
func (k *Maker) WithVolumes(volumes []engine.Mount) *Maker {
	other := *k
	other.Volumes = volumes
	return &other
}

// Machine is a running guest and the connection to its agent. All methods may be called
// concurrently; its creator closes it.
type Machine struct {
	ID    string // of the guest
	Guest engine.Guest
	Agent *client.Conn
	// VolumeDirs are the directories of its volumes, in the order of the Maker's; nil where the
	// creator does not compare them.
	VolumeDirs []fs.FileInfo

	engine engine.Engine
}

// Spec returns the spec of a machine. limits are those of user code.
func (k *Maker) Spec(limits engine.Limits) engine.Spec {
	limits.MemoryMB += overheadMB
	limits.PIDs += overheadPIDs
	return engine.Spec{Root: k.Root, Agent: k.Agent, Hostname: Hostname, Limits: limits, Mounts: k.Volumes}
}

// Snapshots reports whether machines can be written to disk and restored.
func (k *Maker) Snapshots() bool {
	return has[engine.Snapshotter](k)
}

// Pauses reports whether machines can be paused.
func (k *Maker) Pauses() bool {
	return has[engine.Pauser](k)
}

func has[T any](k *Maker) bool {
	_, ok := engine.As[T](k.Engine)
	return ok
}

// Boot makes a new machine. id is as engine.Create wants it; ctx bounds the call.
// No interpreter has been started. After an error nothing is left. Errors: those
// of engine.Create and those of the agent connection.
func (k *Maker) Boot(ctx context.Context, id string, limits engine.Limits) (*Machine, error) {
	spec := k.Spec(limits)
	guest, err := k.Engine.Create(ctx, id, &spec)
	if err != nil {
		return nil, err
	}
	return k.greet(ctx, id, guest, limits, false, client.Open)
}

// Adopt makes a machine of a guest that had one in another process, with its interpreters as
// they are. Calls that are under way in it are interrupted. After an error the guest keeps
// running, and the caller owns it.
func (k *Maker) Adopt(ctx context.Context, guest engine.Guest, limits engine.Limits) (*Machine, error) {
	return k.connect(ctx, guest.ID(), guest, limits, false, client.Resume)
}

// opener is client.Open or client.Resume.
type opener func(context.Context, client.Dialer, client.Options) (*client.Conn, error)

// greet is connect that ends the guest after an error.
func (k *Maker) greet(ctx context.Context, id string, guest engine.Guest, limits engine.Limits, copied bool, open opener) (*Machine, error) {
	m, err := k.connect(ctx, id, guest, limits, copied, open)
	if err != nil {
		freeing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		m := &Machine{ID: id, Guest: guest, engine: k.Engine}
		return nil, errors.Join(err, m.Close(freeing))
	}
	return m, nil
}

func (k *Maker) connect(ctx context.Context, id string, guest engine.Guest, limits engine.Limits, copied bool, open opener) (*Machine, error) {
	hello := protocol.Hello{
		Restored: copied, Home: k.Home, Scratch: []string{"/tmp"}, UID: k.UID, GID: k.GID, Env: k.Env,
		Interpreters: k.Interpreters, PIDs: limits.PIDs, MemoryMB: limits.MemoryMB,
		Entropy: make([]byte, 32), Now: time.Now().UnixNano(),
	}
	rand.Read(hello.Entropy) // never fails
	for _, v := range k.Volumes {
		if v.ReadOnly || v.Frozen {
			hello.ReadOnly = append(hello.ReadOnly, v.Guest)
		} else {
			hello.Scratch = append(hello.Scratch, v.Guest)
		}
	}
	log := k.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lnk, err := open(ctx, guest, client.Options{Hello: hello, Log: log.With(logkey.Guest, id)})
	if err != nil {
		return nil, fmt.Errorf("connect to the agent: %w", err)
	}
	return &Machine{ID: id, Guest: guest, Agent: lnk, engine: k.Engine}, nil
}

// Start starts the interpreter of a language, if it does not run, and has a new
// one import the modules of preload that there are.
func (m *Machine) Start(ctx context.Context, language string, preload []string) error {
	_, err := m.Warm(ctx, language, preload)
	return err
}

// Warm is Start, and says which modules of preload could not be imported.
func (m *Machine) Warm(ctx context.Context, language string, preload []string) (missing []string, err error) {
	res, err := m.Agent.Kernel(ctx, protocol.Kernel{Kernel: language, Language: language, Action: "start", Preload: preload})
	if err != nil {
		return nil, fmt.Errorf("start the %s interpreter: %w", language, err)
	}
	return res.Missing, nil
}

// Prove has the interpreter of a language run an empty cell, which leaves no
// trace in it.
func (m *Machine) Prove(ctx context.Context, language string, timeout time.Duration) error {
	res, err := m.Agent.Run(ctx, protocol.Run{Kernel: language, Language: language, TimeoutMS: timeout.Milliseconds(), Capture: protocol.Capture{Head: 4096}}, nil, discard{})
	switch {
	case err != nil:
		return fmt.Errorf("prove the %s interpreter: %w", language, err)
	case !res.OK || res.Lost != "" || res.Stopped != "":
		return fmt.Errorf("prove the %s interpreter: an empty cell failed (stopped %q, lost %q)", language, res.Stopped, res.Lost)
	}
	return nil
}

type discard struct{}

func (discard) Output(protocol.Channel, []byte) {}
func (discard) Display(protocol.Display)        {}

// Pause stops everything in the machine; see engine.Pauser.
func (m *Machine) Pause(ctx context.Context) error {
	p, err := ability[engine.Pauser](m, "pause")
	if err != nil {
		return err
	}
	return p.Pause(ctx, m.ID)
}

// Resume lets a paused machine run again.
func (m *Machine) Resume(ctx context.Context) error {
	p, err := ability[engine.Pauser](m, "resume")
	if err != nil {
		return err
	}
	return p.Resume(ctx, m.ID)
}

// Stats returns the machine's resource usage; see engine.Statser.
func (m *Machine) Stats(ctx context.Context) (engine.Stats, error) {
	s, err := ability[engine.Statser](m, "measure")
	if err != nil {
		return engine.Stats{}, err
	}
	return s.Stats(ctx, m.ID)
}

// ability returns an ability of the machine's engine, or ErrUnsupported.
func ability[T any](m *Machine, verb string) (T, error) {
	t, ok := engine.As[T](m.engine)
	if !ok {
		return t, fmt.Errorf("%s machine %q: the engine is not able to: %w", verb, m.ID, engine.ErrUnsupported)
	}
	return t, nil
}

// Close ends the machine and frees what it holds on the host. ctx bounds the
// waiting. It may be called again.
func (m *Machine) Close(ctx context.Context) error {
	if m.Agent != nil {
		m.Agent.Close() // its error says that the guest is gone already
	}
	if err := m.Guest.Destroy(ctx); err != nil {
		return fmt.Errorf("close machine %q: %w", m.ID, err)
	}
	return nil
}
