package approval

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestExpired_RepetitionNamesTheBox: the first request of a program that expired left the choice of
// the box to the server. One that names this box repeats it, whether it has got the question or not.
func TestExpired_RepetitionNamesTheBox(t *testing.T) {
	for name, recalled := range map[string]bool{"with the question": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				first := Caller{Owner: "o", Key: "k", Program: "p", ByResult: true}
				named := first
				named.Key, named.Box = "k of b", "b"
				if _, err := w.Serve(t.Context(), first, w.program(`write {}`)); err != nil {
					t.Fatal(err)
				}
				if recalled {
					time.Sleep(time.Minute)
					named.Began = time.Now()
					if w.Recall(named, "b") == nil {
						t.Fatal("the question is not asked again")
					}
				}
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				for name, f := range map[string]func(c *Caller){
					"another owner":   func(c *Caller) { c.Owner = "other" },
					"another session": func(c *Caller) { c.Session = "other" },
					"another program": func(c *Caller) { c.Key, c.Program = "other", "other" },
					"another box":     func(c *Caller) { c.Key, c.Box = "k of c", "c" },
				} {
					other := named
					f(&other)
					if e, ok := w.Expired(other); ok {
						t.Errorf("%s: got %+v", name, e)
					}
				}
				if _, ok := w.Expired(named); !ok {
					t.Error("the repetition is not told that the program has expired")
				}
				for _, c := range []Caller{named, first} {
					if e, ok := w.Expired(c); ok {
						t.Errorf("a second time, with the key %q: got %+v", c.Key, e)
					}
				}
			})
		})
	}
}
