// Package egress connects programs in boxes to the network, as far as a policy allows.
//
// A [Gate] serves the connections that guests open. A guest sends no packets: it asks for
// a name and a port, or speaks to a proxy, and the Gate
//
//  1. decides by the name (package policy),
//  2. resolves the name itself and refuses answers with private addresses (packages
//     resolve and floor),
//  3. dials exactly the addresses that it checked,
//  4. compares the name in the program's TLS or HTTP with the one that was decided on
//     (package peek), and
//  5. copies bytes, within limits.
//
// The guest is hostile: it can ask for anything, but gets no more than programs in it
// would get. The gate reports a refusal to the program in its own protocol, to the model as a note
// and to the operator as a [Record].
//
// Where to look: gate.go and network.go are the entry, serve.go, http.go and flow.go serve a
// connection, limits.go and narrow.go bound it, refusal.go, remedy.go and notes.go make the texts
// of refusals, record.go the line of the audit log. Package secret swaps placeholders of secrets.
package egress
