// Package logkey names the keys of log and audit lines, so that one thing has one key
// everywhere. docs/security.md documents those of the audit log.
package logkey

// Objects.
const (
	Box         = "box"         // id of a session or context; in the audit log also of a snapshot
	Kind        = "kind"        // of the box: session or context
	Guest       = "guest"       // id that the engine knows the box by
	Record      = "record"      // id of the record of a box or snapshot on disk
	Interpreter = "interpreter" // of a box
	Template    = "template"    // of a user, that a box came from
	Flavor      = "flavor"      // size of a box
	MCPSession  = "mcp_session" // id of the protocol's session
	Request     = "request"     // id of an HTTP request, as in its X-Request-Id
	Tool        = "tool"        // name of a tool, or the method of another audited call
	File        = "file"
	Volume      = "volume" // path on the host
	Mode        = "mode"   // permission bits in octal
	Fix         = "fix"    // remedy, for the operator
	Issuer      = "issuer"
	Image       = "image"  // key of an image or a template on disk
	Server      = "server" // name of a server in an mcp.json
	Tools       = "tools"
	Item        = "item" // what a server lists: tool, prompt, resource or resource template
	Name        = "name" // of an item of a server
	Engine      = "engine"
	Version     = "version"
	Isolation   = "isolation"
	Transport   = "transport" // http, stdio or dual
	StateDir    = "state_dir"
	Endpoint    = "endpoint" // URL
	Setting     = "setting"
	Pool        = "pool"        // ready and wanted boxes
	Host        = "host"        // name or address of another host that a rule allowed a box to reach
	Site        = "site"        // registrable domain of a host that no rule allows
	Authority   = "authority"   // name of a certificate authority of the operator's
	Hash        = "name_sha256" // first 8 hexadecimal digits of the SHA-256 of the name of such a host
	Port        = "port"
	Addr        = "addr"   // that was dialled
	Door        = "door"   // how a program connected: http, socks, tcp or dns
	Rule        = "rule"   // of a network policy
	Policy      = "policy" // version of a network policy
	Secret      = "secret" // names of secrets, never values
)

// Circumstances.
const (
	Who        = "who"    // the caller: an owner, local or unknown
	Remote     = "remote" // address of the caller
	Method     = "method" // of JSON-RPC or HTTP
	Path       = "path"   // of a URL
	Protocol   = "protocol"
	Source     = "source" // how a box started
	Operation  = "op"
	Retry      = "retry" // time until the next attempt
	Progress   = "progress"
	Count      = "count"
	Omitted    = "omitted" // lines of the same kind since the last one
	Size       = "size"    // wanted number
	Ready      = "ready"
	Failures   = "failures"
	Bytes      = "bytes"
	Quota      = "quota" // bytes
	Binds      = "binds"
	Missing    = "missing"
	Files      = "files" // whether files were kept
	Kept       = "kept"  // id of a snapshot that keeps earlier state
	Saved      = "saved" // time at which a box was last written
	Tokens     = "tokens"
	Revoked    = "revoked"
	DurationMS = "duration_ms"
	Took       = "took"
	From       = "from" // old value of a setting
	To         = "to"   // new value of a setting
	Timeout    = "timeout"
	Command    = "command"    // to type
	AcceptAll  = "accept_all" // command that accepts all later changes
	Note       = "note"
)

// Outcomes.
const (
	Outcome   = "outcome" // ok, failed, refused, cancelled or error
	Reason    = "reason"
	Why       = "why"      // one of a closed set
	Sent      = "sent"     // bytes from a box
	Received  = "received" // bytes to a box
	Detail    = "detail"
	Code      = "code" // of a JSON-RPC error, or an exit code
	Status    = "status"
	ToolError = "tool_error"
	Decision  = "decision" // on a call of a program
	Via       = "via"      // how it was made
	SHA256    = "sha256"   // of the call
	ErrorID   = "error_id" // id of an internal error, which the client gets too
	Error     = "err"
	Panic     = "panic"
	Stack     = "stack"
)
