package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
)

func TestOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpening()
		begun := time.Now()
		if _, err := o.await(t.Context()); box.CodeOf(err) != box.CodeNotReady || time.Since(begun) != openLimit {
			t.Errorf("a start that takes too long: got %v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.await(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that is cancelled: got %v", err)
		}
		m := box.New(box.DefaultConfig(), box.Parts{})
		time.AfterFunc(time.Second, func() { o.finish(m, nil) })
		if got, err := o.await(t.Context()); got != m || err != nil {
			t.Errorf("got %p, %v; want %p", got, err, m)
		}
		failed := newOpening()
		failed.finish(nil, errors.New("no namespaces"))
		if _, err := failed.await(t.Context()); box.CodeOf(err) != box.CodeNotReady || !strings.Contains(err.Error(), "no namespaces") {
			t.Errorf("a start that failed: got %v", err)
		}
	})
}
