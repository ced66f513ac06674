// Package config is what the person who starts Glovebox may set: one struct,
// whose tags hold every key's names, default and help. Values come from flags,
// then the environment, then a file, then the default; the first that is set
// wins.
//
// There is no .env file on purpose: MCP clients start the server in the
// directory that the agent works in, and a file that the agent can write must
// not decide which directories of the host are shared with a box.
package config

import (
	"time"
)

// Config is what can be set. The tags are the single source of flags,
// environment variables, the file's keys, shell completion and
// docs/configuration.md:
//
//	key      the file's key and, after --, the flag
//	env      environment variables, the first that is set wins
//	default  as it would be typed
//	kind     how the text is read, see kinds
//	max      the largest number, of the kind positive
//	choices  the closed set of values
//	live     "true" if SIGHUP lets a running server take it over
//	short    the flag's line in --help: at most 42 characters, no period
//	help     all that there is to know, for the documentation
type Config struct {
	// Server.
	Mode              string        `group:"server" key:"mode" env:"MCP_MODE" default:"http" kind:"choice" choices:"http stdio dual" short:"transports to offer" help:"Transports that serve offers: HTTP, standard input and output, or both."`
	Host              string        `group:"server" key:"host" env:"MCP_SERVER_HOST MCP_HOST" default:"127.0.0.1" kind:"string" short:"address to listen on" help:"Address to listen on."`
	Port              int           `group:"server" key:"port" env:"MCP_SERVER_PORT MCP_PORT" default:"8775" kind:"port" short:"port to listen on; 0 takes a free one" help:"Port to listen on; --port 0 takes a free one."`
	Endpoint          string        `group:"server" key:"endpoint" env:"MCP_ENDPOINT" default:"/mcp" kind:"urlpath" short:"path of the MCP endpoint" help:"Path of the MCP endpoint."`
	CORS              bool          `group:"server" key:"enable-cors" env:"MCP_ENABLE_CORS" default:"false" kind:"bool" short:"answer browsers of any origin" help:"Answer browsers of any origin (CORS). See allowed-origins."`
	AllowedOrigins    []string      `group:"server" key:"allowed-origins" env:"GLOVEBOX_ALLOWED_ORIGINS" default:"" kind:"origins" short:"origins whose pages may use the server" help:"Origins whose pages may use the server from a browser, such as https://app.example (CORS)."`
	AllowedHosts      []string      `group:"server" key:"allowed-hosts" env:"GLOVEBOX_ALLOWED_HOSTS" default:"" kind:"hosts" short:"Host headers to accept besides loopback's" help:"Host headers to accept besides those of loopback, with or without a port. Without any, all are accepted that do not arrive over loopback."`
	MaxConnections    int           `group:"server" key:"max-connections" env:"MCP_MAX_CONNECTIONS" default:"100" kind:"positive" max:"100000" short:"open HTTP connections" help:"Connections over HTTP at once, streams and idle ones included; the next are told to come back, or take the place of an idle one."`
	MaxStreams        int           `group:"server" key:"max-streams" env:"GLOVEBOX_MAX_STREAMS" default:"80" kind:"positive" max:"100000" short:"open HTTP streams that only listen" help:"Streams over HTTP at once that only listen. Keep it below max-connections, so that calls get through."`
	MaxCalls          int           `group:"server" key:"max-calls" env:"GLOVEBOX_MAX_CALLS" default:"100" kind:"positive" max:"100000" short:"concurrent HTTP requests" help:"Requests over HTTP at once; those of a batch count one by one."`
	MaxBodyMB         int           `group:"server" key:"max-body-mb" env:"GLOVEBOX_MAX_BODY_MB" default:"32" kind:"positive" max:"1024" short:"MB of one HTTP request" help:"Size of one request over HTTP. A file is a third larger as an argument than on disk."`
	MaxMCPSessions    int           `group:"server" key:"max-mcp-sessions" env:"GLOVEBOX_MAX_MCP_SESSIONS" default:"1000" kind:"positive" max:"100000" short:"open MCP sessions over HTTP" help:"MCP sessions over HTTP at once; a new one takes the place of the one that nobody has used for longest, if that is a minute or more."`
	MCPSessionTimeout time.Duration `group:"server" key:"mcp-session-timeout" env:"MCP_SESSION_TIMEOUT" default:"3600000" kind:"milliseconds" short:"forget an idle MCP session after this" help:"Time, in milliseconds or as 30m, without calls or listeners after which an MCP session is forgotten. Boxes have their own, session-timeout."`
	InsecureBind      bool          `group:"server" key:"insecure-bind" env:"GLOVEBOX_INSECURE_BIND" default:"false" kind:"bool" short:"listen beyond this machine without tokens" help:"Listen on an address that other machines reach although anybody who reaches it can run code."`
	DrainTimeout      time.Duration `group:"server" key:"drain-timeout" env:"GLOVEBOX_DRAIN_TIMEOUT" default:"30" kind:"seconds" short:"wait this long for running calls on stop" help:"How long a stop waits for running calls."`
	Toolsets          []string      `group:"tools" key:"toolset" env:"GLOVEBOX_TOOLSETS" default:"sessions" kind:"choices" choices:"sessions contexts files snapshots all" short:"groups of tools to offer" help:"Groups of tools to offer, comma-separated. sessions and contexts include files; snapshots adds fork, snapshot and restore for the groups chosen, or sessions if none is; all is the whole catalogue."`
	ToolErrors        string        `group:"tools" key:"tool-errors" env:"GLOVEBOX_TOOL_ERRORS" default:"result" kind:"choice" choices:"result protocol" short:"how session tools report wrong arguments" help:"How tools of sessions report a wrong argument or a full server: as a result that the model reads, or as an error of JSON-RPC with a code."`

	// Security.
	TokensFile        string   `group:"security" key:"tokens-file" env:"GLOVEBOX_TOKENS_FILE" default:"" kind:"path" short:"require the tokens of this file" help:"Ask clients over HTTP for a token, and believe those of this file; see glovebox token and docs/security.md. It is read again when it changes."`
	OIDCIssuers       []string `group:"security" key:"oidc-issuer" env:"GLOVEBOX_OIDC_ISSUER" default:"" kind:"list" short:"accept tokens signed by these issuers" help:"Ask clients over HTTP for a token, and believe those that these OpenID Connect issuers have signed, such as https://login.example.org/realm."`
	OIDCAudiences     []string `group:"security" key:"oidc-audience" env:"GLOVEBOX_OIDC_AUDIENCE" default:"" kind:"list" short:"required audience of signed tokens" help:"For whom signed tokens must be meant (claim aud), one of these. Default: public-url."`
	OIDCSubjectClaim  string   `group:"security" key:"oidc-subject-claim" env:"GLOVEBOX_OIDC_SUBJECT_CLAIM" default:"sub" kind:"string" short:"claim that names the owner" help:"Claim of signed tokens that says who bears them; it must be unique and never given to another."`
	OIDCScopeClaim    string   `group:"security" key:"oidc-scope-claim" env:"GLOVEBOX_OIDC_SCOPE_CLAIM" default:"scope" kind:"string" short:"claim that lists the scopes" help:"Claim of signed tokens that says what their bearer may: glovebox:read, glovebox:use, glovebox:metrics."`
	OIDCRequireScopes bool     `group:"security" key:"oidc-require-scopes" env:"GLOVEBOX_OIDC_REQUIRE_SCOPES" default:"false" kind:"bool" short:"reject signed tokens without a scope" help:"Let signed tokens that name none of these scopes do nothing; otherwise they may use the tools."`
	PublicURL         string   `group:"security" key:"public-url" env:"GLOVEBOX_PUBLIC_URL" default:"" kind:"string" short:"endpoint as clients know it" help:"The endpoint as clients know it, such as https://boxes.example.org/mcp, where it is not what they ask for."`
	TLSCert           string   `group:"security" key:"tls-cert" env:"GLOVEBOX_TLS_CERT" default:"" kind:"path" short:"serve HTTPS with this certificate chain" help:"Serve HTTPS with the certificate, and those that lead to its root, of this PEM file. It is read again when it changes."`
	TLSKey            string   `group:"security" key:"tls-key" env:"GLOVEBOX_TLS_KEY" default:"" kind:"path" short:"private key of the certificate" help:"The private key of the certificate, in a PEM file."`
	BehindProxy       bool     `group:"security" key:"behind-proxy" env:"GLOVEBOX_BEHIND_PROXY" default:"false" kind:"bool" short:"trust the headers of a TLS proxy in front" help:"A proxy that speaks TLS stands before the server: listen without TLS, and believe its X-Forwarded-For and X-Request-Id."`
	OwnerMaxBoxes     int      `group:"security" key:"owner-max-boxes" env:"GLOVEBOX_OWNER_MAX_BOXES" default:"" kind:"positive" live:"true" short:"boxes in memory per owner" help:"Boxes in memory of one owner at once; no limit but the server's if unset."`
	OwnerMaxMemoryMB  int      `group:"security" key:"owner-max-memory-mb" env:"GLOVEBOX_OWNER_MAX_MEMORY_MB" default:"" kind:"positive" live:"true" short:"MB of memory promised per owner" help:"Memory that the boxes of one owner together may be promised; no limit if unset."`
	OwnerMaxCalls     int      `group:"security" key:"owner-max-calls" env:"GLOVEBOX_OWNER_MAX_CALLS" default:"" kind:"positive" short:"concurrent HTTP calls per owner" help:"Calls of tools of one owner under way over HTTP. If unset, half of max-calls where tokens are asked for; the rest is for others."`
	RateLimit         int      `group:"security" key:"rate-limit" env:"GLOVEBOX_RATE_LIMIT" default:"auto" kind:"count" short:"requests per second per owner; 0: no limit" help:"Requests a second of one owner or, where nobody is asked for a token, of one address; 0 for no limit. Auto is 100 where tokens are asked for, else none."`
	RateBurst         int      `group:"security" key:"rate-burst" env:"GLOVEBOX_RATE_BURST" default:"" kind:"positive" short:"requests an owner may send at once" help:"Requests that may come at once after a rest; twice the rate limit if unset."`
	AuditLog          string   `group:"security" key:"audit-log" env:"GLOVEBOX_AUDIT_LOG" default:"" kind:"path" short:"write a JSON line per call to this file" help:"Write a line of JSON for every call and every refusal to this file, which is rotated as the log file is. If unset the lines go to the log, where tokens are asked for."`

	// Boxes.
	MaxSessions      int           `group:"boxes" key:"max-sessions" env:"MSB_MAX_SESSIONS" default:"10" kind:"positive" live:"true" short:"sessions that may live at once" help:"Sessions that may live at once."`
	MaxContexts      int           `group:"boxes" key:"max-contexts" env:"GLOVEBOX_MAX_CONTEXTS" default:"50" kind:"positive" live:"true" short:"contexts that may live at once" help:"Contexts that may live at once."`
	SessionTimeout   time.Duration `group:"boxes" key:"session-timeout" env:"MSB_SESSION_TIMEOUT" default:"1800" kind:"seconds" live:"true" short:"hibernate a box idle for this long" help:"Idle time after which a box leaves memory: it is hibernated, or ends where it cannot be."`
	CleanupInterval  time.Duration `group:"boxes" key:"cleanup-interval" env:"MSB_CLEANUP_INTERVAL" default:"60" kind:"seconds" short:"how often to look for idle boxes" help:"How often idle boxes are looked for; less than the session time-out."`
	OrphanInterval   time.Duration `group:"boxes" key:"orphan-cleanup-interval" env:"MSB_ORPHAN_CLEANUP_INTERVAL" default:"600" kind:"seconds" short:"how often to clean up after dead servers" help:"How often leftovers of servers that died are looked for."`
	PauseAfter       time.Duration `group:"boxes" key:"pause-after" env:"GLOVEBOX_PAUSE_AFTER" default:"30" kind:"seconds-or-never" short:"pause a box idle for this long, or never" help:"Idle time after which a box is written to disk and paused; never switches both off."`
	Hibernate        bool          `group:"boxes" key:"hibernate" env:"GLOVEBOX_HIBERNATE" default:"true" kind:"bool" short:"keep boxes on disk until the next call" help:"Keep boxes that leave memory on disk until the next call on their id, also over a restart; false ends them. Without it there are no kept snapshots either."`
	HibernateMaxAge  time.Duration `group:"boxes" key:"hibernate-max-age" env:"GLOVEBOX_HIBERNATE_MAX_AGE" default:"604800" kind:"seconds" short:"how long to keep an unused box on disk" help:"How long a hibernated box is kept that nobody uses."`
	SnapshotDiskMB   int           `group:"boxes" key:"snapshot-disk-mb" env:"GLOVEBOX_SNAPSHOT_DISK_MB" default:"20480" kind:"positive" short:"MB of disk for boxes and snapshots" help:"Disk that hibernated boxes and kept snapshots may take together; the least recently used boxes make room."`
	MaxSnapshots     int           `group:"boxes" key:"max-snapshots" env:"GLOVEBOX_MAX_SNAPSHOTS" default:"100" kind:"positive" live:"true" short:"snapshots per owner" help:"Snapshots that one owner may keep."`
	PoolSize         int           `group:"boxes" key:"pool-size" env:"GLOVEBOX_POOL_SIZE" default:"auto" kind:"count" short:"boxes kept ready per language" help:"Boxes ready ahead of calls, for each of Python and JavaScript; 0 for none. Auto is 3, and 1 with standard input and output alone."`
	PoolMaxAge       time.Duration `group:"boxes" key:"pool-max-age" env:"GLOVEBOX_POOL_MAX_AGE" default:"3600" kind:"seconds" short:"replace an unused ready box after this" help:"Age at which a box that nobody has taken from the pool is replaced."`
	DefaultFlavor    string        `group:"boxes" key:"default-flavor" env:"MSB_DEFAULT_FLAVOR" default:"small" kind:"choice" choices:"small medium large" short:"size of a box if the call names none" help:"Size of a box if the call does not say: 1 CPU and 1024 MB, 2 and 2048, 4 and 4096."`
	StartTimeout     time.Duration `group:"boxes" key:"start-timeout" env:"MSB_SANDBOX_START_TIMEOUT" default:"180" kind:"seconds" short:"how long a box may take to start" help:"How long a box may take to start."`
	ExecutionTimeout time.Duration `group:"boxes" key:"execution-timeout" env:"MSB_EXECUTION_TIMEOUT MSB_MAX_EXECUTION_TIME" default:"300" kind:"seconds" live:"true" short:"default time limit of code in a session" help:"How long code and commands of a session may run if the call does not say."`
	ContextTimeout   time.Duration `group:"boxes" key:"context-timeout" env:"GLOVEBOX_CONTEXT_TIMEOUT" default:"30" kind:"seconds" live:"true" short:"time limit of code in a context" help:"How long code in a context may run."`
	DefaultContext   bool          `group:"boxes" key:"default-context" env:"GLOVEBOX_DEFAULT_CONTEXT" default:"true" kind:"bool" live:"true" short:"let run_code work without a context" help:"Let run_code without a context_id use the default context of its client."`
	MaxTotalMemoryMB int           `group:"boxes" key:"max-total-memory-mb" env:"MSB_MAX_TOTAL_MEMORY_MB" default:"" kind:"positive" live:"true" short:"MB of memory promised to all boxes" help:"Memory that all boxes together may be promised; no limit if unset."`
	LRUEviction      bool          `group:"boxes" key:"lru-eviction" env:"MSB_ENABLE_LRU_EVICTION" default:"true" kind:"bool" live:"true" short:"make room by hibernating the idlest box" help:"Hibernate (or end) the least recently used idle box when a new one needs its place; otherwise refuse the new one."`
	Preload          []string      `group:"boxes" key:"preload" env:"GLOVEBOX_PRELOAD" default:"numpy,pandas,matplotlib" kind:"modules" short:"modules that Python boxes import ahead" help:"Modules that templates of Python import ahead, where there are; \"none\" for nothing."`
	FinishTemplates  bool          `group:"boxes" key:"finish-templates" env:"GLOVEBOX_FINISH_TEMPLATES" default:"true" kind:"bool" short:"finish templates after a quick client" help:"If the client of a server over standard input and output leaves before templates are built, finish them in a process that outlives the server by a few seconds, 5 minutes at most."`

	// Volumes.
	Volumes        []Volume `group:"volumes" key:"volume" env:"MSB_SHARED_VOLUME_PATH" default:"" kind:"volumes" short:"share a host directory with every box" help:"Directories of the host that every box sees, as host:container[:ro]; a JSON array or a comma-separated list."`
	VolumeRoots    []string `group:"volumes" key:"volume-roots" env:"GLOVEBOX_VOLUME_ROOTS" default:"" kind:"dirs" short:"allow volumes only below these" help:"If set, volumes must lie in one of these directories."`
	VolumesEnabled bool     `group:"volumes" key:"enable-volumes" env:"MSB_ENABLE_VOLUME_MAPPING" default:"true" kind:"bool" short:"share the volumes; false ignores them" help:"Share the volumes; false ignores them all."`

	// Host.
	StateDir string `group:"host" key:"state-dir" env:"GLOVEBOX_STATE_DIR" default:"" kind:"path" short:"where Glovebox keeps its state" help:"Where Glovebox keeps its state. Default: /var/lib/glovebox for root, otherwise glovebox in $XDG_STATE_HOME or ~/.local/state."`
	Image    string `group:"host" key:"image" env:"GLOVEBOX_IMAGE" default:"" kind:"path" short:"root file system of boxes" help:"Directory that is the root file system of boxes, such as an unpacked container image. Default: this machine's own programs."`
	Python   string `group:"host" key:"python" env:"GLOVEBOX_PYTHON" default:"" kind:"path" short:"Python of boxes, as ~/venv/bin/python" help:"The Python that boxes use, such as ~/venv/bin/python of a virtual environment. Default: the first on PATH that has numpy and pandas, else the first."`
	Node     string `group:"host" key:"node" env:"GLOVEBOX_NODE" default:"" kind:"path" short:"Node that boxes use" help:"The Node that boxes use. Default: the one found on this machine."`

	// Log.
	LogLevel       string `group:"log" key:"log-level" env:"GLOVEBOX_LOG_LEVEL MSB_LOG_LEVEL" default:"auto" kind:"level" choices:"auto debug info warn error" live:"true" short:"least severe lines to log" help:"The least severe lines to log. Auto is info, and warn with standard input and output alone, since many clients show the log to their user."`
	LogFormat      string `group:"log" key:"log-format" env:"GLOVEBOX_LOG_FORMAT MSB_LOG_FORMAT" default:"text" kind:"choice" choices:"text json" short:"form of the log's lines" help:"Form of the log's lines."`
	LogConsole     bool   `group:"log" key:"log-console" env:"MSB_LOG_CONSOLE" default:"true" kind:"bool" short:"log to standard error" help:"Log to standard error."`
	LogFile        string `group:"log" key:"log-file" env:"MSB_LOG_FILE" default:"" kind:"path" short:"also log to this file" help:"Log to this file as well."`
	LogMaxSize     int    `group:"log" key:"log-max-size" env:"MSB_LOG_MAX_SIZE" default:"10485760" kind:"positive" short:"bytes before the log file is rotated" help:"Bytes after which the log file is rotated, rounded up to whole MiB."`
	LogBackupCount int    `group:"log" key:"log-backup-count" env:"MSB_LOG_BACKUP_COUNT" default:"5" kind:"positive" short:"rotated log files to keep" help:"Rotated log files to keep."`

	// Traces.
	OTLPEndpoint string `group:"log" key:"otlp-endpoint" env:"GLOVEBOX_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT" default:"" kind:"weburl" short:"send traces to this OTLP/HTTP collector" help:"Send traces to this collector over OTLP/HTTP; /v1/traces is added. What else OpenTelemetry has of variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, …) holds too."`
}

