package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
)

var mutants = slices.Concat(infoMutants, createMutants, leakMutants, endMutants, streamMutants, claimMutants, abilityMutants, recoverMutants, knownMutants)

var infoMutants = []mutant{
	{name: "info changes", caught: []string{"contract/info-is-constant"},
		wrong: func(e engine.Engine) engine.Engine {
			n := 0
			return info(func(i *engine.Info) { n++; i.Version = fmt.Sprint(n) })(e)
		}},
	{name: "info shares its limits", caught: []string{"contract/info-is-constant"},
		wrong: func(e engine.Engine) engine.Engine {
			limits := e.Info().Limits
			return info(func(i *engine.Info) { i.Limits = limits })(e)
		}},
	{name: "soft limit without a reason", caught: []string{"contract/info-is-complete"},
		wrong: info(func(i *engine.Info) { i.Limits[0].Why = "" })},
	{name: "unknown isolation", caught: []string{"contract/info-is-complete"},
		wrong: info(func(i *engine.Info) { i.Isolation = "strong" })},
}

var createMutants = []mutant{
	{name: "guest with another id", caught: []string{"contract/guest-has-its-id"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			return &badGuest{Guest: g, id: func() string { return "x" + g.ID() }}
		})},
	{name: "taken id replaces the guest", caught: []string{"lifecycle/exists-leaves-the-first-unharmed", "lifecycle/one-of-many-creates-of-an-id-wins"},
		wrong: byID(func(first engine.Guest, good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			if first != nil {
				first.Destroy(ctx)
			}
			return good(ctx, id, spec)
		})},
	{name: "taken id gives the guest there is", caught: []string{"lifecycle/exists-leaves-the-first-unharmed", "lifecycle/one-of-many-creates-of-an-id-wins"},
		wrong: byID(func(first engine.Guest, good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			if first != nil {
				return first, nil
			}
			return good(ctx, id, spec)
		})},
	{name: "id is used once", caught: []string{"lifecycle/id-is-free-after-destroy", "lifecycle/id-is-free-after-the-agent-has-ended"},
		wrong: byID(func(first engine.Guest, good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			if first != nil {
				return nil, engine.ErrExists
			}
			return good(ctx, id, spec)
		})},
	{name: "ids are made valid", caught: []string{"lifecycle/invalid-id-upper-case", "lifecycle/invalid-id-slash", "lifecycle/invalid-id-not-ascii"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			return good(ctx, strings.Map(func(r rune) rune {
				if r < 'a' || r > 'z' {
					return '-'
				}
				return r
			}, id), spec)
		})},
	{name: "specs are made valid", caught: []string{"lifecycle/invalid-spec-nil", "lifecycle/invalid-root-missing", "lifecycle/invalid-limit-of-memory-negative", "lifecycle/invalid-mount-at-unclean-path"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			var s engine.Spec
			if spec != nil {
				s = *spec
			} else {
				s.Agent = engine.Program{Path: "/bin/cat", Args: []string{"cat"}}
			}
			s.Root, s.Limits, s.Mounts = engine.Root{Key: "x", Tree: &engine.Tree{Dir: "/"}}, engine.Limits{}, nil
			return good(ctx, id, &s)
		})},
	{name: "errors say too much", caught: []string{"lifecycle/invalid-spec-nil", "lifecycle/exists-leaves-the-first-unharmed"},
		wrong: errorsOfCreate(func(err error) error { return fmt.Errorf("%w: %w", err, engine.ErrUnavailable) })},
	{name: "errors are text", caught: []string{"lifecycle/invalid-spec-nil", "lifecycle/create-with-ended-context-is-its-cause", "lifecycle/close-destroys-all-guests"},
		wrong: errorsOfCreate(func(err error) error { return errors.New(err.Error()) })},
	{name: "create does not look at its context", caught: []string{"lifecycle/create-with-ended-context-is-its-cause"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			return good(context.WithoutCancel(ctx), id, spec)
		})},
	{name: "create forgets the cause", caught: []string{"lifecycle/create-with-ended-context-is-its-cause"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			g, err := good(ctx, id, spec)
			if err != nil && ctx.Err() != nil {
				err = ctx.Err()
			}
			return g, err
		})},
	{name: "cancelled create leaves the guest", caught: []string{"lifecycle/cancelled-create-leaves-nothing"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			g, err := good(context.WithoutCancel(ctx), id, spec)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return g, err
		})},
	{name: "context of create binds the guest", caught: []string{"lifecycle/create-context-does-not-bind-the-guest"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			g, err := good(ctx, id, spec)
			if err == nil {
				context.AfterFunc(ctx, func() { g.Destroy(context.Background()) })
			}
			return g, err
		})},
	{name: "context of dial binds the stream", caught: []string{"lifecycle/create-context-does-not-bind-the-guest"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
				conn, err := g.Dial(ctx)
				if err == nil {
					context.AfterFunc(ctx, func() { conn.Close() })
				}
				return conn, err
			}}
		})},
	{name: "guest boots when it is dialled", caught: []string{"lifecycle/spec-is-not-kept"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			g, err := good(ctx, id, spec)
			if err != nil {
				return nil, err
			}
			return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
				if len(spec.Agent.Args) == 0 {
					return nil, engine.ErrInvalid
				}
				return g.Dial(ctx)
			}}, nil
		})},
	{name: "create waits for the agent to speak", caught: []string{"hostile/agent-that-does-not-read-holds-nobody-up"},
		wrong: create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			g, err := good(ctx, id, spec)
			if err == nil && slices.Contains(spec.Agent.Args, "silent") {
				conn, _ := g.Dial(ctx)
				conn.Read(make([]byte, 1))
			}
			return g, err
		})},
}

