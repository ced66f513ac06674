package protocol

import "fmt"

// FeatureNetwork in HelloResult.Features means that the agent accepts OpNetwork and
// listens for the connections of the guest's programs.
const FeatureNetwork = "network"

const (
	// MaxDials bounds the concurrent dials of one connection. A dial is a connection that a
	// program in the guest opens and the host relays: see Dial.
	MaxDials = 64
	// MaxLookups bounds the concurrent lookups of one connection.
	MaxLookups = 64
	// DialWindow is the window of a dial in each direction. All dials of a guest
	// together cost the host at most 2 * MaxDials * DialWindow bytes of received data:
	// a batch that is being read, and the next one.
	DialWindow = 128 << 10
	// AllDialsWindow is the window of all Data frames of dials to the agent together. The agent
	// returns it, with Credit of operation 0, when it has read the frames, whether or not
	// the program has. It bounds what waits in the pipe before the frames of a call, as
	// the windows of the dials bound the memory of the receiver.
	AllDialsWindow = 256 << 10
	// MaxDialFrame bounds the payload of one Data frame of a dial, so that the frames
	// of other operations do not wait long behind it.
	MaxDialFrame = 64 << 10
	// MaxName bounds the name of a dial or lookup, in bytes.
	MaxName = 253
	// MaxPorts bounds the ports of a LookupResult.
	MaxPorts = 8
	// MaxNotice bounds Network.Notice, in bytes.
	MaxNotice = 512
	// MaxNetworkEnv bounds the variables of Network.Env.
	MaxNetworkEnv = 32
	// MaxNetworkValue bounds the name and value of one variable of Network.Env together,
	// in bytes.
	MaxNetworkValue = 4 << 10
	// MaxCA bounds Network.CA, in bytes.
	MaxCA = 64 << 10
)

// Network configures the guest's access to the network. It applies until the next
// Network or the end of the connection: a resumed connection starts without a network.
type Network struct {
	// On lets the guest dial and look up names. If it is false, the agent refuses both
	// itself, without asking the host.
	On bool `json:"on"`
	// Notice is the text of these refusals, for programs and their users: one line of at
	// most MaxNotice bytes. Empty: a text of the agent's.
	Notice string `json:"notice,omitempty"`
	// Env holds variables for user code, such as the placeholders of secrets.
	Env map[string]string `json:"env,omitempty"`
	// CA has the certificates in PEM that user code has to trust beside those of the image,
	// one after the other. Empty: none.
	CA string `json:"ca,omitempty"`
}

// Check returns an error if a limit is exceeded.
func (n Network) Check() error {
	switch {
	case len(n.Notice) > MaxNotice:
		return fmt.Errorf("the notice has %d bytes, more than %d", len(n.Notice), MaxNotice)
	case len(n.Env) > MaxNetworkEnv:
		return fmt.Errorf("%d variables, more than %d", len(n.Env), MaxNetworkEnv)
	case len(n.CA) > MaxCA:
		return fmt.Errorf("the certificates have %d bytes, more than %d", len(n.CA), MaxCA)
	}
	for k, v := range n.Env {
		if len(k)+len(v) > MaxNetworkValue {
			return fmt.Errorf("the variable %.40q has %d bytes, more than %d", k, len(k)+len(v), MaxNetworkValue)
		}
	}
	return nil
}

// The doors of a Dial: where in the guest a program connected.
const (
	DoorHTTP  = "http"  // to the HTTP proxy; Name and Port are in the bytes
	DoorSOCKS = "socks" // to the SOCKS proxy; likewise
	DoorTCP   = "tcp"   // to the address of Name, at Port
)

// Dial opens a connection of a program in the guest. The bodies are its bytes in both
// directions, unparsed; EOF of a body is the end of that direction.
type Dial struct {
	Door string `json:"door"`
	Name string `json:"name,omitempty"` // of DoorTCP: a name for which ValidName is true
	Port int    `json:"port,omitempty"` // of DoorTCP: 1 to 65535
}

// Check returns an error if d is not a well-formed dial.
func (d Dial) Check() error {
	switch d.Door {
	case DoorHTTP, DoorSOCKS:
		if d.Name != "" || d.Port != 0 {
			return fmt.Errorf("a dial of the door %s with a name or a port", d.Door)
		}
	case DoorTCP:
		if !ValidName(d.Name) {
			return fmt.Errorf("a dial of the invalid name %.80q", d.Name)
		}
		if d.Port < 1 || d.Port > 65535 {
			return fmt.Errorf("a dial of the invalid port %d", d.Port)
		}
	default:
		return fmt.Errorf("a dial of the unknown door %.40q", d.Door)
	}
	return nil
}

// DialResult is the result of a dial that ended in order. One that ended with an error of
// CodeLost was cut off: the agent resets the program's connection.
type DialResult struct{}

// Lookup asks whether the guest may dial a name.
type Lookup struct {
	Name string `json:"name"` // ValidName is true
}

// LookupResult answers Lookup.
type LookupResult struct {
	Status string `json:"status"` // LookupOK, LookupNXDomain, LookupRefused or LookupFailed
	// Ports lists the ports that may be dialed; with LookupOK 1 to MaxPorts of them.
	Ports []int `json:"ports,omitempty"`
	// TTL is how long the agent may use this answer again, in seconds.
	TTL int `json:"ttl,omitempty"`
}

// The statuses of a LookupResult.
const (
	LookupOK       = "ok"
	LookupNXDomain = "nxdomain" // no such name
	LookupRefused  = "refused"  // no rule allows it
	LookupFailed   = "failed"   // temporarily: it is allowed, but no name server answered
)

// ValidName reports whether name is a canonical host name: at least two labels of
// lower-case letters, digits, hyphens and underscores, each of 1 to 63 bytes, of at most
// MaxName bytes in all, without a trailing dot, and not an IPv4 address.
func ValidName(name string) bool {
	if len(name) == 0 || len(name) > MaxName {
		return false
	}
	labels, start, numeric := 0, 0, true
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			if i == start || i-start > 63 {
				return false
			}
			labels++
			if i < len(name) {
				start, numeric = i+1, true
			}
			continue
		}
		switch c := name[i]; {
		case c >= '0' && c <= '9':
		case c >= 'a' && c <= 'z', c == '-', c == '_':
			numeric = false
		default:
			return false
		}
	}
	return labels >= 2 && !numeric // the last label of an address is a number
}
