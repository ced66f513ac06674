// Package cassette records the messages between a client and an MCP server in a file,
// and plays the server's part back from it.
//
// A recording consists of lines of JSON. The first identifies the format:
//
//	{"cassette":1,"server":"github","at":"2026-11-21T20:00:00Z"}
//
// Each further connection to the server repeats it. The other lines are messages and
// HTTP heads in the order of time:
//
//	{"at":"…","direction":"sent","message":{"jsonrpc":"2.0","id":1,"method":"tools/list"}}
//	{"at":"…","direction":"received","message":{"jsonrpc":"2.0","id":1,"result":{…}}}
//	{"at":"…","direction":"noise","text":"output of the server that is not a message"}
//	{"at":"…","direction":"received","http":{"status":200,"headers":{…}}}
//
// Secrets are masked before they are written. Each line is one write, so an
// interrupted recording lacks at most the end of its last line.
//
// A [File] as mcpkit.Options.Trace makes a recording, [Load] and [Read] read it, and
// a [Player] as mcpkit.Options.Dial answers requests from it.
package cassette
