package flaky

import (
	"testing"

	"github.com/glovebox-dev/glovebox/scripts/gotest/testdata/once"
)

func TestFlaky(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if once.First(t) {
			t.Error("late")
		}
	})
}

func TestFlaky2(t *testing.T) {
	if once.First(t) {
		t.Error("late")
	}
}

func TestFlaky3(t *testing.T) {
	if once.First(t) {
		t.Error("late")
	}
}

func TestFlaky4(t *testing.T) {
	if once.First(t) {
		t.Error("late")
	}
}

func TestBroken(t *testing.T) {
	once.First(t)
	t.Error("wrong")
}

func TestSkippedLater(t *testing.T) {
	if !once.First(t) {
		t.Skip("not this time")
	}
	t.Error("late")
}

func TestGood(t *testing.T) {
	once.First(t)
	t.Log("all is well")
}

func TestSkipped(t *testing.T) {
	t.Skip("never")
}

func TestParts(t *testing.T) {
	t.Run("one", func(*testing.T) {})
	t.Run("two", func(t *testing.T) { t.Skip("not this part") })
}
