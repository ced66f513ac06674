package tools

import "strings"

// CannotAsk is the sentence of the instructions in code mode for a client that cannot ask its user.
const CannotAsk = "This client cannot ask its user: calls of code to tools marked [needs approval] are refused. The operator of this server can allow such tools, with --tool-rules 'allow SERVER TOOL'."

// Instructions returns the server instructions for an offer. Many hosts drop them, so
// the descriptions of the tools do not depend on them.
func Instructions(o Offer) string {
	offered := make(map[string]bool)
	for _, t := range catalogue() {
		offered[t.Def.Name] = t.In(o)
	}
	lines := []string{"Glovebox gives you isolated computers to run code in. Code there cannot harm the user's machine" + noNetwork}
	for _, l := range []struct{ tool, text string }{
		{"execute_code", "execute_code and execute_command: pass the session_id of an answer to continue in the same session, with its variables and files; leave it out for a new one."},
		{"search_tools", "Code there can call the tools of the user's MCP servers; search_tools and describe_tools find them. These calls leave the isolation: they read and change the user's real data."},
		{"run_code", "create_context and run_code: the same under a name. Call create_context once, then run_code with its context_id."},
		{"list_snapshots", "Take a snapshot before something risky and restore it instead of rebuilding; fork to try two ways from the same data."},
		{"upload_file", "upload_file, download_file and list_files move files in and out; relative paths are below the home directory."},
	} {
		if offered[l.tool] {
			lines = append(lines, l.text)
		}
	}
	if o.Volumes && offered["get_volume_path"] {
		lines = append(lines, "Sessions share directories of the host, which get_volume_path lists.")
	}
	return strings.Join(append(lines, "A program that fails is an ordinary answer: read the error, correct the code and run it again."), "\n")
}
