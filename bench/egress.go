//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// egressScenario measures one client program, peers/fetch.py, against one server on
// loopback: in a box through the egress, on the host, and in a container of podman.
func egressScenario(ctx context.Context, b *bench) error {
	if !b.offers(ctx, "--egress-pin", "serve") {
		b.add(
			report.Absent("egress.requests", "requests of a box, plain connect", notOffered),
			report.Absent("egress.bytes", "download of a box, plain connect", notOffered),
			report.Absent("egress.pip", "pip install of a wheel in a box", notOffered),
		)
		return nil
	}
	source, err := os.ReadFile(filepath.Join(b.here, "peers", "fetch.py"))
	if err != nil {
		return err
	}
	script := string(source)
	server, err := serveOutside()
	if err != nil {
		return err
	}
	defer server.close()
	s, err := b.servePlain(ctx, plain, server.settings()...)
	if err != nil {
		return err
	}
	defer s.stop()
	_, id, _, err := s.create(ctx, "egress")
	if err != nil {
		return err
	}
	if _, err := s.run(ctx, id, script, ""); err != nil {
		return err
	}
	box := func(ctx context.Context, call string) (float64, error) {
		text, err := s.eval(ctx, id, "print("+call+")")
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(text, 64)
	}
	host := func(ctx context.Context, call string) (float64, error) {
		return printed(ctx, append(os.Environ(), "no_proxy=*"), b.python, "-c", script+"\nprint("+call+")")
	}
	container := func(ctx context.Context, call string) (float64, error) {
		return b.peers.inPodman(ctx, script+"\nprint("+call+")")
	}
	seconds := b.pause(500*time.Millisecond, 200*time.Millisecond).Seconds()
	for _, kind := range []struct{ id, name, unit, function string }{
		{"requests", "requests", "requests/s", "requests"},
		{"bytes", "download", "MB/s", "megabytes"},
	} {
		call := func(at string, port, proxied int) string {
			return fmt.Sprintf("%s(%s, %d, %v, %d)", kind.function, at, port, seconds, proxied)
		}
		onHost := &peer{id: "peer.host." + kind.id, name: kind.name + ", the same client on the host", rate: kind.unit, once: func(ctx context.Context) (float64, error) {
			return host(ctx, call(`"127.0.0.1"`, server.port, 0))
		}}
		inPodman := &peer{id: "peer.podman." + kind.id, name: kind.name + ", podman with slirp4netns or pasta", rate: kind.unit, once: func(ctx context.Context) (float64, error) {
			return container(ctx, call("gateway()", server.port, 0))
		}}
		beside := alternately(ctx, onHost, inPodman)
		var direct, proxied []float64
		for range b.n(20, 3) {
			for i, samples := range []*[]float64{&direct, &proxied} {
				x, err := box(ctx, call(strconv.Quote(outsideHost), 80, i))
				if err != nil {
					return err
				}
				*samples = append(*samples, x)
			}
			beside.take(ctx)
		}
		rate := func(suffix, way string, samples []float64, peer *peer) report.Figure {
			return report.Measured("egress."+kind.id+suffix, kind.name+" of a box, "+way, kind.unit, samples...).MoreIsBetter().Against(beside.of(peer))
		}
		b.add(
			rate("", "plain connect", direct, onHost),
			rate(".podman", "plain connect, beside podman", direct, inPodman),
			rate(".proxy", "HTTP proxy", proxied, onHost),
			beside.of(onHost), beside.of(inPodman),
		)
	}
	install := func(at string) string {
		name, _, _ := strings.Cut(at, ":")
		return fmt.Sprintf("install(%q, %q)", "http://"+at+"/simple", name)
	}
	onHost := &peer{id: "peer.host.pip", name: "pip install of a wheel on the host", once: func(ctx context.Context) (float64, error) {
		return host(ctx, install(fmt.Sprintf("127.0.0.1:%d", server.port)))
	}}
	beside := alternately(ctx, onHost)
	if onHost.why != "" { // a box has the host's pip
		b.add(report.Absent("egress.pip", "pip install of a wheel in a box", onHost.why), beside.of(onHost))
		return s.end(ctx, id)
	}
	var installed []float64
	for i := range b.n(10, 2) + 1 {
		took, err := box(ctx, install(outsideHost))
		if err != nil {
			return err
		}
		if i == 0 { // fills caches, as the peer's first sample
			continue
		}
		installed = append(installed, took)
		beside.take(ctx)
	}
	b.add(report.Measured("egress.pip", "pip install of a wheel in a box", "ms", installed...).Against(beside.of(onHost)), beside.of(onHost))
	return s.end(ctx, id)
}
