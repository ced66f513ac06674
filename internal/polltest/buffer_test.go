package polltest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

func TestBuffer_ReadWhileWritten(t *testing.T) {
	var b polltest.Buffer
	go func() {
		for i := range 100 {
			fmt.Fprintf(&b, "line %d\n", i)
		}
	}()
	polltest.Until(t, 10*time.Second, "all lines are there", func() bool { return strings.HasSuffix(b.String(), "line 99\n") })
	if n := strings.Count(b.String(), "\n"); n != 100 {
		t.Errorf("got %d lines, want 100", n)
	}
}
