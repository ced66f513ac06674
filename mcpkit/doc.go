// Package mcpkit connects to the MCP servers of a configuration such as a user's
// mcp.json, which may come from a stranger. It speaks both eras of the protocol over
// the standard streams of programs, Unix sockets, Streamable HTTP and the older HTTP
// with server-sent events.
//
// The life of a session:
//
//	m := mcpkit.New(mcpkit.Options{Config: cfg})   no side effects
//	s, err := m.Session("github")                  finds the definition, no side effects
//	res, err := s.CallTool(ctx, …)                 checks trust, expands placeholders,
//	                                               starts the server or connects to it,
//	                                               and calls the tool
//	res, err = s.CallTool(ctx, …)                  reuses the connection, or reconnects
//	                                               if it was lost
//	err = m.Close()                                closes connections, waits until
//	                                               programs have exited
//
// Definitions are untrusted by default: see [Trust]. No request is sent twice, unless
// the server reported that it has not processed it.
package mcpkit
