// Package fleet describes what servers that share the boxes of one engine know of each
// other: which of them has a box, whether that server lives, and where it listens.
//
// Each box has one server at a time, which holds the connection to its agent. The other
// servers find the box by the note that its server has written down with it, and send calls
// to that server. When the server is gone, any of them adopts the box.
//
// This package has the types and the checks. internal/server (forward.go) sends calls to other
// servers, internal/box (fleet.go) finds boxes and adopts them, internal/engine/kube
// (fleet.go) keeps what they know in the cluster.
//
// Notes and addresses come from outside of the process. Readers of a Text check what it says;
// addresses have passed [ParseAddress].
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// MaxText bounds the text of a Note, in bytes.
const MaxText = 16 << 10

// ErrChanged means that a guest has changed since it was found: another server may have
// adopted it. The caller looks for it again.
var ErrChanged = errors.New("the guest has changed since it was found")

// A Fleet is the servers that share the boxes of an engine, as one of them sees it. All
// methods may be called concurrently.
type Fleet interface {
	// Self returns the name of this server, for which ValidServer holds. No other server
	// has or had it.
	Self() string

	// Note writes down which box a guest of this server is.
	Note(ctx context.Context, guest string, n Note) error

	// Boxes returns the living guests with one of the tags of boxes. It sees each Note that
	// has returned before, on any server.
	Boxes(ctx context.Context, tags ...string) ([]Guest, error)

	// Owned returns the living guests with the tag of an owner, as Boxes does.
	Owned(ctx context.Context, tag string) ([]Guest, error)

	// Server describes another server. A server that has not renewed its Lease counts as gone
	// only after repeated calls, since one missed renewal is not enough.
	Server(ctx context.Context, name string) (Server, error)

	// Adopt makes a guest that was found one of this server. The agent is in the middle
	// of a stream, as after engine.Recoverer.Recover. The error wraps ErrChanged if the
	// guest has changed since it was found, and those of Recover otherwise.
	Adopt(ctx context.Context, g Guest) (engine.Guest, error)

	// Leave releases a guest of this server without ending it, so that another server can
	// adopt it.
	Leave(ctx context.Context, guest string) error
}

// Note says which box a guest is. The tags are of [Tag].
type Note struct {
	Box   string // tag of the box
	Owner string // tag of the owner
	Text  string // at most MaxText
}

// Guest is a guest that was found.
type Guest struct {
	State   engine.GuestState
	Server  string // that has it
	Version string // of the guest when it was found, for the fleet
	Text    string // of its Note
}

// Server is one of the servers.
type Server struct {
	// Address is where the server listens for the others. It is not valid if the server
	// publishes none that they may use.
	Address netip.AddrPort
	// Gone says that the server has ended, or does not renew the claim on its boxes.
	Gone bool
}

// Tag returns a tag that identifies a list of texts: a hash, since tags become labels.
func Tag(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		h.Write(binary.AppendUvarint(nil, uint64(len(text)))) // ("ab", "c") differs from ("a", "bc")
		h.Write([]byte(text))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

var (
	serverName = lazyregexp.New(`^[0-9a-f]{16}$`)
	tagForm    = lazyregexp.New(`^[0-9a-f]{32}$`)
)

// ValidServer reports whether a text has the form of a server's name.
func ValidServer(name string) bool { return serverName().MatchString(name) }

// ValidTag reports whether a text has the form of a [Tag].
func ValidTag(tag string) bool { return tagForm().MatchString(tag) }

// ID returns an id that names the server which has given it.
func ID(server, rest string) string { return server + "-" + rest }

// ServerOf returns the server that has given an id; "" if the id names none.
func ServerOf(id string) string {
	server, _, found := strings.Cut(id, "-")
	if !found || !ValidServer(server) {
		return ""
	}
	return server
}

// ParseAddress parses the address at which a server listens for others, in the canonical form
// IP:port. It refuses names, which mean another host to somebody else, and addresses that no
// server has: unspecified, link-local and multicast ones and those of clouds' metadata
// services. Loopback addresses are for servers on one machine: see [Reachable].
func ParseAddress(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	ip := a.Addr()
	switch {
	case err != nil || a.String() != text:
		return netip.AddrPort{}, fmt.Errorf("address %.100q: want IP:port, such as 10.1.2.3:8775", text)
	case a.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("address %s has no port", text)
	case ip.Zone() != "" || ip.Is4In6() || !ip.IsGlobalUnicast() && !ip.IsLoopback() || address.IsMetadata(ip):
		return netip.AddrPort{}, fmt.Errorf("address %s is none of a server", text)
	}
	return a, nil
}

// Reachable reports whether a server with the address own may connect to other: a loopback
// address of another server means this machine only to servers that share it.
func Reachable(own, other netip.AddrPort) bool {
	return own.IsValid() && other.IsValid() && own != other && own.Addr().IsLoopback() == other.Addr().IsLoopback()
}
