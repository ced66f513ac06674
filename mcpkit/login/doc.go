// Package login logs in to MCP servers that want OAuth, and stays logged in.
//
// The life of a login:
//
//	l := login.New(login.Options{Store: store})  touches nothing
//	h, err := l.Handler(server, policy)          touches nothing
//	err = h.Login(ctx)                           a person says yes in a browser; client
//	                                             and tokens are stored
//	src, err := h.TokenSource(ctx)               the stored token, refreshed ahead of
//	                                             its end
//	err = h.Authorize(ctx, req, res)             what the transport calls when the
//	                                             server refuses a request: the login is
//	                                             refreshed, or begun anew where there is
//	                                             somebody to ask; else [ErrRequired]
//	err = h.Logout(ctx)                          the tokens are revoked and forgotten
//
// Where to log in is what the server says (RFC 9728, RFC 8414), with the fallback of
// the protocol's revision 2025-03-26. Nothing of that is believed further than it
// must be: every address is subject to the outbound policy of the server, a token is
// used for one resource and refreshed at the endpoint that it is from, and an answer
// counts only with the state that was sent and from the issuer that was asked
// (RFC 9207).
//
// Any number of processes may share a store. A refresh token that is good for one
// use is used once: they take turns, and read again when it is theirs.
package login
