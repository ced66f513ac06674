// Package mcpkit connects to the MCP servers of a configuration: those that a user
// has in an mcp.json, whoever wrote it. It speaks both eras of the protocol, over
// the standard streams of programs, Unix sockets, Streamable HTTP and the older
// HTTP with server-sent events.
//
// The life of a session:
//
//	m := mcpkit.New(mcpkit.Options{Config: cfg})   touches nothing
//	s, err := m.Session("github")                  finds the definition, touches nothing
//	res, err := s.CallTool(ctx, …)                 trust is asked, placeholders are
//	                                               expanded, the server is started or
//	                                               connected to, the call is made
//	res, err = s.CallTool(ctx, …)                  over the same connection, or a new
//	                                               one if the server has gone meanwhile
//	err = m.Close()                                ends programs and connections, waits
//
// Nothing is trusted by default: see [Trust]. No request is sent twice, unless its
// server said that it has not looked at it.
package mcpkit
