//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// vitals are the metrics in which leaks show.
type vitals struct {
	goroutines, descriptors float64
	heap                    float64 // bytes that a collection leaves
}

// errNoMetrics means that the binary has no metrics.
var errNoMetrics = errors.New(notOffered)

// leakMetrics reads the metrics from the server, under enough work for several runs of its
// garbage collector.
func (s *server) leakMetrics(ctx context.Context) (vitals, error) {
	churn := newPoster(s.url, map[string]string{"Accept": both}, []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), `"tools"`)
	defer churn.close()
	var v vitals
	for turn := range 24 {
		for range 12 { // leaves 4 MB of garbage or more
			if _, err := churn.post(ctx); err != nil {
				return v, err
			}
		}
		told, err := s.metrics(ctx)
		if err != nil {
			return v, err
		}
		heap := told["go_memstats_heap_alloc_bytes"]
		if turn == 0 || heap < v.heap {
			v.heap = heap
		}
		v.goroutines, v.descriptors = told["go_goroutines"], told["process_open_fds"]
	}
	return v, nil
}

// hibernated counts the hibernated contexts. list_contexts shows the newest only.
func (s *server) hibernated(ctx context.Context) (int, error) {
	told, err := s.metrics(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for name, value := range told {
		if strings.HasPrefix(name, "glovebox_boxes{") && strings.Contains(name, `state="hibernated"`) && strings.Contains(name, `kind="context"`) {
			n += int(value)
		}
	}
	return n, nil
}

// metrics reads the metrics. A metric with labels is named with them.
func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	at, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.JoinPath("/../metrics").String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return nil, errNoMetrics
	}
	told := make(map[string]float64)
	for lines := bufio.NewScanner(io.LimitReader(res.Body, 1<<20)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if x, err := strconv.ParseFloat(value, 64); ok && err == nil {
			told[name] = x
		}
	}
	if told["go_goroutines"] == 0 || told["process_open_fds"] == 0 || told["go_memstats_heap_alloc_bytes"] == 0 {
		return nil, fmt.Errorf("read %s: %s, without the vitals of a Go process", req.URL, res.Status)
	}
	return told, nil
}

// Differences that are no leak: connections of the measuring client, caches, and garbage
// at the time of a reading.
const (
	spareGoroutines  = 10
	spareDescriptors = 5
	spareHeap        = 3e6
)

// awaitRecovery waits until the vitals are back to their earlier values, and returns an error
// that names those that are not.
func (s *server) awaitRecovery(ctx context.Context, before vitals, limit time.Duration) (after vitals, err error) {
	for end := time.Now().Add(limit); ; {
		if after, err = s.leakMetrics(ctx); err != nil {
			return after, err
		}
		left := vitals{after.goroutines - before.goroutines, after.descriptors - before.descriptors, after.heap - before.heap}
		if left.goroutines <= spareGoroutines && left.descriptors <= spareDescriptors && left.heap <= spareHeap {
			return left, nil
		}
		if time.Now().After(end) {
			return left, fmt.Errorf("after %v %.0f goroutines, %.0f descriptors and %.1f MB are left", limit, left.goroutines, left.descriptors, left.heap/1e6)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return left, err
		}
	}
}
