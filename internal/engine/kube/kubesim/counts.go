package kubesim

import (
	"maps"
	"net/http"
	"sync"
)

// Key says what requests have in common that are counted together.
type Key struct {
	User     string
	Verb     string // as in a role: create, get, list, watch, patch, delete
	Resource string
	// Labels is the last label that a list or a watch selects by: it tells a list of all boxes from
	// a look-up.
	Labels string
	Code   int // of HTTP
}

// Load is what requests cost.
type Load struct {
	Requests int
	Bytes    int64 // of answers, before compression
	Examined int   // objects that lists compared with their selector
	Events   int   // of watches
}

// Plus returns the sum of two loads.
func (l Load) Plus(o Load) Load {
	return Load{l.Requests + o.Requests, l.Bytes + o.Bytes, l.Examined + o.Examined, l.Events + o.Events}
}

// Counts are the loads since the start of a Server.
type Counts map[Key]Load

// Since returns what was added to earlier counts.
func (c Counts) Since(earlier Counts) Counts {
	added := make(Counts)
	for k, l := range c {
		e := earlier[k]
		if d := (Load{l.Requests - e.Requests, l.Bytes - e.Bytes, l.Examined - e.Examined, l.Events - e.Events}); d != (Load{}) {
			added[k] = d
		}
	}
	return added
}

// Sum returns the load of the keys for which match holds.
func (c Counts) Sum(match func(Key) bool) (sum Load) {
	for k, l := range c {
		if match(k) {
			sum = sum.Plus(l)
		}
	}
	return sum
}

// Counts returns what was counted so far.
func (s *Server) Counts() Counts {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	return maps.Clone(s.counts.by)
}

type counts struct {
	mu sync.Mutex
	by Counts // guarded by mu
}

func (c *counts) add(k Key, l Load) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = make(Counts)
	}
	c.by[k] = c.by[k].Plus(l)
}

// counting counts what is written.
type counting struct {
	http.ResponseWriter
	code  int
	bytes int64
}

// WriteHeader remembers the status.
func (w *counting) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Write counts the bytes.
func (w *counting) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush.
func (w *counting) Unwrap() http.ResponseWriter { return w.ResponseWriter }
