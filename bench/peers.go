//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// peer is a program that Glovebox is compared with. Scenarios sample it alternately with
// ours; its own row uses all samples.
type peer struct {
	id, name string
	once     func(context.Context) (float64, error) // one sample
	rate     string                                 // unit of samples that are better when larger; if empty, they are milliseconds
	samples  []float64
	why      string // it cannot run here
}

// sample takes one sample and reports whether there is one. A peer that failed once is not
// sampled again.
func (p *peer) sample(ctx context.Context) (float64, bool) {
	if p.why != "" {
		return 0, false
	}
	x, err := p.once(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.why = "cannot run here: " + err.Error()
		}
		return 0, false
	}
	p.samples = append(p.samples, x)
	return x, true
}

// figure returns the peer's row for the samples.
func (p *peer) figure(samples []float64) report.Figure {
	if p.why != "" {
		return report.Absent(p.id, p.name, p.why).As(report.Peer)
	}
	if p.rate != "" {
		return report.Measured(p.id, p.name, p.rate, samples...).MoreIsBetter().As(report.Peer)
	}
	return report.Measured(p.id, p.name, "ms", samples...).As(report.Peer)
}

// alternation collects samples of peers, taken alternately with ours.
type alternation struct {
	peers   []*peer
	samples map[*peer][]float64
}

// alternately samples each peer once and discards the sample: files are then cached and
// long-lived peers run.
func alternately(ctx context.Context, peers ...*peer) *alternation {
	for _, p := range peers {
		if _, ok := p.sample(ctx); ok {
			p.samples = p.samples[:len(p.samples)-1]
		}
	}
	return &alternation{peers, make(map[*peer][]float64)}
}

// take samples each peer.
func (a *alternation) take(ctx context.Context) {
	for _, p := range a.peers {
		if x, ok := p.sample(ctx); ok {
			a.samples[p] = append(a.samples[p], x)
		}
	}
}

// of returns the figure of a peer for the samples taken here.
func (a *alternation) of(p *peer) report.Figure { return p.figure(a.samples[p]) }

// peers holds all peers.
type peers struct {
	b                                 *bench
	python, nodeStart, pandas         *peer // bare processes of the host
	podman, srt                       *peer // isolation for one command
	pyodide, pyodidePandas, pyodideUp *peer
	jupyter, jupyterUp                *peer
	live                              map[*peer]*dialogue
	container                         *podman
}

func newPeers(b *bench) peers {
	p := peers{b: b, live: make(map[*peer]*dialogue)}
	command := func(id, name, want string, argv func() []string) *peer {
		return &peer{id: id, name: name, once: func(ctx context.Context) (float64, error) { return timed(ctx, want, nil, argv()...) }}
	}
	host := func(id, name string, argv ...string) *peer {
		return command(id, name, "", func() []string { return argv })
	}
	p.python = host("peer.python", "python3 -c 1, on the host", b.python, "-c", "1")
	p.nodeStart = host("peer.node", "node -e 1, on the host", "node", "-e", "1")
	p.pandas = host("peer.pandas", "python3 -c 'import pandas', on the host", b.python, "-c", "import pandas")
	p.podman = &peer{id: "peer.podman", name: "podman run --rm, python3 -c 'print(1)'", once: p.runPodman}
	p.srt = command("peer.srt", "sandbox-runtime, python3 -c 'print(1)'", "1", func() []string {
		return []string{p.node(), p.module("@anthropic-ai/sandbox-runtime", "dist/cli.js"), "--", b.python, "-c", "print(1)"}
	})
	script := filepath.Join(b.here, "peers", "pyodide.mjs")
	p.pyodide = command("peer.pyodide", "Pyodide in Node, load and print(1)", "1", func() []string {
		return []string{p.node(), script, "once", "print(1)"}
	})
	p.pyodidePandas = command("peer.pyodide.pandas", "Pyodide in Node, load and import pandas", "1", func() []string {
		return []string{p.node(), script, "once", "import pandas; print(1)"}
	})
	p.pyodideUp = p.talk("peer.pyodide.warm", "Pyodide in Node, loaded, print(1)", "run print(1)", func() []string { return []string{p.node(), script} })
	kernel := func() []string { return p.kernel() }
	p.jupyter = p.talk("peer.jupyter", "Jupyter kernel, start and print(1)", "start", kernel)
	p.jupyterUp = p.talk("peer.jupyter.warm", "Jupyter kernel, started, print(1)", "run print(1)", kernel)
	return p
}

// all lists the peers in the order of their rows.
func (p *peers) all() []*peer {
	return []*peer{p.python, p.nodeStart, p.pandas, p.podman, p.srt, p.pyodide, p.pyodidePandas, p.pyodideUp, p.jupyter, p.jupyterUp}
}

// figures returns the rows of the sampled peers.
func (p *peers) figures() []report.Figure {
	var figures []report.Figure
	for _, one := range p.all() {
		if len(one.samples) > 0 || one.why != "" {
			figures = append(figures, one.figure(one.samples))
		}
	}
	return figures
}

// talk is a peer whose process lives until close.
func (p *peers) talk(id, name, request string, argv func() []string) *peer {
	one := &peer{id: id, name: name}
	one.once = func(ctx context.Context) (float64, error) {
		d := p.live[one]
		if d == nil {
			var err error
			if d, err = converse(ctx, argv()...); err != nil {
				return 0, err
			}
			p.live[one] = d
		}
		took, err := d.ask(request)
		if err != nil {
			delete(p.live, one)
		}
		return took, err
	}
	return one
}

// close ends the long-lived peers.
func (p *peers) close() {
	for one, d := range p.live {
		d.close()
		delete(p.live, one)
	}
}

// kernel returns the command of a Jupyter kernel with its client.
func (p *peers) kernel() []string {
	return []string{p.b.python, filepath.Join(p.b.here, "peers", "jupyter.py")}
}

// module returns the path of a file in an installed npm package.
func (p *peers) module(name, file string) string {
	return filepath.Join(p.b.here, "peers", "node_modules", name, file)
}

// node returns the Node.js for npm peers: the pinned one, because sandbox-runtime needs a
// newer one than Debian's, or else the host's.
func (p *peers) node() string {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	pinned := p.module("node-linux-"+arch, "bin/node")
	if _, err := os.Stat(pinned); err == nil {
		return pinned
	}
	return "node"
}

// peersScenario samples every peer, including those of no other scenario.
func peersScenario(ctx context.Context, b *bench) error {
	for _, p := range b.peers.all() {
		b.logf("peers: %s", p.name)
		for range b.n(5, 2) {
			if _, ok := p.sample(ctx); !ok {
				break
			}
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
