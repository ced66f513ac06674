package egress

import (
	"fmt"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// byReason counts the records of a world by reason and box.
func (w *world) byReason() map[string]int {
	got := map[string]int{}
	for _, r := range w.recorded() {
		got[fmt.Sprint(r.Reason, " of ", r.Box.ID)]++
	}
	return got
}

// A program that causes many events of one kind, such as lookups of names that do not exist,
// hides no refusal of another kind, and none of another box.
func TestRecords_KindsHideNoOther(t *testing.T) {
	for name, flood := range map[policy.Reason]func(w *world){
		Unresolved:    func(w *world) { w.n.Lookup(t.Context(), "gone.example.org") },
		policy.NoRule: func(w *world) { w.n.Lookup(t.Context(), "evil.example.com") },
		policy.Name:   func(w *world) { w.n.Lookup(t.Context(), "a..b") },
	} {
		w := newWorld(t, Options{Resolver: noNames{}}, []string{"*.example.org"})
		for range 30 {
			flood(w)
		}
		if got := w.byReason()[fmt.Sprint(name, " of box-1")]; got < refusalBurst || got > refusalBurst+1 {
			t.Errorf("30 events of the reason %s have %d records, want %d", name, got, refusalBurst)
		}
		w.n.Lookup(t.Context(), "gone.example.org")
		w.n.Lookup(t.Context(), "evil.example.com")
		w.n.Lookup(t.Context(), "a..b")
		got := w.byReason()
		for _, reason := range []policy.Reason{Unresolved, policy.NoRule, policy.Name} {
			if got[fmt.Sprint(reason, " of box-1")] == 0 {
				t.Errorf("after 30 events of the reason %s, one of %s has no record: %v", name, reason, got)
			}
		}
		other := w.g.Open(Box{Owner: "alice", ID: "box-2"})
		other.Lookup(t.Context(), "evil.example.com")
		other.Close()
		if got := w.byReason(); got[fmt.Sprint(policy.NoRule, " of box-2")] != 1 {
			t.Errorf("after 30 events of the reason %s in one box, a refusal of another has no record: %v", name, got)
		}
	}
}

// An owner with many boxes, or with many new ones, gets no more records for each reason, and
// the next one counts those that had none.
func TestRecords_OfManyBoxesAreBounded(t *testing.T) {
	w := newWorld(t, Options{}, []string{"good.example.org"})
	for i := range 40 {
		n := w.g.Open(Box{Owner: "alice", ID: fmt.Sprint("new-", i)})
		for range 10 {
			n.Lookup(t.Context(), "evil.example.com")
		}
		n.Close()
	}
	got, ends := 0, 0
	counted := int64(0)
	for _, r := range w.recorded() {
		if r.Reason == "" {
			ends++
		} else {
			got++
		}
		counted += r.Omitted
	}
	// The limits begin to refill while the test runs.
	if got < ownerRefusalBurst || got > ownerRefusalBurst+2 {
		t.Errorf("400 refusals in 40 boxes have %d records, want %d", got, ownerRefusalBurst)
	}
	if ends != 40 || counted != 400-int64(got) {
		t.Errorf("%d records at the ends of 40 boxes, and all count %d omitted; want one for each box, and %d", ends, counted, 400-got)
	}
	w.n.recordable(policy.NoRule) // the owner has none left
	w.n.owner.records = newRecordLimits(1)
	if omitted, ok := w.n.recordable(policy.NoRule); !ok || omitted != 1 {
		t.Errorf("once the owner has records again: %t with %d omitted, want one with 1", ok, omitted)
	}
}

// When a box ends, one record counts the refusals that have none, also those that the other
// boxes of the owner have kept from the log.
func TestRecords_EndOfBoxCountsOmitted(t *testing.T) {
	w := newWorld(t, Options{}, []string{"good.example.org"})
	for range ownerRefusalBurst {
		w.n.owner.records[policy.NoRule].Allow() // other boxes of the owner
	}
	n := w.g.Open(Box{Owner: "alice", ID: "quiet"})
	n.Lookup(t.Context(), "evil.example.com")
	for range refusalBurst + 6 {
		n.Lookup(t.Context(), "a..b")
	}
	n.Close()
	n.Close()
	var last []Record
	counted := int64(0)
	for _, r := range w.recorded() {
		if r.Box.ID != "quiet" {
			continue
		}
		if counted += r.Omitted; r.Reason == "" {
			last = append(last, r)
		} else {
			counted++
		}
	}
	if len(last) != 1 || last[0].Outcome != Refused || last[0].Host+last[0].Site+last[0].Door != "" || counted != refusalBurst+7 {
		t.Errorf("%d refusals are counted, the last in %+v; want %d, and one record of the end of the box", counted, last, refusalBurst+7)
	}
	still := w.g.Open(Box{Owner: "alice", ID: "still"})
	still.Close()
	for _, r := range w.recorded() {
		if r.Box.ID == "still" {
			t.Errorf("a box without refusals has the record %+v", r)
		}
	}
}

// Each reason that a refusal may have is bounded.
func TestRecords_EveryReasonHasALimit(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	for _, reason := range append(Reasons(), Unresolved) {
		if _, ok := w.n.recordable(reason); !ok {
			t.Errorf("the first event of the reason %s has no record", reason)
		}
	}
	if len(w.n.records) != len(Reasons())+1 || w.n.owner.records.full() {
		t.Errorf("%d limits, and those of the owner are full: %t", len(w.n.records), w.n.owner.records.full())
	}
}
