package box

import (
	"reflect"
	"testing"
)

// TestOutcome_DirectConnection: a connection to an address, which fails in the guest, is
// among the refused ones, with its destination if the program prints it.
func TestOutcome_DirectConnection(t *testing.T) {
	on, off := networkState{allowed: []string{"pypi"}}, networkState{}
	for _, tt := range []struct {
		stderr string
		want   []Refusal
	}{
		{"OSError: [Errno 101] Network is unreachable", []Refusal{{Why: whyAddress, Count: 1}}},
		{"Error: connect ENETUNREACH 203.0.113.7:443 - Local (0.0.0.0:0)", []Refusal{{Host: "203.0.113.7", Port: 443, Why: whyAddress, Count: 1}}},
		{"Error: connect ENETUNREACH 2001:db8::7:443 - Local (:::0)", []Refusal{{Host: "2001:db8::7", Port: 443, Why: whyAddress, Count: 1}}},
		{"dial tcp 203.0.113.7:80: connect: network is unreachable", []Refusal{{Host: "203.0.113.7", Port: 80, Why: whyAddress, Count: 1}}},
		{"dial tcp [2001:db8::7]:80: connect: network is unreachable", []Refusal{{Host: "2001:db8::7", Port: 80, Why: whyAddress, Count: 1}}},
		{"connect ENETUNREACH 999.0.113.7:99999", []Refusal{{Why: whyAddress, Count: 1}}},
		{"KeyError: 'x'", nil},
	} {
		o := hintInput{failed: true, stderr: tt.stderr}
		if got := on.seen(o); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: got %+v, want %+v", tt.stderr, got, tt.want)
		}
		if got := off.seen(o); got != nil {
			t.Errorf("%q, without a network: got %+v", tt.stderr, got)
		}
	}
	full := networkState{allowed: []string{"pypi"}, refused: make([]Refusal, maxRefusals)}
	if got := full.seen(hintInput{stderr: "Network is unreachable"}); len(got) != maxRefusals {
		t.Errorf("%d refusals, more than %d", len(got), maxRefusals)
	}
}
