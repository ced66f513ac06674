//go:build linux

package microsandbox

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// supported is the generation of msb whose commands and output this package knows.
const supported = "0.7."

var versionPattern = lazyregexp.New(`^msb ([0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}(?:[-+][0-9A-Za-z.+-]{1,40})?)$`)

// parseVersion returns the version in the output of "msb --version".
func parseVersion(out []byte) (string, error) {
	if len(out) > 200 {
		return "", fmt.Errorf("parse the version of msb: %d bytes of output", len(out))
	}
	m := versionPattern().FindStringSubmatch(strings.TrimSpace(string(out)))
	if m == nil {
		return "", fmt.Errorf("parse the version of msb: %q is no version", out)
	}
	return m[1], nil
}

// The states of a sandbox that have a meaning here. msb has more.
const (
	running = "Running"
	paused  = "Paused"
)

// sandbox is an element of the output of "msb list --format json", and the part of that of
// "msb status NAME --format json" that matters.
type sandbox struct {
	Name   string `json:"name"`
	Status string `json:"status"`
}

// lives reports whether its virtual machine exists.
func (s sandbox) lives() bool { return s.Status == running || s.Status == paused }

// parseList parses the output of "msb list". Names that no engine has chosen are omitted.
func parseList(out []byte) ([]sandbox, error) {
	var list []sandbox
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("parse msb's list of sandboxes: %w", err)
	}
	kept := list[:0]
	for _, s := range list {
		if isName(s.Name) {
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// parseStatus parses the output of "msb status NAME".
func parseStatus(out []byte, name string) (sandbox, error) {
	var s sandbox
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("parse the status of sandbox %s: %w", name, err)
	}
	if s.Name != name || s.Status == "" {
		return s, fmt.Errorf("parse the status of sandbox %s: it is that of %q with status %q", name, s.Name, s.Status)
	}
	return s, nil
}

// These are msb's words for names that it does not know.
const (
	notFound      = "sandbox not found"
	imageNotFound = "image not found"
)

// metrics is the part of the output of "msb metrics NAME --format json" that matters.
type metrics struct {
	Name   string `json:"name"`
	Memory uint64 `json:"memory_host_resident_bytes"`
	CPU    uint64 `json:"vcpu_time_ns"`
}

// parseMetrics parses the output of "msb metrics".
func parseMetrics(out []byte, name string) (engine.Stats, error) {
	var m metrics
	if err := json.Unmarshal(out, &m); err != nil {
		return engine.Stats{}, fmt.Errorf("parse the metrics of sandbox %s: %w", name, err)
	}
	if m.Name != name {
		return engine.Stats{}, fmt.Errorf("parse the metrics of sandbox %s: they are those of %q", name, m.Name)
	}
	return engine.Stats{MemoryBytes: m.Memory, CPU: time.Duration(min(m.CPU, math.MaxInt64)), Processes: 1}, nil
}
