//go:build linux

package tools

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// Many large figures do not make a result that hosts refuse: those that are left out
// are named as files.
func TestAttach_IsBounded(t *testing.T) {
	image := func(size int) box.Image { return box.Image{MIME: "image/png", Data: make([]byte, size)} }
	for _, c := range []struct {
		sizes []int
		want  int
		note  string
	}{
		{nil, 0, ""},
		{[]int{1000, 2000}, 2, ""},
		{[]int{maxAttached + 1}, 1, ""}, // one figure is shown whatever it takes
		{[]int{maxAttached + 1, 10}, 1, "1 of 2 figures"},
		{[]int{1 << 20, 1 << 20, 1 << 20, 1, 1}, 3, "2 of 5 figures"},
	} {
		var images []box.Image
		for _, size := range c.sizes {
			images = append(images, image(size))
		}
		attached, notes := attach(images)
		note := strings.Join(notes, " ")
		if len(attached) != c.want || (note == "") != (c.note == "") || !strings.HasPrefix(note, c.note) {
			t.Errorf("figures of %v bytes: %d attached with the note %q, want %d and %q", c.sizes, len(attached), note, c.want, c.note)
		}
	}
}
