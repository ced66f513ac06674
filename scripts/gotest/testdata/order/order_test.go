package order

import "testing"

var changed bool

func TestB(t *testing.T) {
	if changed {
		t.Error("it ran after TestA")
	}
}

func TestA(*testing.T) { changed = true }
