package kubesim

import (
	"cmp"
	"fmt"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"
)

const (
	// bookmarkEvery is how often a watch tells the version at which it is.
	bookmarkEvery = time.Minute
	// watchBatch bounds the events that a watch writes before it flushes.
	watchBatch = 256
)

// list writes a page of a list.
func (s *Server) list(w http.ResponseWriter, r *http.Request, c *call) error {
	q := r.URL.Query()
	c.labels = lastLabel(q.Get("labelSelector"))
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "0"))
	if err != nil {
		return refuse(http.StatusBadRequest, "BadRequest", "limit is no number")
	}
	items, version, next, examined, err := s.store.page(c.resource, q.Get("labelSelector"), q.Get("continue"), limit)
	if err != nil {
		return err
	}
	c.examined = examined
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"%d","continue":%q},"items":[`, version, next)
	for i, o := range items {
		if i > 0 {
			_, _ = w.Write([]byte{','})
		}
		_, _ = w.Write(o.raw)
	}
	_, _ = w.Write([]byte("]}\n"))
	return nil
}

// watch writes the changes of Pods since a version, until the client's time is over.
func (s *Server) watch(w *counting, r *http.Request, c call) {
	q := r.URL.Query()
	c.labels = lastLabel(q.Get("labelSelector"))
	sel, err := parseSelector(q.Get("labelSelector"))
	version, verr := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
	seconds, serr := strconv.Atoi(q.Get("timeoutSeconds"))
	switch {
	case c.user == "":
		err = refuse(http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	case verr != nil || serr != nil || c.resource != pods:
		err = refuse(http.StatusBadRequest, "BadRequest", "want a watch of Pods with resourceVersion and timeoutSeconds")
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		fail(w, err)
		s.counts.add(c.key(w.code), Load{Requests: 1, Bytes: w.bytes})
		return
	}
	s.counts.add(c.key(http.StatusOK), Load{Requests: 1})
	end := time.NewTimer(time.Duration(seconds) * time.Second / time.Duration(s.speed))
	defer end.Stop()
	bookmarks := time.NewTicker(bookmarkEvery / time.Duration(s.speed))
	defer bookmarks.Stop()
	flush := http.NewResponseController(w).Flush
	for at := s.store.after(version); ; {
		found, next, changed, expired := s.store.since(at)
		at = next
		before, events := w.bytes, 0
		switch {
		case expired:
			_, raw := status(refuse(http.StatusGone, "Expired", "too old resource version"))
			fmt.Fprintf(w, "{\"type\":\"ERROR\",\"object\":%s}\n", raw)
		default:
			for _, e := range found {
				version = e.version
				if kind, raw := sel.event(e); kind != "" {
					fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, raw)
					events++
				}
			}
		}
		err := flush()
		s.counts.add(c.key(http.StatusOK), Load{Bytes: w.bytes - before, Events: events})
		if err != nil || expired {
			return
		}
		if len(found) > 0 {
			continue
		}
		over := false
		select {
		case <-changed:
			continue
		case <-bookmarks.C:
		case <-end.C:
			over = true
		case <-r.Context().Done():
			return
		case <-s.running.Done():
			return
		}
		before = w.bytes
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","creationTimestamp":null},"spec":{"containers":null},"status":{}}}`+"\n", version)
		err = flush()
		s.counts.add(c.key(http.StatusOK), Load{Bytes: w.bytes - before})
		if err != nil || over {
			return
		}
	}
}

// after returns the number of the first change after a version; -1: history has lost it.
func (s *store) after(version uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.dropped {
		return -1
	}
	kept := min(s.changes, len(s.history))
	first := s.changes - kept
	return first + sort.Search(kept, func(i int) bool { return s.history[(first+i)%len(s.history)].version > version })
}

// since returns changes from a number on, and the number of the next one. changed is closed when
// there are more. expired says that the history has lost some.
func (s *store) since(at int) (found []change, next int, changed <-chan struct{}, expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at < 0 || s.changes-at > len(s.history) {
		return nil, at, nil, true
	}
	for next = at; next < s.changes && len(found) < watchBatch; next++ {
		found = append(found, s.history[next%len(s.history)])
	}
	return found, next, s.changed, false
}

// event returns what a watch tells of a change; "": nothing.
func (s selector) event(c change) (kind string, raw []byte) {
	was, is := c.before != nil && s.matches(c.before), c.after != nil && s.matches(c.after)
	switch {
	case is && !was:
		return "ADDED", c.after.raw
	case is:
		return "MODIFIED", c.after.raw
	case was && c.after != nil: // to the client, it is gone
		return "DELETED", c.after.raw
	case was:
		return "DELETED", c.last
	}
	return "", nil
}

// selector selects objects by labels: each of the labels has one of the values.
type selector map[string][]string

func (s selector) matches(o *object) bool {
	for key, values := range s {
		have, ok := o.labels[key]
		found := false
		for _, v := range values {
			found = found || v == have
		}
		if !ok || !found {
			return false
		}
	}
	return true
}

// parseSelector parses the selectors "key=value" and "key in (value,value)", separated by
// commas.
func parseSelector(text string) (selector, error) {
	s := make(selector)
	for text != "" {
		var part string
		if key, rest, ok := strings.Cut(text, " in ("); ok && !strings.ContainsAny(key, ",=") {
			values, rest, closed := strings.Cut(rest, ")")
			if !closed {
				return nil, refuse(http.StatusBadRequest, "BadRequest", "unable to parse the selector")
			}
			s[key], text = strings.Split(values, ","), strings.TrimPrefix(rest, ",")
			continue
		}
		part, text, _ = strings.Cut(text, ",")
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, refuse(http.StatusBadRequest, "BadRequest", "unable to parse the selector")
		}
		s[key] = []string{value}
	}
	return s, nil
}

// lastLabel returns the name of the last label of a selector, without its prefix.
func lastLabel(sel string) string {
	keys := strings.FieldsFunc(sel, func(r rune) bool { return r == ',' || r == '=' || r == ' ' })
	last := ""
	for _, k := range keys {
		if _, name, ok := strings.Cut(k, "/"); ok {
			last = name
		}
	}
	return last
}
