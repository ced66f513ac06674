//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// State directories that several scenarios use in sequence. Each scenario stops its
// contexts.
const (
	shared = "shared" // with the modules that templates load ahead
	lean   = "lean"   // with some of them
	plain  = "plain"  // without
)

// Values of GLOVEBOX_PRELOAD.
const (
	preloaded = "numpy,pandas,matplotlib" // the default
	tables    = "numpy,pandas"            // no plots
	nothing   = "none"
)

const (
	// templateLimit bounds building the templates, which takes some seconds each.
	templateLimit = 3 * time.Minute
	// fillLimit bounds filling a pool, which takes a second or two.
	fillLimit = time.Minute
	// fillPause is the interval of polling a pool.
	fillPause = 20 * time.Millisecond
)

// offersTemplates reports whether the binary has templates.
func (b *bench) offersTemplates(ctx context.Context) bool {
	return b.offers(ctx, "glovebox template build", "template", "build")
}

// offers reports whether the help of a command of the binary has a text. For an unknown
// command, that is the help of its parent.
func (b *bench) offers(ctx context.Context, text string, command ...string) bool {
	help, _ := prepare(ctx, append(append([]string{b.binary}, command...), "--help")...).CombinedOutput()
	return strings.Contains(string(help), text)
}

// buildTemplates builds the templates of a state directory once, so that no server does
// during a measurement. It does nothing for a binary without templates.
func (b *bench) buildTemplates(ctx context.Context, state, preload string, settings ...string) error {
	if _, done := b.built[state]; done || !b.offersTemplates(ctx) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, templateLimit)
	defer cancel()
	cmd := prepare(ctx, b.binary, "template", "build")
	cmd.Env = b.environment(state, append(settings, "GLOVEBOX_PRELOAD="+preload)...)
	begun := time.Now()
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the templates: %w: %s", err, lastLine(string(text)))
	}
	b.built[state] = time.Since(begun).Seconds()
	return nil
}

// servePlain starts a server without a pool and without preloaded libraries.
func (b *bench) servePlain(ctx context.Context, state string, settings ...string) (*server, error) {
	if err := b.buildTemplates(ctx, state, nothing); err != nil {
		return nil, err
	}
	return b.serve(ctx, state, append(settings, "GLOVEBOX_POOL_SIZE=0", "GLOVEBOX_PRELOAD="+nothing)...)
}

// poolFull waits until the status page reports the given numbers of Python and Node boxes
// in the pool.
func (s *server) poolFull(ctx context.Context, size int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fillLimit, fmt.Errorf("the pool was not full after %v", fillLimit))
	defer cancel()
	for {
		ready, err := s.poolReady(ctx)
		if err != nil {
			return err
		}
		full := len(ready) > 0
		for _, n := range ready {
			full = full && n >= size
		}
		if full {
			return nil
		}
		if err := sleep(ctx, fillPause); err != nil {
			return err
		}
	}
}

// poolReady reads the numbers of ready boxes by template from the status page.
func (s *server) poolReady(ctx context.Context) (map[string]int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var status struct {
		Ready map[string]int `json:"pool_ready"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&status); err != nil {
		return nil, fmt.Errorf("read the status page: %w", err)
	}
	return status.Ready, nil
}