// byID is create with the guest that was last made with the id, nil if none was.
func byID(f func(first engine.Guest, good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error)) func(engine.Engine) engine.Engine {
	var mu sync.Mutex
	made := make(map[string]engine.Guest)
	return create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
		mu.Lock()
		defer mu.Unlock()
		g, err := f(made[id], good, ctx, id, spec)
		if err == nil {
			made[id] = g
		}
		return g, err
	})
}

func errorsOfCreate(f func(error) error) func(engine.Engine) engine.Engine {
	return create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
		g, err := good(ctx, id, spec)
		if err != nil {
			return nil, f(err)
		}
		return g, nil
	})
}

// leaked keeps what is leaked from being collected.
var leaked []any

var leakMutants = []mutant{
	{name: "leaks a process", caught: []string{"lifecycle/created-guest-answers", "lifecycle/destroy-frees-everything-before-it-returns"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			cmd := exec.Command("sleep", "60")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
			cmd.Start()
			return g
		})},
	{name: "leaks a zombie", caught: []string{"lifecycle/created-guest-answers"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			exec.Command("true").Start()
			return g
		})},
	{name: "leaks a file", caught: []string{"lifecycle/created-guest-answers", "lifecycle/destroy-frees-everything-before-it-returns"},
		wrong: func(e engine.Engine) engine.Engine {
			return guests(func(g engine.Guest) engine.Guest {
				os.WriteFile(e.(*process.Engine).Home("state-of-"+g.ID()), nil, 0o600)
				return g
			})(e)
		}},
	{name: "leaks a descriptor", caught: []string{"lifecycle/destroy-may-be-repeated"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			f, _ := os.Open("/dev/null")
			leaked = append(leaked, f)
			return g
		})},
	{name: "leaks a goroutine", caught: []string{"lifecycle/destroy-may-be-repeated"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			go func() { <-make(chan int) }()
			return g
		})},
	{name: "leaks when create fails", caught: []string{"lifecycle/invalid-root-missing", "lifecycle/invalid-id-empty", "lifecycle/create-with-ended-context-is-its-cause"},
		wrong: errorsOfCreate(func(err error) error {
			f, _ := os.Open("/dev/null")
			leaked = append(leaked, f)
			return err
		})},
	{name: "does not know what the agent has started", caught: []string{"lifecycle/destroy-frees-everything-before-it-returns", "lifecycle/destroy-ends-processes-that-hide"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			return &badGuest{Guest: g, destroy: func(ctx context.Context) error {
				process.Forget(g)
				return g.Destroy(ctx)
			}}
		})},
}

