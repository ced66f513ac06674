package remote

import (
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

// FuzzParseTermination reads messages that a guest's root might have written.
func FuzzParseTermination(f *testing.F) {
	f.Add([]byte(`{"exited":137}`))
	f.Add([]byte(`{"exited":-1,"error":"a\n"}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		got, err := ParseTermination(message)
		if err != nil && got != (podlink.Termination{}) {
			t.Errorf("%q: got %+v with error %v", message, got, err)
		}
		if got.Exited != nil && (*got.Exited < 0 || *got.Exited > maxExitCode) {
			t.Errorf("%q: exit code %d", message, *got.Exited)
		}
	})
}

func TestParseTermination_OfForgedMessages(t *testing.T) {
	for message, code := range map[string]int{`{"exited":0}`: 0, `{"exited":255}`: 255, `{"exited":256}`: -1, `{"exited":-1}`: -1, `{}`: -1} {
		got, err := ParseTermination([]byte(message))
		if err != nil {
			t.Errorf("%s: %v", message, err)
		}
		if code < 0 && got.Exited != nil || code >= 0 && (got.Exited == nil || *got.Exited != code) {
			t.Errorf("%s: got exit code %v, want %d (-1: none)", message, got.Exited, code)
		}
	}
	for _, message := range []string{"", "x", `{"exited":"1"}`, `[]`} {
		if got, err := ParseTermination([]byte(message)); err == nil || got != (podlink.Termination{}) {
			t.Errorf("%q: got %+v, error %v; want an error", message, got, err)
		}
	}
}
