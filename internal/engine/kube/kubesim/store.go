package kubesim

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const pods = "pods"

// maxSnapshots bounds the lists in pages whose next page nobody has asked for yet.
const maxSnapshots = 64

// store is the state of the cluster.
type store struct {
	mu        sync.Mutex
	version   uint64                        // guarded by mu; of the last change
	kinds     map[string]map[string]*object // by resource and name; the inner maps are guarded by mu
	changed   chan struct{}                 // guarded by mu; closed at the next change of a Pod
	history   []change                      // guarded by mu; a ring of the changes of Pods
	changes   int                           // guarded by mu; that there were in all
	dropped   uint64                        // guarded by mu; version of the last change that history has lost
	snapshots []*snapshot                   // guarded by mu
	lists     int                           // guarded by mu; that there were
}

// change is a change of a Pod: before is nil for a new one, after for one that is gone.
type change struct {
	version       uint64
	before, after *object
	last          []byte // the object that is gone, at the version of its end
}

// snapshot is what is left of a list in pages, which shows the objects at one version.
type snapshot struct {
	id      string
	version uint64
	rest    []*object
}

func newStore(history int) *store {
	return &store{
		kinds:   map[string]map[string]*object{pods: {}, "leases": {}, "networkpolicies": {}},
		changed: make(chan struct{}), history: make([]change, history),
	}
}

// put stores a version of an object. Callers hold the lock.
func (s *store) put(resource string, before *object, fields map[string]any) *object {
	s.version++
	o := encode(fields, s.version)
	s.kinds[resource][o.name] = o
	if resource == pods {
		s.record(change{version: s.version, before: before, after: o})
	}
	return o
}

// drop removes an object. Callers hold the lock.
func (s *store) drop(resource string, o *object) {
	s.version++
	delete(s.kinds[resource], o.name)
	if resource == pods {
		s.record(change{version: s.version, before: o, last: encode(o.decode(), s.version).raw})
	}
}

func (s *store) record(c change) {
	slot := &s.history[s.changes%len(s.history)]
	if s.changes >= len(s.history) {
		s.dropped = slot.version
	}
	*slot = c
	s.changes++
	close(s.changed)
	s.changed = make(chan struct{})
}

func notFound(resource, name string) error {
	return refuse(http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", resource, name))
}

func conflict(resource, name, why string) error {
	return refuse(http.StatusConflict, "Conflict", fmt.Sprintf("Operation cannot be fulfilled on %s %q: %s", resource, name, why))
}

func (s *store) create(resource, user string, fields map[string]any) (*object, error) {
	name, _ := child(fields, "metadata")["name"].(string)
	if name == "" || len(name) > 253 {
		return nil, refuse(http.StatusUnprocessableEntity, "Invalid", "metadata.name: Required value")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds[resource][name] != nil {
		return nil, refuse(http.StatusConflict, "AlreadyExists", fmt.Sprintf("%s %q already exists", resource, name))
	}
	complete(resource, user, fields, s.version+1)
	return s.put(resource, nil, fields), nil
}

func (s *store) get(resource, name string) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.kinds[resource][name]; o != nil {
		return o, nil
	}
	return nil, notFound(resource, name)
}

// differs says why an object is not the one that a request is about; "": it is. Without a UID
// or a version, every object is.
func (o *object) differs(meta map[string]any) string {
	if uid, ok := meta["uid"].(string); ok && uid != o.uid {
		return fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, o.uid)
	}
	if version, ok := meta["resourceVersion"].(string); ok && version != strconv.FormatUint(o.version, 10) {
		return "the object has been modified; please apply your changes to the latest version and try again"
	}
	return ""
}

func (s *store) patch(resource, name string, patch map[string]any) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.kinds[resource][name]
	if o == nil {
		return nil, notFound(resource, name)
	}
	meta, _ := patch["metadata"].(map[string]any)
	if why := o.differs(meta); why != "" {
		return nil, conflict(resource, name, why)
	}
	if resource == pods && (patch["spec"] != nil || patch["status"] != nil) {
		return nil, refuse(http.StatusUnprocessableEntity, "Invalid", "pod updates may not change fields other than metadata")
	}
	fields := o.decode()
	merge(fields, patch)
	if bytes.Equal(encode(fields, o.version).raw, o.raw) {
		return o, nil // as a cluster: what changes nothing makes no version
	}
	return s.put(resource, o, fields), nil
}

// remove deletes an object. A Pod on a node stays until the kubelet has ended it: then end is
// true, once.
func (s *store) remove(resource, name string, options map[string]any) (o *object, end bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o = s.kinds[resource][name]; o == nil {
		return nil, false, notFound(resource, name)
	}
	preconditions, _ := options["preconditions"].(map[string]any)
	if why := o.differs(preconditions); why != "" {
		return nil, false, conflict(resource, name, why)
	}
	grace, given := options["gracePeriodSeconds"].(float64)
	switch {
	case resource != pods, !o.bound, given && grace == 0:
		s.drop(resource, o)
		return o, false, nil
	case o.deleting:
		return o, false, nil
	}
	fields := o.decode()
	meta := child(fields, "metadata")
	meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = timestamp(), grace
	return s.put(resource, o, fields), true, nil
}

// update changes a Pod, unless it is gone or skip holds.
func (s *store) update(name, uid string, skip func(*object) bool, apply func(map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.kinds[pods][name]
	if o == nil || o.uid != uid || skip(o) {
		return
	}
	fields := o.decode()
	apply(fields)
	s.put(pods, o, fields)
}

// finish removes a Pod that has ended.
func (s *store) finish(name, uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.kinds[pods][name]; o != nil && o.uid == uid {
		s.drop(pods, o)
	}
}

// page returns the next objects of a list that sel selects, at most limit, with the version of
// the list, and the token of the next page. examined is how many objects there were to look
// at.
func (s *store) page(resource, sel, token string, limit int) (items []*object, version uint64, next string, examined int, err error) {
	selected, err := parseSelector(sel)
	if err != nil {
		return nil, 0, "", 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var snap *snapshot
	if token == "" {
		s.lists++
		snap = &snapshot{id: strconv.Itoa(s.lists), version: s.version}
		for _, o := range s.kinds[resource] {
			if selected.matches(o) {
				snap.rest = append(snap.rest, o)
			}
		}
		examined = len(s.kinds[resource])
		slices.SortFunc(snap.rest, func(a, b *object) int { return strings.Compare(a.name, b.name) })
	} else {
		i := slices.IndexFunc(s.snapshots, func(n *snapshot) bool { return n.id == token })
		if i < 0 {
			return nil, 0, "", 0, refuse(http.StatusGone, "Expired", "The provided continue parameter is too old to display a consistent list result")
		}
		snap = s.snapshots[i]
		s.snapshots = slices.Delete(s.snapshots, i, i+1)
	}
	items = snap.rest
	if limit > 0 && len(items) > limit {
		// Each page has a token of its own, as in a cluster.
		s.lists++
		snap = &snapshot{id: strconv.Itoa(s.lists), version: snap.version, rest: items[limit:]}
		items, next = items[:limit], snap.id
		if len(s.snapshots) == maxSnapshots {
			s.snapshots = slices.Delete(s.snapshots, 0, 1)
		}
		s.snapshots = append(s.snapshots, snap)
	}
	return items, snap.version, next, examined, nil
}