var endMutants = []mutant{
	{name: "destroy returns early", caught: []string{"lifecycle/destroy-frees-everything-before-it-returns", "lifecycle/destroy-may-be-called-at-once"},
		wrong: destroys(func(g engine.Guest, ctx context.Context) error {
			go func() {
				time.Sleep(100 * time.Millisecond)
				g.Destroy(context.WithoutCancel(ctx))
			}()
			return nil
		})},
	{name: "destroy cannot be repeated", caught: []string{"lifecycle/destroy-may-be-repeated", "lifecycle/exit-stays-what-it-was-after-destroy"},
		wrong: destroys(func(g engine.Guest, ctx context.Context) error {
			if _, err := g.Wait(canceled); err == nil {
				return engine.ErrGone
			}
			return g.Destroy(ctx)
		})},
	{name: "only the first destroy waits", caught: []string{"lifecycle/destroy-may-be-called-at-once"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			var once sync.Once
			return &badGuest{Guest: g, destroy: func(ctx context.Context) (err error) {
				first := make(chan struct{})
				go once.Do(func() { close(first); time.Sleep(300 * time.Millisecond); err = g.Destroy(ctx) })
				select {
				case <-first:
					_, err := g.Wait(ctx)
					return err
				case <-time.After(time.Millisecond):
					return nil
				}
			}}
		})},
	{name: "context of destroy bounds the destruction", caught: []string{"lifecycle/destroy-context-bounds-the-waiting-only"},
		wrong: destroys(func(g engine.Guest, ctx context.Context) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return g.Destroy(ctx)
		})},
	{name: "dial after destroy succeeds", caught: []string{"lifecycle/dial-after-destroy-is-gone", "lifecycle/exit-of-the-agent-is-reported"},
		wrong: dials(func(g engine.Guest, ctx context.Context) (io.ReadWriteCloser, error) {
			conn, err := g.Dial(ctx)
			if errors.Is(err, engine.ErrGone) {
				return nop{}, nil
			}
			return conn, err
		})},
	{name: "dial after destroy is another error", caught: []string{"lifecycle/dial-after-destroy-is-gone"},
		wrong: dials(func(g engine.Guest, ctx context.Context) (io.ReadWriteCloser, error) {
			conn, err := g.Dial(ctx)
			if errors.Is(err, engine.ErrGone) {
				err = os.ErrClosed
			}
			return conn, err
		})},
	{name: "wait does not end with its context", caught: []string{"lifecycle/wait-ends-with-its-context"},
		wrong: waits(func(g engine.Guest, ctx context.Context) (engine.Exit, error) {
			return g.Wait(context.WithoutCancel(ctx))
		})},
	{name: "wait forgets the cause", caught: []string{"lifecycle/wait-ends-with-its-context"},
		wrong: waits(func(g engine.Guest, ctx context.Context) (engine.Exit, error) {
			exit, err := g.Wait(ctx)
			if err != nil {
				err = ctx.Err()
			}
			return exit, err
		})},
	{name: "only the first waiter is told the code", caught: []string{"lifecycle/wait-gives-all-the-same-answer"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			var once sync.Once
			return &badGuest{Guest: g, wait: func(ctx context.Context) (engine.Exit, error) {
				exit, err := g.Wait(ctx)
				told := false
				once.Do(func() { told = true })
				if !told {
					exit.Code = 0
				}
				return exit, err
			}}
		})},
	{name: "code of the agent is lost", caught: []string{"lifecycle/exit-of-the-agent-is-reported", "hostile/agent-returns-while-creating"},
		wrong: exits(func(e *engine.Exit) { e.Code = 0 })},
	{name: "destroyed guest has crashed", caught: []string{"lifecycle/created-guest-answers", "lifecycle/destroy-while-busy", "lifecycle/close-destroys-all-guests"},
		wrong: exits(func(e *engine.Exit) {
			if e.Reason == engine.ExitDestroyed {
				e.Reason = engine.ExitCrashed
			}
		})},
	{name: "death of the agent is an end like any other", caught: []string{"lifecycle/death-of-the-agent-is-reported"},
		wrong: exits(func(e *engine.Exit) {
			if e.Code > 128 {
				e.Code = 0
			}
		})},
	{name: "destroy changes the exit", caught: []string{"lifecycle/exit-stays-what-it-was-after-destroy"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			destroyed := false
			return &badGuest{Guest: g,
				destroy: func(ctx context.Context) error { destroyed = true; return g.Destroy(ctx) },
				wait: func(ctx context.Context) (engine.Exit, error) {
					exit, err := g.Wait(ctx)
					if destroyed {
						exit = engine.Exit{Reason: engine.ExitDestroyed}
					}
					return exit, err
				}}
		})},
	{name: "close leaves the guests", caught: []string{"lifecycle/close-destroys-all-guests"},
		wrong: func(e engine.Engine) engine.Engine { return &badEngine{Engine: e, close: func() error { return nil }} }},
	{name: "close does not wait", caught: []string{"lifecycle/close-destroys-all-guests"},
		wrong: func(e engine.Engine) engine.Engine {
			return &badEngine{Engine: e, close: func() error {
				go func() {
					time.Sleep(10 * time.Second)
					e.Close()
				}()
				return nil
			}}
		}},
	{name: "close cannot be repeated", caught: []string{"lifecycle/close-destroys-all-guests"},
		wrong: func(e engine.Engine) engine.Engine {
			closed := false
			return &badEngine{Engine: e, close: func() error {
				if closed {
					return engine.ErrGone
				}
				closed = true
				return e.Close()
			}}
		}},
	{name: "create after close is unavailable", caught: []string{"lifecycle/close-destroys-all-guests"},
		wrong: errorsOfCreate(func(err error) error {
			if errors.Is(err, engine.ErrGone) {
				return engine.ErrUnavailable
			}
			return err
		})},
}

