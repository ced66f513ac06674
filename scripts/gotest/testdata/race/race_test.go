package race

import (
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/scripts/gotest/testdata/once"
)

func TestRace(t *testing.T) {
	if !once.First(t) {
		return
	}
	n := 0
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() { n++ })
	}
	group.Wait()
}

func TestFlaky(t *testing.T) {
	if once.First(t) {
		t.Error("late")
	}
}
