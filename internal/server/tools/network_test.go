package tools

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// The sentence about the missing network is in the description of each tool that has one,
// so that it can be replaced.
func TestWithNetwork(t *testing.T) {
	found := 0
	for _, tool := range All() {
		online := WithNetwork(tool.Def, Network{Allowed: []string{"pypi", "npm"}})
		narrows := slices.Contains([]string{"execute_code", "execute_command", "create_context"}, tool.Def.Name)
		if has := func(def *mcp.Tool) bool { return strings.Contains(fmt.Sprintf("%s", def.InputSchema), `"network":`) }; has(tool.Def) || has(online) != narrows {
			t.Errorf("%s: the argument network: %t, with a network %t, want it of %t", tool.Def.Name, has(tool.Def), has(online), narrows)
		}
		if (tool.offline == "" && !narrows) != (online == tool.Def) || strings.Contains(tool.Def.Description, "no network") != (tool.offline != "") {
			t.Errorf("%s: offline %q, description %q", tool.Def.Name, tool.offline, tool.Def.Description)
		}
		if tool.offline == "" {
			continue
		}
		found++
		if strings.Count(tool.Def.Description, tool.offline) != 1 || !strings.Contains(online.Description, "Network: pypi, npm; everything else is refused.") ||
			strings.Contains(online.Description, tool.offline) {
			t.Errorf("%s: with a network: %q", tool.Def.Name, online.Description)
		}
	}
	if found != 3 {
		t.Errorf("%d tools mention the network, want 3", found)
	}
	offer := Offer{Sets: []string{EverySet}}
	if got := InstructionsWithNetwork(Instructions(offer), Network{Allowed: []string{"npm"}}); !strings.Contains(got, "user's machine. Network: npm; everything else is refused.\n") {
		t.Errorf("instructions: got %q", got)
	}
}

// A model learns where the placeholder in a variable works.
func TestWithNetwork_Secrets(t *testing.T) {
	n := Network{Allowed: []string{"npm"}, Secrets: []string{"API_TOKEN (Authorization at https://api.example.org)", strings.Repeat("x", maxListText), "B", "C"}}
	const want = "Network: npm; everything else is refused. Variables with placeholders of secrets, each replaced only in this header at this host: " +
		"API_TOKEN (Authorization at https://api.example.org), 3 more."
	if got := n.text(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A long policy does not make descriptions long.
func TestWithNetwork_LongPolicy(t *testing.T) {
	var many []string
	for i := range 250 {
		many = append(many, fmt.Sprintf("host-%d.example.org", i))
	}
	got := Network{Allowed: many}.text()
	if len(got) > maxListText+100 || !strings.Contains(got, "host-0.example.org, ") || !strings.Contains(got, " more; everything else is refused.") {
		t.Errorf("got %q", got)
	}
}

func TestNetworkOut(t *testing.T) {
	if newNetworkOut(nil, 0) != nil {
		t.Error("a result without refusals has the member network")
	}
	data, err := plainjson.Marshal(newNetworkOut([]box.Refusal{
		{Host: "a.example", Port: 443, Why: "no_rule", Text: "not repeated", Count: 2}, {Host: "b.example", Port: 80, Why: "unencrypted", Count: 1, Other: true},
	}, 3))
	if want := `{"more":3,"other":[{"host":"b.example","port":80,"why":"unencrypted","count":1}],"refused":[{"host":"a.example","port":443,"why":"no_rule","count":2}]}`; err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
}

// A call that makes a session without a network and fails for want of one says so once.
func TestWithNotes_NetworkOnce(t *testing.T) {
	made := []string{"There was no session a: this is a new one.", "This session has no network."}
	for name, test := range map[string]struct{ result, want []string }{
		"success": {nil, made},
		"refused": {[]string{"This session has no network, since its template has none. Retries fail as well."},
			[]string{made[0], "This session has no network, since its template has none. Retries fail as well."}},
		"missing module": {[]string{"The module 'x' was not found, and this session has no network to install it from."},
			[]string{made[0], "The module 'x' was not found, and this session has no network to install it from."}},
		"another failure": {[]string{"There is no terminal."}, append(slices.Clip(made), "There is no terminal.")},
	} {
		if got := withNotes(made, test.result); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