// canceled is a context that has ended.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// nop is a stream without a peer.
type nop struct{}

func (nop) Read([]byte) (int, error)    { return 0, io.EOF }
func (nop) Write(p []byte) (int, error) { return len(p), nil }
func (nop) Close() error                { return nil }

func destroys(f func(g engine.Guest, ctx context.Context) error) func(engine.Engine) engine.Engine {
	return guests(func(g engine.Guest) engine.Guest {
		return &badGuest{Guest: g, destroy: func(ctx context.Context) error { return f(g, ctx) }}
	})
}

func dials(f func(g engine.Guest, ctx context.Context) (io.ReadWriteCloser, error)) func(engine.Engine) engine.Engine {
	return guests(func(g engine.Guest) engine.Guest {
		return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) { return f(g, ctx) }}
	})
}

func waits(f func(g engine.Guest, ctx context.Context) (engine.Exit, error)) func(engine.Engine) engine.Engine {
	return guests(func(g engine.Guest) engine.Guest {
		return &badGuest{Guest: g, wait: func(ctx context.Context) (engine.Exit, error) { return f(g, ctx) }}
	})
}

func exits(f func(e *engine.Exit)) func(engine.Engine) engine.Engine {
	return waits(func(g engine.Guest, ctx context.Context) (engine.Exit, error) {
		exit, err := g.Wait(ctx)
		f(&exit)
		return exit, err
	})
}

// badStream replaces methods of a stream.
type badStream struct {
	io.ReadWriteCloser
	read  func(p []byte) (int, error)
	close func() error
}

func (b *badStream) Read(p []byte) (int, error) {
	if b.read != nil {
		return b.read(p)
	}
	return b.ReadWriteCloser.Read(p)
}

func (b *badStream) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.ReadWriteCloser.Close()
}

