package kubesim_test

import (
	"os"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }
