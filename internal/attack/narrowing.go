//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
)

// narrowingClass tries to get a box past the limit of its network, in boxes of real servers
// and, for all doors, against the gate.
func narrowingClass() class {
	return class{
		name: "narrowing", about: "A program in a box whose network is limited to less than the policy of its owner, and a client that tries to lift the limit.",
		attacks: []Attack{
			{Name: "every-door", Claim: "no door and no spelling leads to a host outside of a box's limit", run: everyDoor},
			{Name: "another-network", Claim: "no call with another network, or with none, widens a box that is there", run: onNarrow(anotherNetwork)},
			{Name: "fork", Claim: "a copy of a narrowed box is as narrow, and the copy of a wide box takes no narrowed one's place", run: onNarrow(forkNarrow)},
			{Name: "restore", Claim: "a box from a snapshot of a narrowed box is as narrow", run: onNarrow(restoreNarrow)},
			{Name: "rollback", Claim: "a snapshot of a wide box does not widen the narrowed box that is rolled back to it", run: onNarrow(rollBackNarrow)},
			{Name: "template", Claim: "a box of a narrow template is as narrow, whatever network its caller asks for", run: onNarrow(narrowTemplate)},
			{Name: "killed-server", Claim: "a narrowed box whose server was killed is as narrow when its id is used again", run: onNarrow(killedServer)},
		},
	}
}

const wideHost = "wide.example.org" // allowed by the policy, outside of the limits

// everyDoor attacks a box whose limit excludes a host that the policy allows and pins.
func everyDoor(ctx context.Context, t *trial) error {
	wide, err := newWebServer()
	if err != nil {
		return err
	}
	defer wide.close()
	at := fmt.Sprintf("%s:%d", wideHost, wide.port())
	pin, err := resolve.ParsePin(fmt.Sprintf("%s=127.0.0.1:%d", at, wide.port()))
	if err != nil {
		return err
	}
	r, err := t.net(egress.Options{Pins: []resolve.Pin{pin}}, at)
	if err != nil {
		return err
	}
	defer r.close()
	r.decoy.close()
	r.decoy = wide
	// A box without a limit shows that the host can be reached at all.
	if r.proxy(ctx, "GET http://"+at+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); len(wide.take()) == 0 {
		return errNoAnswer
	}
	if t.cfg.egress.network == nil {
		limit, err := policy.Parse([]string{goodHost}, nil)
		if err != nil {
			return err
		}
		r.network = r.gate.Open(egress.Box{Owner: "mallory", ID: "narrow-" + t.nonce}, policy.Layer{Name: egress.LayerBox, Policy: limit})
	}
	if err := r.works(ctx); err != nil {
		return err
	}
	for _, host := range []string{wideHost, strings.ToUpper(wideHost), wideHost + ".", goodHost + "@" + wideHost, "127.0.0.1"} {
		r.tryAll(ctx, host)
	}
	return nil
}

// narrowRig is a server whose policy allows two hosts, and boxes that are limited to one.
type narrowRig struct {
	t          *trial
	server     *server
	good, wide *webServer
	dir        string // HOME of the server
	args       []string
}

// onNarrow returns an attack on a server of its own.
func onNarrow(attack func(context.Context, *narrowRig) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) (err error) {
		r := &narrowRig{t: t}
		for _, w := range []**webServer{&r.good, &r.wide} {
			if *w, err = newWebServer(); err != nil {
				return err
			}
			defer (*w).close()
		}
		if r.dir, err = t.tempDir("narrowing"); err != nil {
			return err
		}
		defer os.RemoveAll(r.dir)
		for host, w := range map[string]*webServer{goodHost: r.good, wideHost: r.wide} {
			at := fmt.Sprintf("%s:%d", host, w.port())
			r.args = append(r.args, "--network", at, "--egress-pin", fmt.Sprintf("%s=127.0.0.1:%d", at, w.port()))
		}
		if err := r.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		// A box without a limit shows that the other host can be reached at all.
		if err := r.reach(ctx, "wide", wideHost, r.wide, nil); err != nil {
			return err
		}
		if err := r.reach(ctx, "narrow", goodHost, r.good, map[string]any{"network": r.limit()}); err != nil {
			return err
		}
		return attack(ctx, r)
	}
}