var streamMutants = []mutant{
	{name: "dial does not supersede", caught: []string{"stream/dial-supersedes", "stream/dial-supersedes-a-link", "stream/dials-at-once-leave-one"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			var mu sync.Mutex
			var shared io.ReadWriteCloser
			return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
				mu.Lock()
				defer mu.Unlock()
				if shared == nil {
					shared, _ = g.Dial(ctx)
				}
				return &badStream{ReadWriteCloser: shared, close: func() error { return nil }}, nil
			}}
		})},
	{name: "dial refuses while a stream is open", caught: []string{"stream/dial-supersedes", "stream/dials-at-once-leave-one"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			var mu sync.Mutex
			open := false
			return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
				mu.Lock()
				defer mu.Unlock()
				if open {
					return nil, engine.ErrUnavailable
				}
				conn, err := g.Dial(ctx)
				open = err == nil
				return &badStream{ReadWriteCloser: conn, close: func() error {
					mu.Lock()
					defer mu.Unlock()
					open = false
					return conn.Close()
				}}, err
			}}
		})},
	{name: "dial does not look at its context", caught: []string{"stream/dial-with-ended-context-is-its-cause"},
		wrong: dials(func(g engine.Guest, ctx context.Context) (io.ReadWriteCloser, error) {
			return g.Dial(context.WithoutCancel(ctx))
		})},
	{name: "close of the stream ends the guest", caught: []string{"stream/close-leaves-the-guest", "stream/link-resumes-on-a-new-stream"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			return &badGuest{Guest: g, dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
				conn, err := g.Dial(ctx)
				if err != nil {
					return nil, err
				}
				return &badStream{ReadWriteCloser: conn, close: func() error { return g.Destroy(context.Background()) }}, nil
			}}
		})},
	{name: "close does nothing", caught: []string{"stream/close-leaves-the-guest", "stream/close-unblocks-its-calls"},
		wrong: streams(func(conn io.ReadWriteCloser) io.ReadWriteCloser {
			return &badStream{ReadWriteCloser: conn, close: func() error { return nil }}
		})},
	{name: "stream is text", caught: []string{"stream/bytes-arrive-as-they-were"},
		wrong: streams(func(conn io.ReadWriteCloser) io.ReadWriteCloser {
			return &badStream{ReadWriteCloser: conn, read: func(p []byte) (int, error) {
				n, err := conn.Read(p)
				for i := range p[:n] {
					if p[i] == '\r' {
						p[i] = '\n'
					}
				}
				return n, err
			}}
		})},
	{name: "stream loses bytes when it is slow", caught: []string{"stream/bytes-arrive-as-they-were", "stream/every-byte-through-a-command"},
		wrong: streams(func(conn io.ReadWriteCloser) io.ReadWriteCloser {
			return &badStream{ReadWriteCloser: conn, read: func(p []byte) (int, error) {
				n, err := conn.Read(p)
				if n > 4096 {
					n--
				}
				return n, err
			}}
		})},
	{name: "stream is read ahead without bound", caught: []string{"stream/unread-stream-holds-the-guest-up"},
		wrong: streams(readAhead)},
}

// readAhead reads all that there is into memory.
func readAhead(conn io.ReadWriteCloser) io.ReadWriteCloser {
	var mu sync.Mutex
	var all bytes.Buffer
	var end error
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := conn.Read(b)
			mu.Lock()
			all.Write(b[:n])
			end = err
			mu.Unlock()
			if err != nil || all.Len() > 256<<20 {
				return
			}
		}
	}()
	return &badStream{ReadWriteCloser: conn, read: func(p []byte) (int, error) {
		for {
			mu.Lock()
			n, _ := all.Read(p)
			err := end
			mu.Unlock()
			if n > 0 || err != nil {
				return n, err
			}
			time.Sleep(time.Millisecond)
		}
	}}
}

// claimMutants claim to hold in what they do not.
var claimMutants = []mutant{
	{name: "claims to isolate", caught: []string{
		"isolation/user-sees-nothing-of-the-host", "isolation/agent-sees-nothing-of-the-host",
		"isolation/agent-reads-no-secrets-of-the-host",
		"isolation/user-reaches-no-network", "isolation/user-gets-no-answer-by-udp", "isolation/user-reaches-no-socket-of-the-host",
		"isolation/user-writes-nothing-of-the-host",
		"isolation/kernel-is-not-the-hosts", "isolation/hostname-is-the-specs",
		"isolation/guests-see-nothing-of-each-other", "isolation/guests-do-not-share-what-they-write",
		"isolation/guests-cannot-reach-each-other",
	}, wrong: info(func(i *engine.Info) { i.Isolation = engine.IsolationKernel })},
	{name: "claims to limit", caught: []string{"limits/processes-are-bounded", "limits/fork-bomb-is-bounded", "limits/disk-is-bounded", "limits/disk-is-bounded-for-the-agent-too"},
		wrong: info(func(i *engine.Info) {
			for _, r := range []string{"pids", "disk"} {
				i.Limits = append(i.Limits, engine.Limit{Resource: r, Hard: true, By: "words"})
			}
		})},
	// On a busy machine no process may get more than the limit, hence the factor.
	{name: "claims to limit processors", caught: []string{"limits/processors-are-bounded"},
		wrong: func(e engine.Engine) engine.Engine {
			return info(func(i *engine.Info) {
				i.Limits = append(i.Limits, engine.Limit{Resource: "cpu", Hard: true, By: "words"})
			})(stats(func(s *engine.Stats, err *error) { s.CPU *= 50 })(e))
		}},
	{name: "leaves out volumes", caught: []string{"volumes/guest-reads-what-the-host-wrote", "volumes/host-reads-what-the-guest-wrote", "volumes/file-can-be-a-volume"},
		wrong: specs(func(s *engine.Spec) {
			if len(s.Mounts) > 0 && s.Mounts[0].Guest == "/mnt/volume" {
				s.Mounts = nil
			}
		})},
	{name: "does not limit memory", caught: []string{"limits/memory-of-a-process-is-bounded", "limits/memory-of-many-processes-is-bounded"},
		wrong: specs(func(s *engine.Spec) { s.Limits.MemoryMB = 0 })},
	{name: "limits memory to too little", caught: []string{"limits/within-the-memory-limit-nothing-happens"},
		wrong: specs(func(s *engine.Spec) { s.Limits.MemoryMB /= 4 })},
	{name: "too much memory is a crash", caught: []string{"limits/memory-of-a-process-is-bounded"},
		wrong: exits(func(e *engine.Exit) {
			if e.Reason == engine.ExitOOM {
				e.Reason = engine.ExitCrashed
			}
		})},
	{name: "agent of any kind is as good as any other", caught: []string{"hostile/agent-silent", "hostile/agent-garbage"},
		// A dial that tries again until the agent is there is one that never ends.
		wrong: dials(func(g engine.Guest, ctx context.Context) (io.ReadWriteCloser, error) {
			conn, err := g.Dial(ctx)
			if err == nil {
				time.Sleep(20 * time.Second)
			}
			return conn, err
		})},
}

func specs(f func(s *engine.Spec)) func(engine.Engine) engine.Engine {
	return create(func(good createFunc, ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
		if spec != nil {
			s := *spec
			f(&s)
			spec = &s
		}
		return good(ctx, id, spec)
	})
}

var abilityMutants = []mutant{
	{name: "pause does nothing", caught: []string{"pause/paused-guest-runs-nothing", "pause/streams-survive"},
		wrong: pauses(func(*pausing, context.Context, string) error { return nil }, nil)},
	{name: "pause stops the agent only", caught: []string{"pause/paused-guest-runs-nothing"},
		wrong: pauses(
			func(e *pausing, _ context.Context, id string) error {
				return process.SignalAgent(e.guest(id), unix.SIGSTOP)
			},
			func(e *pausing, _ context.Context, id string) error {
				return process.SignalAgent(e.guest(id), unix.SIGCONT)
			})},
	{name: "pause closes the stream", caught: []string{"pause/streams-survive", "pause/paused-guest-runs-nothing"},
		wrong: pauses(func(e *pausing, ctx context.Context, id string) error {
			if conn, err := e.guest(id).Dial(ctx); err == nil {
				conn.Close()
			}
			return e.Pauser.Pause(ctx, id)
		}, nil)},
	{name: "resume does nothing", caught: []string{"pause/streams-survive", "pause/pause-and-resume-may-be-repeated"},
		wrong: pauses(nil, func(*pausing, context.Context, string) error { return nil })},
	{name: "pause and resume count", caught: []string{"pause/pause-and-resume-may-be-repeated"},
		wrong: pauses(
			func(e *pausing, ctx context.Context, id string) error {
				e.add(id, 1)
				return e.Pauser.Pause(ctx, id)
			},
			func(e *pausing, ctx context.Context, id string) error {
				if e.add(id, -1) > 0 {
					return nil
				}
				return e.Pauser.Resume(ctx, id)
			})},
	{name: "resume of a running guest fails", caught: []string{"pause/pause-and-resume-may-be-repeated"},
		wrong: pauses(
			func(e *pausing, ctx context.Context, id string) error {
				e.set(id, 1)
				return e.Pauser.Pause(ctx, id)
			},
			func(e *pausing, ctx context.Context, id string) error {
				if e.set(id, 0) == 0 {
					return engine.ErrInvalid
				}
				return e.Pauser.Resume(ctx, id)
			})},
	{name: "paused guest cannot be destroyed", caught: []string{"pause/paused-guest-can-be-destroyed"},
		wrong: func(e engine.Engine) engine.Engine {
			p := newPausing(e)
			p.destroy = func(g engine.Guest, ctx context.Context) error {
				if p.set(g.ID(), 0) > 0 {
					return engine.ErrUnavailable
				}
				return g.Destroy(ctx)
			}
			return p.with(
				func(e *pausing, ctx context.Context, id string) error {
					e.set(id, 1)
					return e.Pauser.Pause(ctx, id)
				},
				func(e *pausing, ctx context.Context, id string) error {
					e.set(id, 0)
					return e.Pauser.Resume(ctx, id)
				})
		}},
	{name: "pause of what is gone is fine", caught: []string{"pause/pause-after-destroy-is-gone", "contract/abilities-of-unknown-guests-are-gone"},
		wrong: pauses(func(e *pausing, ctx context.Context, id string) error {
			if err := e.Pauser.Pause(ctx, id); !errors.Is(err, engine.ErrGone) {
				return err
			}
			return nil
		}, nil)},
	{name: "stats are empty", caught: []string{"stats/guest-uses-something", "stats/memory-is-counted", "stats/processor-time-is-counted"},
		wrong: stats(func(s *engine.Stats, err *error) { *s = engine.Stats{} })},
	{name: "stats are of the agent only", caught: []string{"stats/memory-is-counted", "stats/processor-time-is-counted"},
		wrong: stats(func(s *engine.Stats, err *error) {
			s.MemoryBytes, s.CPU = min(s.MemoryBytes, 8<<20), min(s.CPU, 10*time.Millisecond)
		})},
	{name: "memory is counted many times", caught: []string{"stats/memory-is-counted"},
		wrong: stats(func(s *engine.Stats, err *error) { s.MemoryBytes *= 16 })},
	{name: "stats of what is gone are empty", caught: []string{"stats/stats-after-destroy-are-gone", "contract/abilities-of-unknown-guests-are-gone"},
		wrong: stats(func(s *engine.Stats, err *error) { *err = nil })},
}

