package approval

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/truncate"
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
// result with the token, as parseAnswer does.
func parseResponses(m mcp.InputResponseMap, token string, choices [][]Decision) (decisions []Decision, missing string) {
	res, _ := m[answerKey(token)].(*mcp.ElicitResult)
	return parseAnswer(res, choices)
}

// parseAnswer returns the decisions in an answer: one of the choices for each group of
// calls. A form that the person declined denies all. One that they dismissed decides nothing.
// missing says what the answer lacks, in words that follow "the answer"; the calls that it does
// not decide count as dismissed. res is nil if there is no answer.
func parseAnswer(res *mcp.ElicitResult, choices [][]Decision) (decisions []Decision, missing string) {
	all := make([]Decision, len(choices))
	fill := func(d Decision) []Decision {
		for i := range all {
			all[i] = d
		}
		return all
	}
	if res == nil {
		return fill(dismissed), "had no result of this elicitation"
	}
	switch res.Action {
	case "decline":
		return fill(Deny), ""
	case "cancel":
		return fill(dismissed), ""
	case "accept":
	default:
		return fill(dismissed), fmt.Sprintf("had the action %q instead of accept, decline or cancel", brief(res.Action))
	}
	var wrong, undecided []string
	for i, offered := range choices {
		value := res.Content[field(i)]
		text, _ := value.(string)
		if all[i] = Decision(text); slices.Contains(offered, all[i]) {
			continue
		}
		all[i] = dismissed
		if value == nil || value == "" {
			undecided = append(undecided, fmt.Sprintf("%s (%s)", field(i), oneOf(offered)))
		} else {
			wrong = append(wrong, fmt.Sprintf("%s for %s instead of %s", showAnswer(value), field(i), oneOf(offered)))
		}
	}
	if len(undecided) > 0 {
		wrong = append(wrong, "no decision for "+strings.Join(undecided, ", "))
	}
	if len(wrong) > 0 {
		missing = "had " + strings.Join(wrong, " and ")
	}
	return all, missing
}

// maxAnswer bounds a value of an answer in a message, in characters.
const maxAnswer = 40

// showAnswer returns a value that a client gave for a decision, for a message that its person
// reads.
func showAnswer(value any) string {
	switch v := value.(type) {
	case string:
		return withoutMarkup(strconv.Quote(truncate.Runes(v, maxAnswer)))
	case bool, float64:
		return fmt.Sprint(v)
	case []any:
		return "a list"
	}
	return "an object"
}

// oneOf lists choices for a sentence.
func oneOf(choices []Decision) string {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = string(c)
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
