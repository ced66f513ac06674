package box

import (
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

func TestObserve(t *testing.T) {
	events := make(chan Event, 10)
	f := newFixture(t, nil)
	f.parts.Observe = func(e Event) { events <- e }
	f.session(t, "", "a")
	f.context(t, "", "c")
	for _, kind := range []Kind{KindSession, KindContext} {
		e := <-events
		if e.Took <= 0 {
			t.Errorf("got %+v, want how long it took", e)
		}
		e.Took = 0
		if want := (Event{Type: EventStart, Kind: kind, Flavor: FlavorSmall, Source: SourceBoot}); e != want {
			t.Errorf("got %+v, want %+v", e, want)
		}
	}
	f.engine.set(engine.ErrExhausted, nil)
	if _, _, err := f.Session(t.Context(), "", SessionOptions{ID: "b"}); err == nil {
		t.Error("no error from an engine that has one")
	}
	if e := <-events; !e.Failed || e.Type != EventStart {
		t.Errorf("got %+v, want a start that failed", e)
	}
}