// pausing is an engine whose pauses a mutant replaces. It knows its guests and
// keeps a number for each.
type pausing struct {
	engine.Pauser
	bad     *badPauser
	destroy func(g engine.Guest, ctx context.Context) error // nil: as it is

	mu      sync.Mutex
	guests  map[string]engine.Guest
	numbers map[string]int
}

func newPausing(e engine.Engine) *pausing {
	p := &pausing{guests: make(map[string]engine.Guest), numbers: make(map[string]int)}
	p.Pauser, _ = engine.As[engine.Pauser](e)
	p.bad = &badPauser{
		badEngine: &badEngine{Engine: e, create: func(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
			g, err := e.Create(ctx, id, spec)
			if err != nil {
				return nil, err
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.guests[id] = g
			if p.destroy != nil {
				return &badGuest{Guest: g, destroy: func(ctx context.Context) error { return p.destroy(g, ctx) }}, nil
			}
			return g, nil
		}},
		pause: p.Pauser.Pause, resume: p.Pauser.Resume,
	}
	return p
}

// with replaces pausing and resuming; nil leaves one as it is.
func (p *pausing) with(pause, resume func(e *pausing, ctx context.Context, id string) error) engine.Engine {
	if pause != nil {
		p.bad.pause = func(ctx context.Context, id string) error { return pause(p, ctx, id) }
	}
	if resume != nil {
		p.bad.resume = func(ctx context.Context, id string) error { return resume(p, ctx, id) }
	}
	return p.bad
}

func (p *pausing) guest(id string) engine.Guest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.guests[id]
}

// add changes the number of a guest, not below 0, and returns it.
func (p *pausing) add(id string, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.numbers[id] = max(0, p.numbers[id]+n)
	return p.numbers[id]
}

// set replaces the number of a guest and returns the previous one.
func (p *pausing) set(id string, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	previous := p.numbers[id]
	p.numbers[id] = n
	return previous
}

// pauses is a mutation of pausing and resuming.
func pauses(pause, resume func(e *pausing, ctx context.Context, id string) error) func(engine.Engine) engine.Engine {
	return func(e engine.Engine) engine.Engine { return newPausing(e).with(pause, resume) }
}

func stats(f func(s *engine.Stats, err *error)) func(engine.Engine) engine.Engine {
	return func(e engine.Engine) engine.Engine {
		good, _ := engine.As[engine.Statser](e)
		return &badStatser{Engine: e, stats: func(ctx context.Context, id string) (engine.Stats, error) {
			s, err := good.Stats(ctx, id)
			f(&s, &err)
			return s, err
		}}
	}
}