// start starts the server, unless the run has another target.
func (r *narrowRig) start(ctx context.Context) error {
	if at := r.t.cfg.target; at != "" {
		r.server = &server{addr: at}
		return nil
	}
	if r.t.cfg.Program == "" {
		return skip("the run has no program to start a server with")
	}
	if !r.t.cfg.Maker.Snapshots() {
		return skip("the engine has no snapshots")
	}
	r.server = &server{}
	return r.t.rig.server.launch(ctx, r.server, r.dir, r.args...)
}

func (r *narrowRig) stop() error {
	if r.server.cmd == nil {
		return nil
	}
	return r.server.stop()
}

// limit is what narrowed boxes may reach, as the argument network.
func (r *narrowRig) limit() []string { return []string{fmt.Sprintf("%s:%d", goodHost, r.good.port())} }

// all is what the policy allows.
func (r *narrowRig) all() []string {
	return append(r.limit(), fmt.Sprintf("%s:%d", wideHost, r.wide.port()))
}

// fetch asks a host over HTTP, as its arguments say: with the proxy of the environment, and
// on a connection to its name.
const fetch = `
import socket, sys, urllib.request
host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
try:
    print("proxy", urllib.request.urlopen("http://%s:%d/%s" % (host, port, path), timeout=5).status)
except OSError as e:
    print("proxy", e)
try:
    s = socket.create_connection((host, port), 5)
    s.sendall(b"GET /%s HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n" % (path.encode(), host.encode(), port))
    print("name", s.recv(100))
except OSError as e:
    print("name", e)
`

// ask has a program in a session ask a host, and reports whether anything arrived there.
// more are further arguments of the call.
func (r *narrowRig) ask(ctx context.Context, session, host string, w *webServer, more map[string]any) (arrived bool, answer string, err error) {
	path := session + "-" + newNonce()
	arguments := map[string]any{
		"session_id": session + "-" + r.t.nonce,
		"command":    fmt.Sprintf("python3 -IBc '%s' %s %d %s", fetch, host, w.port(), path),
	}
	for k, v := range more {
		arguments[k] = v
	}
	res, err := r.server.send(ctx, request{body: tool("execute_command", arguments)})
	return strings.Contains(strings.Join(w.take(), "\n"), path), res.body, err
}

// reach returns an error unless a session reaches a host.
func (r *narrowRig) reach(ctx context.Context, session, host string, w *webServer, more map[string]any) error {
	arrived, answer, err := r.ask(ctx, session, host, w, more)
	if err == nil && !arrived {
		err = fmt.Errorf("the session %s does not reach %s, so the attack shows nothing: %s", session, host, printable(answer))
	}
	return err
}

// narrow judges that a session reaches the host of its limit and no other.
func (r *narrowRig) narrow(ctx context.Context, session, how string) error {
	arrived, _, err := r.ask(ctx, session, wideHost, r.wide, nil)
	if err != nil {
		return err
	}
	r.t.check(!arrived, "%s: a program reached a host outside of its box's limit", how)
	return r.reach(ctx, session, goodHost, r.good, nil)
}

// call calls a tool, and reports whether it succeeded.
func (r *narrowRig) call(ctx context.Context, name string, arguments map[string]any) (ok bool, answer string, err error) {
	for _, key := range []string{"session_id", "new_session_id"} {
		if id, is := arguments[key].(string); is {
			arguments[key] = id + "-" + r.t.nonce
		}
	}
	res, err := r.server.send(ctx, request{body: tool(name, arguments)})
	failed := strings.Contains(res.body, `"isError":true`) || strings.Contains(res.body, `"error":{`)
	return err == nil && !failed, res.body, err
}

// must is call for what an honest client may do.
func (r *narrowRig) must(ctx context.Context, name string, arguments map[string]any) (answer string, err error) {
	ok, answer, err := r.call(ctx, name, arguments)
	if err == nil && !ok {
		err = fmt.Errorf("%s: %s", name, printable(answer))
	}
	return answer, err
}

