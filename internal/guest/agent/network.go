package agent

import (
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/netdoor"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// networkFile tells programs, in one line, whether there is a network: "on", or "off"
// with a space and the host's text.
const networkFile = "network"

// proxies are the variables with which programs find the doors. There is none for the
// SOCKS door: Python's httpx fails at its start with ALL_PROXY if it lacks a package.
var proxies = []string{
	"HTTP_PROXY=http://" + netdoor.HTTP, "http_proxy=http://" + netdoor.HTTP,
	"HTTPS_PROXY=http://" + netdoor.HTTP, "https_proxy=http://" + netdoor.HTTP,
	"NO_PROXY=" + noProxy, "no_proxy=" + noProxy,
	"NODE_USE_ENV_PROXY=1",
}

const noProxy = "localhost,127.0.0.1,::1,glovebox"

// openDoors opens the doors of the network. Only a guest has them: elsewhere the loopback
// would be the host's.
func (a *agent) openDoors() {
	d, err := netdoor.Open(netdoor.Config{Log: a.log})
	if err != nil {
		a.log.Warn("no network in this guest", "err", err)
		return
	}
	a.doors = d
	a.writeNetworkFile(protocol.Network{})
}

// forgetFailedLookups makes the network listeners ask the host again for names that it has not
// resolved before. Each call into the box begins with it.
func (a *agent) forgetFailedLookups() {
	if a.doors != nil {
		a.doors.BeginCall()
	}
}

// configureNetwork applies the host's settings of the network.
func configureNetwork(o *op, n protocol.Network) (any, error) {
	a := o.conn.a
	if a.doors == nil {
		return nil, failf(protocol.CodeInvalid, "this guest has no network listeners")
	}
	if err := n.Check(); err != nil {
		return nil, failf(protocol.CodeInvalid, "invalid settings of the network: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.ctx.Err() != nil {
		return nil, o.ctx.Err() // of a connection that has been replaced
	}
	if err := a.configureTrust(n); err != nil {
		return nil, err
	}
	a.doors.Configure(n.On, n.Notice)
	a.writeNetworkFile(n)
	return nil, nil
}

// writeNetworkFile writes networkFile, which everybody may read.
func (a *agent) writeNetworkFile(n protocol.Network) {
	text := "on"
	if !n.On {
		text = strings.TrimSpace("off " + strings.Join(strings.Fields(n.Notice), " "))
	}
	if err := replaceFile(filepath.Join(bridgeDir, networkFile), []byte(text+"\n")); err != nil {
		a.log.Warn("programs cannot see whether there is a network", "err", err)
	}
}
