package perplexity

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestSplitRelated_Elements: the list of related questions has at most as many elements as any other;
// a longer one stays in the text.
func TestSplitRelated_Elements(t *testing.T) {
	for n, want := range map[int]int{maxElements: maxElements, maxElements + 1: 0} {
		text := "answer\n\nRelated Questions:\n" + strings.Repeat("- why?\n", n)
		rest, related := splitRelated(text)
		if len(related) != want || (rest == text) != (want == 0) {
			t.Errorf("of %d questions, %d are in the list, want %d; %d bytes of %d are left", n, len(related), want, len(rest), len(text))
		}
	}
}

// TestList_Elements: a list of the API has at most maxElements elements.
func TestList_Elements(t *testing.T) {
	for n, ok := range map[int]bool{maxElements: true, maxElements + 1: false} {
		var l list[int]
		err := json.Unmarshal([]byte("["+strings.Repeat("0,", n-1)+"0]"), &l)
		if (err == nil) != ok || ok && len(l) != n {
			t.Errorf("a list of %d elements: got %d, %v", n, len(l), err)
		}
	}
}