var snapshotID = regexp.MustCompile(`"snapshot_id":\s*"([A-Za-z0-9-]+)"`)

// snapshot keeps the state of a session and returns the snapshot's id.
func (r *narrowRig) snapshot(ctx context.Context, session string) (string, error) {
	answer, err := r.must(ctx, "snapshot_session", map[string]any{"session_id": session})
	m := snapshotID.FindStringSubmatch(answer)
	if err == nil && m == nil {
		err = fmt.Errorf("no snapshot: %s", printable(answer))
	}
	if err != nil {
		return "", err
	}
	return m[1], nil
}

func anotherNetwork(ctx context.Context, r *narrowRig) error {
	for _, network := range [][]string{r.all(), r.all()[1:], {"*.example.org"}, {"0.0.0.0/0"}} {
		arrived, _, err := r.ask(ctx, "narrow", wideHost, r.wide, map[string]any{"network": network})
		if err != nil {
			return err
		}
		r.t.check(!arrived, "a call with the network %q widens the box", network)
	}
	return r.narrow(ctx, "narrow", "after calls with other networks")
}

func forkNarrow(ctx context.Context, r *narrowRig) error {
	if _, err := r.must(ctx, "fork_session", map[string]any{"session_id": "narrow", "new_session_id": "copy"}); err != nil {
		return err
	}
	if err := r.narrow(ctx, "copy", "a copy"); err != nil {
		return err
	}
	ok, _, err := r.call(ctx, "fork_session", map[string]any{"session_id": "wide", "new_session_id": "narrow"})
	if err != nil {
		return err
	}
	r.t.check(!ok, "the copy of a wide box took the place of a narrowed one")
	return r.narrow(ctx, "narrow", "after a copy in its place")
}

func restoreNarrow(ctx context.Context, r *narrowRig) error {
	id, err := r.snapshot(ctx, "narrow")
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, "restore_session", map[string]any{"snapshot_id": id, "session_id": "restored"}); err != nil {
		return err
	}
	return r.narrow(ctx, "restored", "a box from a snapshot")
}

func rollBackNarrow(ctx context.Context, r *narrowRig) error {
	id, err := r.snapshot(ctx, "wide")
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, "restore_session", map[string]any{"snapshot_id": id, "session_id": "narrow"}); err != nil {
		return err
	}
	if err := r.narrow(ctx, "narrow", "rolled back to a wide snapshot"); err != nil {
		return err
	}
	// The box keeps the limit when it is stored as it is now.
	if id, err = r.snapshot(ctx, "narrow"); err != nil {
		return err
	}
	if _, err := r.must(ctx, "restore_session", map[string]any{"snapshot_id": id, "session_id": "later"}); err != nil {
		return err
	}
	return r.narrow(ctx, "later", "restored after a rollback")
}

func narrowTemplate(ctx context.Context, r *narrowRig) error {
	if r.server.cmd != nil {
		args := []string{"template", "build", "narrow", "--run", "true", "--box-network", r.limit()[0]}
		if out, err := r.t.rig.server.program(ctx, r.dir, append(args, r.args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("build a template: %w: %s", err, printable(string(out)))
		}
	}
	template := map[string]any{"template": "narrow"}
	if err := r.reach(ctx, "made", goodHost, r.good, template); err != nil {
		return err
	}
	if err := r.narrow(ctx, "made", "a box of a narrow template"); err != nil {
		return err
	}
	for i, network := range [][]string{r.all(), r.all()[1:]} {
		arrived, _, err := r.ask(ctx, fmt.Sprintf("asks-%d", i), wideHost, r.wide, map[string]any{"template": "narrow", "network": network})
		if err != nil {
			return err
		}
		r.t.check(!arrived, "the network %q widens a new box of a narrow template", network)
	}
	return nil
}

func killedServer(ctx context.Context, r *narrowRig) error {
	if r.server.cmd != nil {
		if err := r.server.cmd.Process.Kill(); err != nil {
			return err
		}
		_ = r.server.cmd.Wait() // it was killed
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	return r.narrow(ctx, "narrow", "after the server was killed")
}
