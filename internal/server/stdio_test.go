package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestStdio_StopAnswersCallsInFlight: a stopping server answers the calls in flight.
func TestStdio_StopAnswersCallsInFlight(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s := New(Options{Extend: Extension{Alone: true, Tools: slow(release, started)}})
	inr, inw := io.Pipe()
	outr, outw := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer outw.Close()
		ended <- s.ServeStdio(ctx, inr, outw)
	}()
	fmt.Fprintln(inw, initBody)
	answers := bufio.NewScanner(outr)
	answers.Scan()
	fmt.Fprintln(inw, toolCall(1, "slow", "{}"))
	<-started
	cancel()
	release <- struct{}{}
	if !answers.Scan() || !strings.Contains(answers.Text(), "done") {
		t.Errorf("the call in flight: got %q", answers.Text())
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
