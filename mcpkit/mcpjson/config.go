package mcpjson

import "encoding/json"

// Config is the content of a configuration. It is plain data without locks.
type Config struct {
	// Path is the file, as messages show it; empty if no file was found or the bytes
	// came from elsewhere.
	Path string

	// Dialect is the dialect of the file.
	Dialect Dialect

	// Client configures the client itself. Only the dialect V1 has it.
	Client Client

	// Servers are in the order of the file. Names are unique.
	Servers []*Server

	// Inputs are the questions whose answers replace ${input:id}. Only VS Code defines
	// them; a reference to an undefined one asks by its id.
	Inputs []Input

	// Extra has the unknown members beside the servers, for dialects whose files are
	// about MCP only. Other members of a client's settings file are neither stored nor
	// read.
	Extra []Extra

	// KeepTools makes Export, Merge and Update write tool filters also in dialects
	// whose clients do not support them, as includeTools and excludeTools. This package
	// reads them there, and its users apply them; the client does not. No file sets
	// this field.
	KeepTools bool

	// Warnings are the problems that did not prevent reading the file, and the servers
	// that were skipped.
	Warnings []*Error
}

// Server returns the server with that name, or nil.
func (c *Config) Server(name string) *Server {
	for _, s := range c.Servers {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Client configures the client itself.
type Client struct {
	// ProtocolVersion is the revision to request; empty means the newest.
	ProtocolVersion string

	// Capabilities is a JSON object of capabilities to declare in addition; nil if the
	// file has none.
	Capabilities json.RawMessage

	// Roots is the answer to roots/list. An empty list that is not nil declares the
	// capability without roots.
	Roots []Root
}

// Root is a directory or another place that servers may access.
type Root struct {
	URI  string
	Name string
}

// Input is a question to the user, defined in a file.
type Input struct {
	ID          string
	Type        string // promptString, pickString or command
	Description string
	Default     string
	Password    bool // the answer is a secret
	Options     []string
	Extra       []Extra
}

// Extra is an unknown member, kept so that writing the file back loses nothing.
type Extra struct {
	Key   string
	Value json.RawMessage // compact
}
