package tools

import (
	"fmt"
	"testing"
)

// TestNearestID_IsBounded: an unknown id is compared letter by letter with the newest
// boxes only, however many an owner has on disk.
func TestNearestID_IsBounded(t *testing.T) {
	var ids []string
	for i := range 10_000 {
		ids = append(ids, fmt.Sprintf("%05d-box", i))
	}
	ids = append(ids, "the-oldest-session")
	if got := nearestID("the-oldest-sessoin", ids); got != "" {
		t.Errorf("among %d boxes: got %q, want no comparison with it", len(ids), got)
	}
	if got := nearestID("the-oldest-sessoin", ids[len(ids)-maxCompared:]); got != "the-oldest-session" {
		t.Errorf("among %d boxes: got %q", maxCompared, got)
	}
	if got := nearestID("the-oldest-se…", ids); got != "the-oldest-session" {
		t.Errorf("the beginning of an id: got %q", got)
	}
}
