package mcpjson

import "encoding/json"

// Config is what one file, or one discovery, says. It is plain data: whoever
// holds it may change it; nothing here locks.
type Config struct {
	// Path is the file that was read, as it is shown to people; empty if no
	// file was found or the bytes came from elsewhere.
	Path string

	// Dialect is that of the file.
	Dialect Dialect

	// Client is what the file says of the client itself. Only the dialect V1
	// has it.
	Client Client

	// Servers are in the order of the file. Names are unique.
	Servers []*Server

	// Inputs are the questions whose answers ${input:id} stands for. Only VS
	// Code defines them; a reference to an undefined one is asked by its id.
	Inputs []Input

	// Extra is what the file says beside its servers and this package does not
	// know, in the dialects whose whole file is about MCP. A client's settings
	// file holds much more, which is neither kept nor looked at.
	Extra []Extra

	// KeepTools has Export, Merge and Update write lists of allowed and denied tools
	// also where the dialect's client has no word for them, as includeTools and
	// excludeTools: this package reads them there and whoever uses it keeps to them,
	// the client does not. No file sets it.
	KeepTools bool

	// Warnings are complaints that did not stop the file from being read, and
	// the servers that were left out because of what is wrong with them.
	Warnings []*Error
}

// Server returns the server of that name, or nil.
func (c *Config) Server(name string) *Server {
	for _, s := range c.Servers {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Client is what a file says of the client itself.
type Client struct {
	// ProtocolVersion is the revision to offer; empty means newest.
	ProtocolVersion string

	// Capabilities is a JSON object to declare beside what is built in; nil if
	// the file has none.
	Capabilities json.RawMessage

	// Roots are what roots/list answers. Not nil but empty declares the ability
	// with no root.
	Roots []Root
}

// Root is a directory, or another place, that servers may look at.
type Root struct {
	URI  string
	Name string
}

// Input is a question to the user, defined in the file.
type Input struct {
	ID          string
	Type        string // promptString, pickString or command
	Description string
	Default     string
	Password    bool // the answer is a secret
	Options     []string
	Extra       []Extra
}

// Extra is a member that this package does not know, kept so that a file that
// is written back loses nothing.
type Extra struct {
	Key   string
	Value json.RawMessage // compact
}
