// Package config holds the settings of Glovebox: one struct, whose tags declare each
// setting's names, default and help. The first source that has a value wins: flag,
// environment, file, default.
//
// Load reads no .env file. MCP clients start the server in the agent's working
// directory, and a file that the agent can write must not decide which host directories
// boxes see.
package config

import (
	"time"
)

// Config has all settings. The tags are the only source of flags, environment
// variables, file keys, shell completion and docs/configuration.md:
//
//	key      file key and, after --, flag
//	env      environment variables, the first that is set wins
//	default  as it would be typed
//	kind     how the text is parsed, see set
//	max      largest number, for the kind positive
//	choices  all values
//	live     "true" if SIGHUP applies it to a running server
//	short    line in --help: at most 42 characters, no period
//	help     full description for the documentation
type Config struct {
	// Server.
	Mode              string        `group:"server" key:"mode" env:"MCP_MODE" default:"http" kind:"choice" choices:"http stdio dual" short:"transports to serve" help:"Transports of serve: HTTP, standard input and output, or both."`
	Host              string        `group:"server" key:"host" env:"MCP_SERVER_HOST MCP_HOST" default:"127.0.0.1" kind:"string" short:"address to listen on" help:"Address to listen on."`
	Port              int           `group:"server" key:"port" env:"MCP_SERVER_PORT MCP_PORT" default:"8775" kind:"port" short:"port to listen on; 0 takes a free one" help:"Port to listen on; --port 0 takes a free one."`
	Endpoint          string        `group:"server" key:"endpoint" env:"MCP_ENDPOINT" default:"/mcp" kind:"urlpath" short:"path of the MCP endpoint" help:"Path of the MCP endpoint."`
	CORS              bool          `group:"server" key:"enable-cors" env:"MCP_ENABLE_CORS" default:"false" kind:"bool" short:"answer browsers of any origin" help:"Answer browser requests from any origin (CORS). See allowed-origins."`
	AllowedOrigins    []string      `group:"server" key:"allowed-origins" env:"GLOVEBOX_ALLOWED_ORIGINS" default:"" kind:"origins" short:"web origins that may use the server" help:"Web origins that may use the server from a browser (CORS), such as https://app.example."`
	AllowedHosts      []string      `group:"server" key:"allowed-hosts" env:"GLOVEBOX_ALLOWED_HOSTS" default:"" kind:"hosts" short:"Host headers to accept besides loopback's" help:"Host headers to accept besides those of loopback, with or without a port. The host of public-url is always accepted. If unset, requests that do not arrive over loopback may also name an IP address or, where tokens are required, any host."`
	MaxConnections    int           `group:"server" key:"max-connections" env:"MCP_MAX_CONNECTIONS" default:"100" kind:"positive" max:"100000" short:"open HTTP connections" help:"Concurrent HTTP connections, including streams and idle connections. A new connection closes an idle one, or gets status 503. 32 more places are for connections without a valid request yet; when all are taken, the address with the most of these loses its oldest. Where tokens are required, one owner may have half of the connections."`
	MaxStreams        int           `group:"server" key:"max-streams" env:"GLOVEBOX_MAX_STREAMS" default:"80" kind:"positive" max:"100000" short:"open HTTP streams that only listen" help:"Concurrent HTTP streams that only listen. Keep it below max-connections, so that calls get through."`
	MaxCalls          int           `group:"server" key:"max-calls" env:"GLOVEBOX_MAX_CALLS" default:"100" kind:"positive" max:"100000" short:"concurrent HTTP requests" help:"Concurrent HTTP requests. Each request of a batch counts until it is answered. See owner-max-calls for the share of one owner."`
	MaxBodyMB         int           `group:"server" key:"max-body-mb" env:"GLOVEBOX_MAX_BODY_MB" default:"32" kind:"positive" max:"1024" short:"MB of one HTTP request" help:"Size of an HTTP request, in MB. A file is a third larger as an argument than on disk."`
	MaxMCPSessions    int           `group:"server" key:"max-mcp-sessions" env:"GLOVEBOX_MAX_MCP_SESSIONS" default:"1000" kind:"positive" max:"100000" short:"open MCP sessions over HTTP" help:"Concurrent MCP sessions over HTTP. A new session replaces the least recently used one that has been idle for a minute or more. Where tokens are required, one owner may have half of the sessions."`
	MCPSessionTimeout time.Duration `group:"server" key:"mcp-session-timeout" env:"MCP_SESSION_TIMEOUT" default:"3600000" kind:"milliseconds" short:"forget an idle MCP session after this" help:"Idle time after which an MCP session without listeners ends, in milliseconds or with a unit (30m). Boxes have their own limit, session-timeout."`
	InsecureBind      bool          `group:"server" key:"insecure-bind" env:"GLOVEBOX_INSECURE_BIND" default:"false" kind:"bool" short:"listen beyond this machine without tokens" help:"Listen beyond this machine without access tokens. Everyone who reaches the address can run code."`
	DrainTimeout      time.Duration `group:"server" key:"drain-timeout" env:"GLOVEBOX_DRAIN_TIMEOUT" default:"30" kind:"seconds" short:"wait this long for running calls on stop" help:"How long a stopping server waits for running calls."`
	Toolsets          []string      `group:"tools" key:"toolset" env:"GLOVEBOX_TOOLSETS" default:"sessions" kind:"choices" choices:"sessions contexts files snapshots all" short:"groups of tools to offer" help:"Groups of tools to offer, comma-separated. sessions and contexts include the file tools. snapshots adds fork, snapshot and restore tools to the chosen groups, or to sessions. all is the whole catalogue."`
	ToolErrors        string        `group:"tools" key:"tool-errors" env:"GLOVEBOX_TOOL_ERRORS" default:"result" kind:"choice" choices:"result protocol" short:"how session tools report wrong arguments" help:"How session tools report invalid arguments and a full server: as a tool result, which the model reads, or as a JSON-RPC error."`

	// Security.
	TokensFile        string   `group:"security" key:"tokens-file" env:"GLOVEBOX_TOKENS_FILE" default:"" kind:"path" short:"require the tokens of this file" help:"Require an access token over HTTP, and accept the tokens in this file; see glovebox token and docs/security.md. The file is read again when it changes."`
	OIDCIssuers       []string `group:"security" key:"oidc-issuer" env:"GLOVEBOX_OIDC_ISSUER" default:"" kind:"list" short:"accept tokens signed by these issuers" help:"Require an access token over HTTP, and accept tokens signed by these OpenID Connect issuers, such as https://login.example.org/realm."`
	OIDCAudiences     []string `group:"security" key:"oidc-audience" env:"GLOVEBOX_OIDC_AUDIENCE" default:"" kind:"list" short:"required audience of signed tokens" help:"Accepted audiences (claim aud) of signed tokens. Default: public-url."`
	OIDCSubjectClaim  string   `group:"security" key:"oidc-subject-claim" env:"GLOVEBOX_OIDC_SUBJECT_CLAIM" default:"sub" kind:"string" short:"claim that names the owner" help:"Claim of signed tokens that names the owner. It must be unique and never reassigned."`
	OIDCScopeClaim    string   `group:"security" key:"oidc-scope-claim" env:"GLOVEBOX_OIDC_SCOPE_CLAIM" default:"scope" kind:"string" short:"claim that lists the scopes" help:"Claim of signed tokens that lists their scopes: glovebox:read, glovebox:use, glovebox:metrics."`
	OIDCRequireScopes bool     `group:"security" key:"oidc-require-scopes" env:"GLOVEBOX_OIDC_REQUIRE_SCOPES" default:"false" kind:"bool" short:"reject signed tokens without a scope" help:"Reject signed tokens without one of these scopes. Otherwise they may use the tools."`
	PublicURL         string   `group:"security" key:"public-url" env:"GLOVEBOX_PUBLIC_URL" default:"" kind:"string" short:"endpoint as clients know it" help:"URL of the endpoint as clients see it, such as https://boxes.example.org/mcp, if it differs from the address they connect to."`
	TLSCert           string   `group:"security" key:"tls-cert" env:"GLOVEBOX_TLS_CERT" default:"" kind:"path" short:"serve HTTPS with this certificate chain" help:"Serve HTTPS with the certificate chain in this PEM file. The file is read again when it changes."`
	TLSKey            string   `group:"security" key:"tls-key" env:"GLOVEBOX_TLS_KEY" default:"" kind:"path" short:"private key of the certificate" help:"Private key of the certificate, in a PEM file."`
	BehindProxy       bool     `group:"security" key:"behind-proxy" env:"GLOVEBOX_BEHIND_PROXY" default:"false" kind:"bool" short:"trust the headers of a TLS proxy in front" help:"A proxy in front of the server terminates TLS: listen without TLS, and trust its X-Forwarded-For and X-Request-Id headers."`
	OwnerMaxBoxes     int      `group:"security" key:"owner-max-boxes" env:"GLOVEBOX_OWNER_MAX_BOXES" default:"" kind:"positive" live:"true" short:"boxes in memory per owner" help:"Boxes in memory per owner. If unset, half of max-sessions and half of max-contexts where tokens are required."`
	OwnerMaxMemoryMB  int      `group:"security" key:"owner-max-memory-mb" env:"GLOVEBOX_OWNER_MAX_MEMORY_MB" default:"" kind:"positive" live:"true" short:"MB of memory reserved per owner" help:"Memory reserved for the boxes of one owner, in MB. If unset, half of max-total-memory-mb where tokens are required."`
	OwnerSnapshotMB   int      `group:"security" key:"owner-max-snapshot-mb" env:"GLOVEBOX_OWNER_MAX_SNAPSHOT_MB" default:"" kind:"positive" short:"MB of saved snapshots per owner" help:"Disk space for the saved snapshots of one owner, in MB. If unset, a quarter of snapshot-disk-mb, or of what the disk has room for if that is less."`
	OwnerMaxCalls     int      `group:"security" key:"owner-max-calls" env:"GLOVEBOX_OWNER_MAX_CALLS" default:"" kind:"positive" short:"concurrent HTTP calls per owner" help:"Concurrent tool calls of one owner over HTTP. If unset, half of max-calls where tokens are required; the rest is left to other owners."`
	RateLimit         int      `group:"security" key:"rate-limit" env:"GLOVEBOX_RATE_LIMIT" default:"auto" kind:"count" short:"requests per second per owner; 0: no limit" help:"Requests per second per owner or, without tokens, per client address; 0 for no limit. Auto is 100 where tokens are required, and no limit otherwise."`
	RateBurst         int      `group:"security" key:"rate-burst" env:"GLOVEBOX_RATE_BURST" default:"" kind:"positive" short:"requests an owner may send at once" help:"Requests that an owner may send at once. If unset, twice the rate limit."`
	AuditLog          string   `group:"security" key:"audit-log" env:"GLOVEBOX_AUDIT_LOG" default:"" kind:"path" short:"write a JSON line per call to this file" help:"Write a JSON line for every call and every refusal to this file, which rotates like the log file. If unset, the lines go to the log where tokens are required."`

	// Web search.
	PerplexityKey     string        `group:"search" key:"perplexity-api-key" env:"PERPLEXITY_API_KEY" default:"" kind:"secret" short:"key of the search API" help:"Key of Perplexity's API. With it, the server offers the tools for web search of docs/search.md. There is no flag for it: other users of the machine see command lines."`
	PerplexityKeyFile string        `group:"search" key:"perplexity-api-key-file" env:"PERPLEXITY_API_KEY_FILE" default:"" kind:"path" short:"file with the key of the search API" help:"File with the key, such as a secret that systemd or Kubernetes provides, instead of the variable."`
	PerplexityURL     string        `group:"search" key:"perplexity-base-url" env:"PERPLEXITY_BASE_URL" default:"https://api.perplexity.ai" kind:"weburl" short:"address of the search API" help:"Address of Perplexity's API or of a compatible gateway: https, or http on this machine."`
	PerplexityMode    string        `group:"search" key:"perplexity-api-mode" env:"PERPLEXITY_API_MODE" default:"auto" kind:"choice" choices:"auto agent chat" short:"API for answers" help:"API for answers: /v1/agent, or the earlier /chat/completions of gateways. Auto is agent, and chat for a gateway that has no /v1/agent."`
	PerplexityModel   string        `group:"search" key:"perplexity-model" env:"PERPLEXITY_MODEL" default:"" kind:"string" short:"model for the chat API and the aliases" help:"Model of the chat API, for gateways with names of their own, and default model of the aliases. If unset, each tool has its own."`
	PerplexityTimeout time.Duration `group:"search" key:"perplexity-timeout" env:"PERPLEXITY_TIMEOUT_MS" default:"300000" kind:"milliseconds" short:"time limit of one search or answer" help:"Time limit of one search or answer, in milliseconds or with a unit (10m)."`
	PerplexityProxy   string        `group:"search" key:"perplexity-proxy" env:"PERPLEXITY_PROXY" default:"" kind:"proxyurl" short:"HTTP proxy for the search API" help:"HTTP proxy for the search API, with user and password if it needs them. An http address of the API on this machine is used without a proxy. If unset, HTTPS_PROXY, HTTP_PROXY and NO_PROXY apply."`
	PerplexityAliases bool          `group:"search" key:"perplexity-aliases" env:"GLOVEBOX_PERPLEXITY_ALIASES" default:"false" kind:"bool" short:"also offer the earlier search tools" help:"Also offer perplexity_search_web, perplexity_pro_search, perplexity_deep_research and perplexity_reasoning, the tools of an earlier server. The toolset all includes them."`

	// Code mode.
	Tools          string   `group:"code" key:"tools" env:"GLOVEBOX_TOOLS_FILE" default:"" kind:"path" short:"let code call the tools of this mcp.json" help:"Let code in boxes call the tools of the MCP servers in this mcp.json, in any client's format; see docs/code-mode.md. The servers start when code first uses them. With access tokens, use tools-owners. The file is read again on SIGHUP."`
	ToolsOwners    string   `group:"code" key:"tools-owners" env:"GLOVEBOX_TOOLS_OWNERS" default:"" kind:"path" short:"let owners' code call tools, by this file" help:"JSON file that names an mcp.json for each owner whose code may call tools, where access tokens are required; see docs/code-mode.md. The file is read again on SIGHUP."`
	ToolsMaxOwners int      `group:"code" key:"tools-max-owners" env:"GLOVEBOX_TOOLS_MAX_OWNERS" default:"16" kind:"positive" max:"10000" short:"owners with connected MCP servers" help:"Owners of tools-owners whose MCP servers are connected at a time. Each program among the servers may take 100 MB. Servers that no program uses make room for those of another owner, and so do those of a program that has not called for 30 seconds. If all are in use, a call waits for 6 seconds, then fails. Programs of as many owners again may be ending meanwhile."`
	ToolRules      []string `group:"code" key:"tool-rules" env:"GLOVEBOX_TOOL_RULES" default:"" kind:"list" live:"true" short:"which tools code may call" help:"Rules for the tools that code may call, such as 'allow memory, deny github delete_*': allow, ask or deny, a server and, if not for all of its tools, a tool; * and ? are patterns. The first rule that matches decides. Without one, tools that their server declares as read-only are allowed, and others ask the user."`

	// Network.
	Network              []string `group:"network" key:"network" env:"GLOVEBOX_NETWORK" default:"" kind:"network" live:"true" short:"what boxes may reach, such as pypi,npm" help:"Hosts that programs in boxes may reach: presets (debian, github, go, huggingface, npm, pypi), host names, *.example.org for all names below one, and tcp://host:port for protocols other than HTTP and TLS; everything else is refused. See docs/egress.md. Off, the default, gives boxes no network. It applies to the local user, and to owners for whom network-file has no section."`
	NetworkFile          string   `group:"network" key:"network-file" env:"GLOVEBOX_NETWORK_FILE" default:"" kind:"path" short:"what boxes of each owner may reach" help:"TOML file with the hosts that the boxes of each owner may reach; see docs/egress.md. The file is read again when it changes."`
	EgressPins           []string `group:"network" key:"egress-pin" env:"GLOVEBOX_EGRESS_PIN" default:"" kind:"pins" short:"dial this address for a host name" help:"Addresses to dial for host names, as name[:port]=address[:port], instead of those that the name resolves to. This is the only way for boxes to reach addresses of this machine and of private networks. A policy must still allow the name. Addresses of metadata services cannot be pinned."`
	EgressCA             string   `group:"network" key:"egress-ca" env:"GLOVEBOX_EGRESS_CA" default:"" kind:"path" short:"trust the authorities of this PEM file" help:"PEM file with certificates of authorities, such as that of a company, which programs in boxes trust beside those of their image. The server trusts them, too, at the hosts of secrets. At most 16 KB of certificates, without private keys; see docs/egress.md."`
	EgressMaxConnections int      `group:"network" key:"egress-max-connections" env:"GLOVEBOX_EGRESS_MAX_CONNECTIONS" default:"1024" kind:"positive" max:"100000" short:"connections of all boxes to other hosts" help:"Connections of all boxes to other hosts at a time. One owner may have a quarter of them, and one box at most 64."`
	EgressMaxMBPerMinute int      `group:"network" key:"egress-max-mb-per-minute" env:"GLOVEBOX_EGRESS_MAX_MB_PER_MINUTE" default:"1024" kind:"amount" max:"1048576" short:"MB a minute per box; 0: no limit" help:"Data that one box may send and receive in a minute, in MB; 0 for no limit. One owner may transfer four times as much. Faster transfers are slowed down."`

	// Boxes.
	MaxSessions      int           `group:"boxes" key:"max-sessions" env:"MSB_MAX_SESSIONS" default:"10" kind:"positive" live:"true" short:"sessions in memory" help:"Sessions in memory."`
	MaxContexts      int           `group:"boxes" key:"max-contexts" env:"GLOVEBOX_MAX_CONTEXTS" default:"50" kind:"positive" live:"true" short:"contexts in memory" help:"Contexts in memory."`
	SessionTimeout   time.Duration `group:"boxes" key:"session-timeout" env:"MSB_SESSION_TIMEOUT" default:"1800" kind:"seconds" live:"true" short:"hibernate a box idle for this long" help:"Idle time after which a box leaves memory: it is hibernated or, where that is not possible, stopped."`
	CleanupInterval  time.Duration `group:"boxes" key:"cleanup-interval" env:"MSB_CLEANUP_INTERVAL" default:"60" kind:"seconds" short:"how often to check for idle boxes" help:"How often to check for idle boxes. It must be less than session-timeout."`
	OrphanInterval   time.Duration `group:"boxes" key:"orphan-cleanup-interval" env:"MSB_ORPHAN_CLEANUP_INTERVAL" default:"600" kind:"seconds" short:"how often to clean up after dead servers" help:"How often to clean up after servers that died."`
	PauseAfter       time.Duration `group:"boxes" key:"pause-after" env:"GLOVEBOX_PAUSE_AFTER" default:"30" kind:"seconds-or-never" short:"pause a box idle for this long, or never" help:"Idle time after which a box is written to disk and paused; never disables both."`
	Hibernate        bool          `group:"boxes" key:"hibernate" env:"GLOVEBOX_HIBERNATE" default:"true" kind:"bool" short:"keep boxes on disk until the next call" help:"Keep boxes on disk when they leave memory, until the next call with their id, even if the server restarts. If false, they are stopped, and snapshots are not available."`
	HibernateMaxAge  time.Duration `group:"boxes" key:"hibernate-max-age" env:"GLOVEBOX_HIBERNATE_MAX_AGE" default:"604800" kind:"seconds" short:"how long to keep an unused box on disk" help:"How long to keep an unused hibernated box."`
	SnapshotDiskMB   int           `group:"boxes" key:"snapshot-disk-mb" env:"GLOVEBOX_SNAPSHOT_DISK_MB" default:"20480" kind:"positive" short:"MB of disk for boxes and snapshots" help:"Disk space for hibernated boxes and saved snapshots together, in MB. The least recently used boxes are deleted first. Saved snapshots may take half of it, or of what the disk has room for if that is less; the other half is for hibernated boxes."`
	DiskReserveMB    int           `group:"boxes" key:"disk-reserve-mb" env:"GLOVEBOX_DISK_RESERVE_MB" default:"" kind:"positive" max:"1048576" short:"MB of the disk to leave free" help:"Space on the disk of the state directory that boxes and snapshots leave free, in MB. If unset, 512, or a quarter of the space that is free at the start if that is less."`
	DiskGuarantee    int           `group:"boxes" key:"disk-guarantee" env:"GLOVEBOX_DISK_GUARANTEE" default:"5" kind:"positive" max:"100" short:"percent of a box's disk that is reserved" help:"Part of its disk that a box in memory can always write, in percent. No box starts without room for it. A box may write more, up to the disk of its flavor, while there is room: without room, or when a box of another owner needs its part, the box that exceeds its part most is ended, of the owner whose boxes together do. 100 reserves everything, so that no box is ended. docs/deploy.md has the arithmetic."`
	MaxSnapshots     int           `group:"boxes" key:"max-snapshots" env:"GLOVEBOX_MAX_SNAPSHOTS" default:"100" kind:"positive" live:"true" short:"snapshots per owner" help:"Saved snapshots per owner."`
	PoolSize         int           `group:"boxes" key:"pool-size" env:"GLOVEBOX_POOL_SIZE" default:"auto" kind:"count" short:"boxes kept ready per language" help:"Boxes kept ready for each of Python and JavaScript; 0 for none. Auto is 3, and 1 with standard input and output alone."`
	PoolMaxAge       time.Duration `group:"boxes" key:"pool-max-age" env:"GLOVEBOX_POOL_MAX_AGE" default:"3600" kind:"seconds" short:"replace an unused ready box after this" help:"Age at which an unused box of the pool is replaced."`
	DefaultFlavor    string        `group:"boxes" key:"default-flavor" env:"MSB_DEFAULT_FLAVOR" default:"small" kind:"choice" choices:"small medium large" short:"size of a box if the call names none" help:"Size of a box if the call names none: small has 1 CPU and 1024 MB, medium 2 and 2048, large 4 and 4096."`
	StartTimeout     time.Duration `group:"boxes" key:"start-timeout" env:"MSB_SANDBOX_START_TIMEOUT" default:"180" kind:"seconds" short:"time limit for starting a box" help:"Time limit for starting a box."`
	ExecutionTimeout time.Duration `group:"boxes" key:"execution-timeout" env:"MSB_EXECUTION_TIMEOUT MSB_MAX_EXECUTION_TIME" default:"300" kind:"seconds" live:"true" short:"default time limit of code in a session" help:"Default time limit of code and commands in a session."`
	ContextTimeout   time.Duration `group:"boxes" key:"context-timeout" env:"GLOVEBOX_CONTEXT_TIMEOUT" default:"30" kind:"seconds" live:"true" short:"time limit of code in a context" help:"Time limit of code in a context."`
	DefaultContext   bool          `group:"boxes" key:"default-context" env:"GLOVEBOX_DEFAULT_CONTEXT" default:"true" kind:"bool" live:"true" short:"let run_code use a default context" help:"Let run_code without a context_id use its client's default context."`
	MaxTotalMemoryMB int           `group:"boxes" key:"max-total-memory-mb" env:"MSB_MAX_TOTAL_MEMORY_MB" default:"" kind:"positive" live:"true" short:"MB of memory reserved for all boxes" help:"Memory reserved for all boxes together, in MB. No limit if unset."`
	LRUEviction      bool          `group:"boxes" key:"lru-eviction" env:"MSB_ENABLE_LRU_EVICTION" default:"true" kind:"bool" live:"true" short:"hibernate an idle box if full" help:"Hibernate (or stop) an idle box if a new one needs its place. If false, the new one is refused."`
	Preload          []string      `group:"boxes" key:"preload" env:"GLOVEBOX_PRELOAD" default:"numpy,pandas,matplotlib" kind:"modules" short:"Python modules to import in advance" help:"Python modules that templates import in advance, as far as they are installed; \"none\" for none."`
	FinishTemplates  bool          `group:"boxes" key:"finish-templates" env:"GLOVEBOX_FINISH_TEMPLATES" default:"true" kind:"bool" short:"finish templates after a quick client" help:"If the client of a server over standard input and output leaves before the templates are built, finish them in a separate process. It ends after 5 minutes at most."`

	// Volumes.
	Volumes        []Volume `group:"volumes" key:"volume" env:"MSB_SHARED_VOLUME_PATH" default:"" kind:"volumes" short:"share a host directory with every box" help:"Host directories that every box sees, as host:container, with the options :ro and :rw: a JSON array or a comma-separated list. With {owner} at the end of the host path, each owner has a directory of its own, which may have :quota=2G."`
	VolumeRoots    []string `group:"volumes" key:"volume-roots" env:"GLOVEBOX_VOLUME_ROOTS" default:"" kind:"dirs" short:"allow volumes only below these directories" help:"If set, volumes must be below one of these directories."`
	VolumesEnabled bool     `group:"volumes" key:"enable-volumes" env:"MSB_ENABLE_VOLUME_MAPPING" default:"true" kind:"bool" short:"share the volumes; false ignores them" help:"Share the volumes. If false, they are ignored."`

	// Host.
	StateDir string `group:"host" key:"state-dir" env:"GLOVEBOX_STATE_DIR" default:"" kind:"path" short:"directory of Glovebox's state" help:"Directory of Glovebox's state. Default: /var/lib/glovebox for root, otherwise glovebox in $XDG_STATE_HOME or ~/.local/state."`
	Image    string `group:"host" key:"image" env:"GLOVEBOX_IMAGE" default:"" kind:"image" short:"container image of boxes" help:"Container image of boxes: a name such as python:3.13-slim, an OCI layout, an archive of docker save, or a directory with a root file system. See docs/images.md. The engine kube takes NAME@sha256:DIGEST, microsandbox a directory. Default: this machine's own programs."`
	Python   string `group:"host" key:"python" env:"GLOVEBOX_PYTHON" default:"" kind:"path" short:"Python of boxes, such as ~/venv/bin/python" help:"Python interpreter of boxes, such as ~/venv/bin/python of a virtual environment. Default: the first on PATH with numpy and pandas, otherwise the first."`
	Node     string `group:"host" key:"node" env:"GLOVEBOX_NODE" default:"" kind:"path" short:"Node.js of boxes" help:"Node.js of boxes. Default: the first that is found on this machine."`

	// Engine.
	Engine           string `group:"engine" key:"engine" env:"GLOVEBOX_ENGINE" default:"auto" kind:"choice" choices:"auto gvisor kube microsandbox" short:"where boxes run" help:"What isolates boxes: gvisor on this machine, kube, the Pods of a Kubernetes cluster (docs/kubernetes.md), or microsandbox, microVMs on this machine (docs/microsandbox.md). Auto is gvisor."`
	KubeContext      string `group:"engine" key:"kube-context" env:"GLOVEBOX_KUBE_CONTEXT" default:"" kind:"string" short:"context of the kubeconfig" help:"Context of the kubeconfig, for the engine kube. Default: its current context or, without a kubeconfig, the service account of the Pod that this program runs in."`
	KubeNamespace    string `group:"engine" key:"kube-namespace" env:"GLOVEBOX_KUBE_NAMESPACE" default:"" kind:"string" short:"namespace of the Pods" help:"Namespace of the Pods. Default: that of the context."`
	KubeRuntimeClass string `group:"engine" key:"kube-runtime-class" env:"GLOVEBOX_KUBE_RUNTIME_CLASS" default:"gvisor" kind:"string" short:"runtime class of the Pods" help:"Runtime class of the Pods, which gives each a kernel of its own."`
	KubeHelperImage  string `group:"engine" key:"kube-helper-image" env:"GLOVEBOX_KUBE_HELPER_IMAGE" default:"" kind:"string" short:"image with the agent, by digest" help:"Image with the agent and its helper, as NAME@sha256:DIGEST; scripts/kube/image makes one. Default: image, which then has both programs in /glovebox."`
	KubePeerAddress  string `group:"engine" key:"kube-peer-address" env:"GLOVEBOX_KUBE_PEER_ADDRESS" default:"" kind:"string" short:"IP:port for the other servers" help:"IP:port at which the other servers of the namespace reach this one, in a Pod its address and the port. They then serve each other's sessions and boxes, and take over those of a server that is gone. Default: each server serves its own only."`
	KubeWarm         int    `group:"engine" key:"kube-warm" env:"GLOVEBOX_KUBE_WARM" default:"0" kind:"amount" max:"50" short:"Pods kept ready; 0: none" help:"Pods kept ready for boxes of the default flavor, for all servers of the namespace together; 0 for none. They count in quotas."`

	// Log.
	LogLevel       string `group:"log" key:"log-level" env:"GLOVEBOX_LOG_LEVEL MSB_LOG_LEVEL" default:"auto" kind:"level" choices:"auto debug info warn error" live:"true" short:"least severe level to log" help:"Least severe level to log. Auto is info, and warn with standard input and output alone, since many clients show the log to their user."`
	LogFormat      string `group:"log" key:"log-format" env:"GLOVEBOX_LOG_FORMAT MSB_LOG_FORMAT" default:"text" kind:"choice" choices:"text json" short:"format of log lines" help:"Format of log lines."`
	LogConsole     bool   `group:"log" key:"log-console" env:"MSB_LOG_CONSOLE" default:"true" kind:"bool" short:"log to standard error" help:"Log to standard error."`
	LogFile        string `group:"log" key:"log-file" env:"MSB_LOG_FILE" default:"" kind:"path" short:"also log to this file" help:"Also log to this file."`
	LogMaxSize     int    `group:"log" key:"log-max-size" env:"MSB_LOG_MAX_SIZE" default:"10485760" kind:"positive" short:"bytes at which the log file rotates" help:"Size at which the log file rotates, in bytes, rounded up to whole MiB."`
	LogBackupCount int    `group:"log" key:"log-backup-count" env:"MSB_LOG_BACKUP_COUNT" default:"5" kind:"positive" short:"rotated log files to keep" help:"Rotated log files to keep."`

	// Traces.
	OTLPEndpoint string `group:"log" key:"otlp-endpoint" env:"GLOVEBOX_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT" default:"" kind:"weburl" short:"send traces to this OTLP/HTTP collector" help:"Send traces to this collector over OTLP/HTTP, at the path /v1/traces below it. The other OpenTelemetry variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, …) apply."`

	// Search is no setting.
	Search SearchSources
}

