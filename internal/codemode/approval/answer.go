package approval

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// answerKey returns the key of the only input request in a result. It names the question: an
// answer that reaches the server without the state, as that to a task does, counts for no
// other question.
func answerKey(state string) string { return "approval-" + state }

// tokenSize is the length of a token.
const tokenSize = 26

// newToken returns the token of a question, which is unguessable. The question itself
// stays on the server.
func newToken() string { return rand.Text() }

// validToken reports whether a text from a client has the form of a token.
func validToken(s string) bool {
	if len(s) != tokenSize {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// parseResponses returns the decisions in the answer of a client to the input-required
// result with the token: one of the choices for each group of calls.
func parseResponses(m mcp.InputResponseMap, token string, choices [][]Decision) ([]Decision, error) {
	key := answerKey(token)
	res, ok := m[key].(*mcp.ElicitResult)
	if !ok {
		return nil, fmt.Errorf("inputResponses has no elicitation result for the key %q", key)
	}
	return parseAnswer(res, choices)
}

// parseAnswer returns the decisions in an answer: one of the choices for each group of
// calls. A form that the person declined denies all. One that they dismissed decides nothing.
func parseAnswer(res *mcp.ElicitResult, choices [][]Decision) ([]Decision, error) {
	if res == nil {
		return nil, errors.New("the answer is empty")
	}
	all := make([]Decision, len(choices))
	switch res.Action {
	case "decline":
		for i := range all {
			all[i] = Deny
		}
		return all, nil
	case "cancel":
		for i := range all {
			all[i] = dismissed
		}
		return all, nil
	case "accept":
	default:
		return nil, fmt.Errorf("unknown action %q: want accept, decline or cancel", brief(res.Action))
	}
	for i, offered := range choices {
		text, _ := res.Content[field(i)].(string)
		if !slices.Contains(offered, Decision(text)) {
			return nil, fmt.Errorf("the answer has no valid decision for %s: want one of %q", field(i), offered)
		}
		all[i] = Decision(text)
	}
	return all, nil
}
