package box

import (
	"os"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) {
	panicOnInvalidTransition = true
	os.Exit(proctest.Main(m))
}