// Level returns the level of the log: LogLevel, or for auto, warn with standard input
// and output alone and info otherwise.
func (c *Config) Level() string {
	switch {
	case c.LogLevel != LevelAuto:
		return c.LogLevel
	case c.Mode == "stdio":
		return "warn"
	}
	return "info"
}

// Volume is a directory of the host that boxes see.
type Volume struct {
	Host     string // absolute, symbolic links resolved
	Guest    string // absolute and clean
	ReadOnly bool
}

// The memory of each flavor in MB, to check MaxTotalMemoryMB against.
var flavorMB = map[string]int{"small": 1024, "medium": 2048, "large": 4096}

const cloudless = "boxes run on this machine, there is no account of a cloud"

// ignored are variables of servers that Glovebox takes the place of. They are
// accepted and have no effect.
var ignored = map[string]string{
	"MSB_SERVER_URL":             "boxes run inside Glovebox, there is no server to connect to",
	"MSB_API_KEY":                "boxes run inside Glovebox, there is no server to connect to",
	"MSB_CONNECTION_TIMEOUT":     "boxes run inside Glovebox, there is no server to connect to",
	"MSB_REQUEST_TIMEOUT":        "use MSB_EXECUTION_TIMEOUT",
	"MSB_MAX_TOTAL_CPU_CORES":    "processors are limited per box, by its flavor",
	"MSB_LOG_STRUCTURED":         "use GLOVEBOX_LOG_FORMAT",
	"AGENTRUN_ACCESS_KEY_ID":     cloudless,
	"AGENTRUN_ACCESS_KEY_SECRET": cloudless,
	"AGENTRUN_ACCOUNT_ID":        cloudless,
	"AGENTRUN_REGION":            cloudless,
	"AGENTRUN_INTERPRETER_NAME":  cloudless,
	"AGENTRUN_CPU":               "processors go with the flavor, see MSB_DEFAULT_FLAVOR",
	"AGENTRUN_MEMORY":            "memory goes with the flavor, see MSB_DEFAULT_FLAVOR",
	"AGENTRUN_SESSION_TIMEOUT":   "use MSB_SESSION_TIMEOUT",
	"MICROSANDBOX_PYTHON_IMAGE":  "boxes use this machine's Python; see GLOVEBOX_PYTHON",
	"MICROSANDBOX_NODE_IMAGE":    "boxes use this machine's Node; see GLOVEBOX_NODE",
}

// LevelAuto is the log level that depends on the mode.
const LevelAuto = "auto"

// FileEnv is the variable that names the file if no flag does.
const FileEnv = "GLOVEBOX_CONFIG"
