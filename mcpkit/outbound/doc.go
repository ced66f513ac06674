// Package outbound restricts where a client of MCP servers may connect to. A URL in an
// untrusted configuration makes this machine send requests: without a policy it reaches
// the cloud's metadata service, the router, and whatever listens on localhost.
//
// Names are resolved when connecting, and the connection uses exactly the addresses
// that were checked, so that a name cannot change its address in between.
//
// The package does not depend on MCP: it uses the server's name only in errors.
package outbound
