package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Schema is the version of the JSON. Every change of fields makes a new version, also an
// addition, since readers reject unknown fields.
const Schema = 1

// maxResult bounds the size of a result to read. A run writes some 40 KB.
const maxResult = 4 << 20

// Result is one run.
type Result struct {
	Schema    int               `json:"schema"`
	At        time.Time         `json:"at"`
	Seconds   float64           `json:"seconds"`
	Quick     bool              `json:"quick,omitempty"` // few samples: for a look, not to be stored
	Only      string            `json:"only,omitempty"`  // the expression that chose scenarios, if not all ran
	Machine   Machine           `json:"machine"`
	Versions  map[string]string `json:"versions"` // of Glovebox and of the peers, by name
	Scenarios []Scenario        `json:"scenarios"`
	Figures   []Figure          `json:"figures"`
}

// Machine describes the machine of a result.
type Machine struct {
	CPUs     int     `json:"cpus"`
	CPU      string  `json:"cpu"`
	MemoryMB int     `json:"memory_mb"`
	Kernel   string  `json:"kernel"`
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
	Root     bool    `json:"root"`
	Load     float64 `json:"load"` // one-minute load average before the run: how much else was going on
}

// Scenario is a scenario that ran.
type Scenario struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // why it ended early; figures until then are there
}

// Write writes the result to a file atomically.
func (r Result) Write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Read reads a result. It returns an error for another schema.
func Read(path string) (Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxResult+1))
	if err != nil {
		return Result{}, err
	}
	r, err := decode(data)
	if err != nil {
		return Result{}, fmt.Errorf("read result %s: %w", path, err)
	}
	return r, nil
}

func decode(data []byte) (Result, error) {
	if len(data) > maxResult {
		return Result{}, fmt.Errorf("more than %d bytes", maxResult)
	}
	var version struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return Result{}, err
	}
	if version.Schema != Schema {
		return Result{}, fmt.Errorf("schema %d, this program knows %d", version.Schema, Schema)
	}
	var r Result
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Result{}, err
	}
	seen := make(map[string]bool)
	for _, f := range r.Figures {
		switch {
		case f.ID == "":
			return Result{}, errors.New("a figure has no id")
		case seen[f.ID]:
			return Result{}, fmt.Errorf("two figures are %q", f.ID)
		case f.Ratio < 0 || f.N < 0:
			return Result{}, fmt.Errorf("figure %q is negative", f.ID)
		}
		seen[f.ID] = true
	}
	return r, nil
}

// Storable returns an error if the result cannot be a baseline.
func (r Result) Storable() error {
	switch {
	case r.Quick:
		return errors.New("it is of a quick run, whose ratios rest on few samples")
	case r.Only != "":
		return fmt.Errorf("only the scenarios %q were run", r.Only)
	}
	for _, s := range r.Scenarios {
		if s.Error != "" {
			return fmt.Errorf("scenario %s failed: %s", s.Name, s.Error)
		}
	}
	return nil
}