// SearchSources describes the sources of the settings of web search. Other programs read
// the same variables, so a mistake in one must not stop a server of boxes.
type SearchSources struct {
	Invalid    error  // for each invalid variable; the setting has its default
	Explicit   bool   // a flag or the configuration file has one of the settings
	SecretFile string // the configuration file if it has the key
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

// Volume is a host directory that boxes see.
type Volume struct {
	Host     string // absolute, symbolic links resolved; without the {owner} at its end
	Guest    string // absolute and clean
	ReadOnly bool
	Writable bool  // :rw was given
	Quota    int64 // bytes of each owner's directory, only if PerOwner; 0: none
	// Defaulted says that it is ReadOnly without :ro, since it belongs to root.
	Defaulted bool
	PerOwner  bool // {owner} was given: each owner has a directory of its own below Host
}

// flavorMB is the memory of each flavor in MB, to check MaxTotalMemoryMB.
var flavorMB = map[string]int{"small": 1024, "medium": 2048, "large": 4096}

const cloudless = "boxes run on this machine; there is no cloud account"

// ignored are variables of the servers that Glovebox replaces. They are accepted
// without effect; the value says why.
var ignored = map[string]string{
	"MSB_SERVER_URL":             "boxes run inside Glovebox; there is no server to connect to",
	"MSB_API_KEY":                "boxes run inside Glovebox; there is no server to connect to",
	"MSB_CONNECTION_TIMEOUT":     "boxes run inside Glovebox; there is no server to connect to",
	"MSB_REQUEST_TIMEOUT":        "use MSB_EXECUTION_TIMEOUT",
	"MSB_MAX_TOTAL_CPU_CORES":    "the flavor limits processors for each box",
	"MSB_LOG_STRUCTURED":         "use GLOVEBOX_LOG_FORMAT",
	"PERPLEXITY_BEARER_TOKEN":    "use GLOVEBOX_TOKENS_FILE",
	"PERPLEXITY_CORS_ORIGINS":    "use GLOVEBOX_ALLOWED_ORIGINS",
	"PERPLEXITY_LOG_LEVEL":       "use GLOVEBOX_LOG_LEVEL",
	"PERPLEXITY_RATE_LIMIT":      "use GLOVEBOX_RATE_LIMIT",
	"AGENTRUN_ACCESS_KEY_ID":     cloudless,
	"AGENTRUN_ACCESS_KEY_SECRET": cloudless,
	"AGENTRUN_ACCOUNT_ID":        cloudless,
	"AGENTRUN_REGION":            cloudless,
	"AGENTRUN_INTERPRETER_NAME":  cloudless,
	"AGENTRUN_CPU":               "the flavor sets processors, see MSB_DEFAULT_FLAVOR",
	"AGENTRUN_MEMORY":            "the flavor sets memory, see MSB_DEFAULT_FLAVOR",
	"AGENTRUN_SESSION_TIMEOUT":   "use MSB_SESSION_TIMEOUT",
	"MICROSANDBOX_PYTHON_IMAGE":  "boxes use this machine's Python; see GLOVEBOX_PYTHON",
	"MICROSANDBOX_NODE_IMAGE":    "boxes use this machine's Node; see GLOVEBOX_NODE",
}

// LevelAuto is the log level that depends on the mode.
const LevelAuto = "auto"

// EngineAuto is the engine that this machine can run.
const EngineAuto = "auto"

// FileEnv is the variable that names the configuration file if --config does not.
const FileEnv = "GLOVEBOX_CONFIG"
