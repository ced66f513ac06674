package server

import (
	"errors"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// TestStream_KeptEventsNeedRoom: a connection gets the kept events of a stream, resumed or that of
// the session, only if the limit of unread answers has room for all of them.
func TestStream_KeptEventsNeedRoom(t *testing.T) {
	r := newReplay(1 << 20)
	r.open("s", account{})
	own, call := newStream("", "s", "", 1, r), newStream("call", "s", revision.Resumable, 1, r)
	own.queued = true
	for _, st := range []*stream{own, call} {
		for range 2 {
			if err := st.send([]byte("1234")); err != nil {
				t.Fatal(err)
			}
		}
	}
	charged := 0
	noRoom := func(events []event) bool {
		charged = 0
		for _, e := range events {
			charged += len(e.data)
		}
		return false
	}
	res := &response{}
	for name, attach := range map[string]func() error{
		"the stream of the session":          func() error { _, err := own.listen(res, noRoom); return err },
		"the stream of the session, resumed": func() error { _, err := own.resume(res, -1, noRoom); return err },
		"the stream of a call, resumed":      func() error { _, err := call.resume(res, 0, noRoom); return err },
	} {
		if err := attach(); !errors.Is(err, errNoRoom) || charged != 8 {
			t.Errorf("%s: charged %d bytes, got %v; want 8 and no room", name, charged, err)
		}
	}
	if own.res != nil || call.res != nil {
		t.Error("a stream without room has a connection")
	}
}
