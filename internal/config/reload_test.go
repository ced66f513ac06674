package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAdopt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "glovebox.json")
	read := func(text string) *Config {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := load(t, nil, FileEnv, path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := read(`{"port": 9000, "max-sessions": 4}`)
	before := *first
	got, changes, err := first.Adopt(read(`{"port": 9001, "max-sessions": 8, "log-level": "debug", "session-timeout": "2h"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{"port", "9000", "9001", false},
		{"max-sessions", "4", "8", true},
		{"session-timeout", "30m0s", "2h0m0s", true},
		{"log-level", "auto", "debug", true},
	}
	if !reflect.DeepEqual(changes, want) {
		t.Errorf("got %+v, want %+v", changes, want)
	}
	if got.Port != 9000 || got.MaxSessions != 8 || got.LogLevel != "debug" || got.SessionTimeout != 2*time.Hour {
		t.Errorf("got %+v", got)
	}
	if !reflect.DeepEqual(*first, before) {
		t.Error("what was adopted from has changed")
	}
	if _, changes, err := first.Adopt(read(`{"port": 9000, "max-sessions": 4}`)); err != nil || changes != nil {
		t.Errorf("nothing new: got %+v, %v", changes, err)
	}
	// The log gets the changes: a secret is not among them.
	_, changes, err = first.Adopt(read(`{"port": 9000, "max-sessions": 4, "perplexity-api-key": "pplx-secret"}`))
	if want := []Change{{"perplexity-api-key", "(hidden)", "(hidden)", false}}; err != nil || !reflect.DeepEqual(changes, want) {
		t.Errorf("a secret: got %+v, %v, want %+v", changes, err, want)
	}
	// Each is right by itself, and what stays makes them wrong.
	_, _, err = first.Adopt(read(`{"port": 9000, "session-timeout": 30, "cleanup-interval": 10}`))
	if err == nil || !strings.Contains(err.Error(), "MSB_CLEANUP_INTERVAL") {
		t.Errorf("got error %v", err)
	}
}
