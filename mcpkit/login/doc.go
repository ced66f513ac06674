// Package login logs in to MCP servers that require OAuth, and keeps the logins fresh.
//
// The life of a login:
//
//	l := login.New(login.Options{Store: store})  no side effects
//	h, err := l.Handler(server, policy)          no side effects
//	err = h.Login(ctx)                           the user approves in a browser; client
//	                                             and tokens are stored
//	src, err := h.TokenSource(ctx)               the stored token, refreshed before it
//	                                             expires
//	err = h.Authorize(ctx, req, res)             called by the transport when the server
//	                                             refuses a request: refreshes the login,
//	                                             or starts a new one if a user can be
//	                                             asked; otherwise [ErrRequired]
//	err = h.Logout(ctx)                          revokes and deletes the tokens
//
// The server names its authorization server (RFC 9728, RFC 8414); servers of the
// revision 2025-03-26 are their own. The package trusts this metadata as little as
// possible: every address is subject to the server's outbound policy, a token is used
// for one resource and refreshed at the endpoint that issued it, and a response counts
// only with the state that was sent and from the issuer that was asked (RFC 9207).
//
// The types of metadata come from the SDK's package oauthex, but not its functions that
// fetch them or register clients. Those refuse private addresses even for servers that
// the user trusts, accept only metadata whose resource is the endpoint itself, treat a
// missing document and a broken one alike, require PKCE of clients that log in as
// themselves, cannot read metadata of an issuer that is not known beforehand, reject a
// registration for the form of a member that is not needed, and quote response bodies,
// which may contain secrets, in their errors.
//
// Any number of processes may share a store. They take turns to refresh, and reread the
// login first, because a refresh token may be valid for a single use.
package login