var recoverMutants = []mutant{
	{name: "list forgets detached guests", caught: []string{"recover/detached-guest-outlives-its-engine"},
		wrong: recovers(func(b *badRecoverer) {
			b.list = func(ctx context.Context) ([]engine.GuestState, error) {
				states, err := b.Recoverer.List(ctx)
				return slices.DeleteFunc(states, func(s engine.GuestState) bool {
					_, err := b.Recoverer.State(ctx, s.ID)
					return err != nil
				}), err
			}
		})},
	{name: "list has the guests of other engines only", caught: []string{"recover/list-has-all-living-guests"},
		wrong: recovers(func(b *badRecoverer) {
			b.list = func(ctx context.Context) ([]engine.GuestState, error) {
				states, err := b.Recoverer.List(ctx)
				return slices.DeleteFunc(states, func(s engine.GuestState) bool {
					_, err := b.Recoverer.State(ctx, s.ID)
					return err == nil
				}), err
			}
		})},
	{name: "close destroys detached guests", caught: []string{"recover/detached-guest-outlives-its-engine", "recover/link-resumes-after-recover"},
		wrong: recovers(func(b *badRecoverer) {
			b.detach = func(ctx context.Context, id string) error {
				state, err := b.Recoverer.State(ctx, id)
				if err == nil {
					err = b.Recoverer.Detach(ctx, id)
				}
				if err == nil {
					_, err = b.Recoverer.Recover(ctx, state)
				}
				return err
			}
		})},
	{name: "detached guest stays its holder's", caught: []string{"recover/detached-guest-is-gone-for-its-holder"},
		wrong: recovers(func(b *badRecoverer) {
			b.detach = func(context.Context, string) error { return nil }
		})},
	{name: "recover accepts any version", caught: []string{"recover/recover-refuses-what-is-held-gone-or-malformed"},
		wrong: recovers(func(b *badRecoverer) {
			b.recoverGuest = func(ctx context.Context, state engine.GuestState) (engine.Guest, error) {
				state.Version = 1
				return b.Recoverer.Recover(ctx, state)
			}
		})},
	{name: "recovered guest has another id", caught: []string{"recover/detached-guest-outlives-its-engine"},
		wrong: recovers(func(b *badRecoverer) {
			b.recoverGuest = func(ctx context.Context, state engine.GuestState) (engine.Guest, error) {
				g, err := b.Recoverer.Recover(ctx, state)
				if err != nil {
					return nil, err
				}
				return &badGuest{Guest: g, id: func() string { return "x" + state.ID }}, nil
			}
		})},
	{name: "exit code of a recovered guest is lost", caught: []string{"recover/exit-of-a-recovered-guest-is-reported"},
		wrong: recovers(func(b *badRecoverer) {
			b.recoverGuest = func(ctx context.Context, state engine.GuestState) (engine.Guest, error) {
				g, err := b.Recoverer.Recover(ctx, state)
				if err != nil {
					return nil, err
				}
				return &badGuest{Guest: g, wait: func(ctx context.Context) (engine.Exit, error) {
					exit, err := g.Wait(ctx)
					exit.Code = 0
					return exit, err
				}}, nil
			}
		})},
	{name: "image is not unpacked", caught: []string{"lifecycle/image-is-unpacked", "lifecycle/image-that-cannot-be-unpacked"},
		wrong: specs(func(s *engine.Spec) {
			if s.Root.Image != nil {
				s.Root.Image, s.Root.Tree = nil, &engine.Tree{Dir: "/"}
			}
		})},
}

// recovers is a mutation of a Recoverer.
func recovers(change func(b *badRecoverer)) func(engine.Engine) engine.Engine {
	return func(e engine.Engine) engine.Engine {
		b := &badRecoverer{Engine: e}
		b.Recoverer, _ = engine.As[engine.Recoverer](e)
		change(b)
		return b
	}
}

// knownMutants are for TestSuite_KnownFailures.
var knownMutants = []mutant{
	{name: "known failure", known: map[string]string{"contract/guest-has-its-id": "for a reason"},
		wrong: guests(func(g engine.Guest) engine.Guest {
			return &badGuest{Guest: g, id: func() string { return "x" + g.ID() }}
		})},
	{name: "known failure that passes", known: map[string]string{"contract/guest-has-its-id": "for a reason"}, wrong: asItIs},
	{name: "known failure of no test", known: map[string]string{"no/test": "for a reason"}, wrong: asItIs},
}
