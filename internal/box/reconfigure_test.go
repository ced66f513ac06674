package box

import (
	"strings"
	"testing"
	"time"
)

func TestReconfigure(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions, c.Evict = 1, false })
	f.session(t, "", "a")
	if _, _, err := f.Session(t.Context(), "", SessionOptions{ID: "b"}); CodeOf(err) != CodeLimit {
		t.Fatalf("a box over the limit: got %v", err)
	}
	more := *f.cfg()
	more.MaxSessions, more.ExecTimeout, more.PoolSize = 2, 7*time.Second, 9
	if err := f.Reconfigure(more); err != nil {
		t.Fatal(err)
	}
	b := f.session(t, "", "b")
	if d, err := b.timeout("x", 0); err != nil || d != 7*time.Second {
		t.Errorf("timeout: got %v, %v", d, err)
	}
	if f.cfg().PoolSize == 9 {
		t.Error("the size of the pool was taken over, and the pool was not")
	}
	less := more
	less.MaxSessions = 1
	if err := f.Reconfigure(less); err != nil {
		t.Fatal(err)
	}
	f.wantIDs(t, "", "a", "b") // nothing is ended
	if st := f.Stats(); st.MaxSessions != 1 || st.Sessions != 2 {
		t.Errorf("got %+v", st)
	}
	wrong := less
	wrong.IdleTimeout = time.Second
	if err := f.Reconfigure(wrong); err == nil || !strings.Contains(err.Error(), "cleanup interval") || f.cfg().IdleTimeout == time.Second {
		t.Errorf("a timeout that makes no sense: got %v", err)
	}
}
