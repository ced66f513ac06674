package kubeapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// maxEvent bounds one event of a watch: etcd holds objects of 1.5 MiB.
	maxEvent = 4 << 20
	// watchFor is how long one watch lasts; the next one continues.
	watchFor = 5 * time.Minute
)

// ErrExpired means that the cluster has forgotten the version at which a watch should
// begin: list again.
var ErrExpired = errors.New("the cluster has forgotten the version of the watch")

// Event is a change of a Pod.
type Event struct {
	Deleted bool
	Pod     *Pod
}

// WatchPods calls each for the changes of the Pods with the labels since a version,
// until the watch ends, as it does after some minutes, or ctx does. It returns the
// version at which to continue. each must not block.
func (c *Client) WatchPods(ctx context.Context, namespace, selector, version string, each func(Event)) (string, error) {
	// A connection that died without a sign must not hold the watch for ever.
	ctx, cancel := context.WithTimeout(ctx, watchFor+requestWait)
	defer cancel()
	res, err := c.open(ctx, request{method: http.MethodGet, path: pods(namespace), query: url.Values{
		"watch": {"1"}, "labelSelector": {selector}, "resourceVersion": {version},
		"allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(watchFor.Seconds()))},
	}})
	if err != nil {
		if Code(err) == http.StatusGone {
			err = ErrExpired
		}
		return version, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	for lines.Scan() {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return version, fmt.Errorf("watch Pods: an event is not what Kubernetes sends: %w", err)
		}
		if e.Type == "ERROR" {
			return version, watchError(e.Object)
		}
		pod := new(Pod)
		if err := json.Unmarshal(e.Object, pod); err != nil {
			return version, fmt.Errorf("watch Pods: an event is not what Kubernetes sends: %w", err)
		}
		version = pod.Metadata.ResourceVersion
		switch e.Type {
		case "ADDED", "MODIFIED":
			each(Event{Pod: pod})
		case "DELETED":
			each(Event{Pod: pod, Deleted: true})
		}
	}
	return version, lines.Err()
}

// watchError makes an error of the object of an ERROR event.
func watchError(b []byte) error {
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("watch Pods: an error is not what Kubernetes sends: %w", err)
	}
	if s.Code == http.StatusGone {
		return ErrExpired
	}
	return &StatusError{Op: "watch Pods", Code: s.Code, Reason: line(s.Reason, 80), Message: line(s.Message, 1000)}
}
