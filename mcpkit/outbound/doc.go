// Package outbound decides where a client of MCP servers may connect to, and makes
// the HTTP clients that keep to it. A URL in somebody's configuration is a request
// that this machine makes: without a rule it reaches the cloud's metadata service,
// the router and whatever listens on localhost.
//
// What a name stands for is decided when it is dialled: the addresses that were
// looked at are the ones that are connected to, so that a name cannot be one thing
// when it is checked and another when it is used.
//
// The package knows nothing about MCP but that a refusal names the server that it
// is about.
package outbound
