package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestUnknownVariables(t *testing.T) {
	for _, test := range []struct {
		environ []string
		want    []string
	}{
		{[]string{"MSB_SESION_TIMEOUT=5"}, []string{"unknown environment variable MSB_SESION_TIMEOUT has no effect; did you mean MSB_SESSION_TIMEOUT?"}},
		{[]string{"GLOVEBOX_PYTON=x", "MCP_PROT=1"}, []string{
			"unknown environment variable GLOVEBOX_PYTON has no effect; did you mean GLOVEBOX_PYTHON?",
			"unknown environment variable MCP_PROT has no effect; did you mean MCP_PORT?",
		}},
		{[]string{"PERPLEXITY_API_KEYS=pplx-secret", "PERPLEXITY_OF_LANGUAGE=1"}, []string{"unknown environment variable PERPLEXITY_API_KEYS has no effect; did you mean PERPLEXITY_API_KEY?"}},
		{[]string{"GLOVEBOX_SOMETHING_ELSE="}, []string{"unknown environment variable GLOVEBOX_SOMETHING_ELSE has no effect; glovebox settings lists the settings"}},
		{[]string{"GLOVEBOX_PYTON=x", CheckedEnv + "=1"}, nil},
		// Known, of tests, and of other programs.
		{[]string{"MSB_MAX_SESSIONS=3", "GLOVEBOX_CONFIG=c", "MSB_API_KEY=k", "GLOVEBOX_TEST_GUEST=x", "MCP_TOOL_REGISTRY=1", "PATH=/bin", "odd"}, nil},
	} {
		if got := UnknownVariables(test.environ); !slices.Equal(got, test.want) {
			t.Errorf("%q: got %q, want %q", test.environ, got, test.want)
		}
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = "GLOVEBOX_X" + string(rune('A'+i%26)) + string(rune('A'+i/26)) + "=1"
	}
	if n := len(UnknownVariables(many)); n != maxUnknown {
		t.Errorf("got %d warnings, want %d", n, maxUnknown)
	}
}

// Every duration may have a unit, in a flag, a variable and the file.
func TestLoad_DurationsTakeUnits(t *testing.T) {
	times := 0
	for _, k := range Keys() {
		switch k.Kind {
		case "seconds", "seconds-or-never", "milliseconds":
		default:
			continue
		}
		times++
		file := filepath.Join(t.TempDir(), "c.json")
		if err := os.WriteFile(file, []byte(`{"`+k.Name+`": "45s", "session-timeout": "2h"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if k.Name == "session-timeout" {
			continue // all others must be less
		}
		for how, load := range map[string]func() (*Config, []string, error){
			"flag":     func() (*Config, []string, error) { return load(t, []string{"--" + k.Name, "45s"}) },
			"variable": func() (*Config, []string, error) { return load(t, nil, k.Env[0], "45s") },
			"file":     func() (*Config, []string, error) { return load(t, []string{"--config", file}) },
		} {
			c, _, err := load()
			if err != nil {
				t.Errorf("%s as a %s: %v", k.Name, how, err)
				continue
			}
			if got := field(c, k); got != 45*time.Second {
				t.Errorf("%s as a %s: got %v, want 45s", k.Name, how, got)
			}
		}
	}
	if times < 8 {
		t.Errorf("%d settings are times", times)
	}
}

// field returns the time that a setting has.
func field(c *Config, k Key) time.Duration {
	return time.Duration(reflect.ValueOf(c).Elem().Field(k.field).Int())
}
