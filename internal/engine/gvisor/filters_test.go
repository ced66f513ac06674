//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

var update = flag.Bool("update", false, "rewrite the compiled filter of this architecture")

// withVariables is what the platform says of itself but the values that it gives
// to variables of the filter.
type withVariables struct {
	platform.SeccompInfo
	values precompiledseccomp.Values
}

func (w withVariables) Variables() precompiledseccomp.Values { return w.values }

// filterEnv makes this program compile the filter.
const filterEnv = "GLOVEBOX_TEST_FILTER"

// printFilter prints the sentry's filter, compiled as gVisor's own build does.
func printFilter() error {
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		return err
	}
	opts := config.Options{Platform: systrap.PrecompiledSeccompInfo()[0], HostFilesystem: true}
	names := slices.Collect(maps.Keys(opts.Vars()))
	p, err := precompiledseccomp.Precompile(opts.ConfigKey(), names, func(values precompiledseccomp.Values) *seccomp.Program {
		opts := opts
		opts.Platform = withVariables{opts.Platform, values}
		allow, deny := config.Rules(opts)
		return &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: allow, Action: seccomp.Allow}},
			Options:  config.SeccompOptions(opts),
		}
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p)
}

// compileFilter returns what printFilter prints as the first process of a
// namespace. Every sentry is one, and the filter says so, not always with a
// variable.
func compileFilter(t *testing.T) []byte {
	t.Helper()
	cmd := exec.Command(selfExe)
	cmd.Env = []string{filterEnv + "=1"}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFilter_IsCurrent compares the compiled filter with the one that gVisor would
// compile.
func TestFilter_IsCurrent(t *testing.T) {
	file := filepath.Join("filters", runtime.GOARCH+".json")
	want := compileFilter(t)
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Skipf("no compiled filter for this architecture; type go generate: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what gVisor compiles; type go generate", file)
	}
}

// TestFilter_IsUsed fails if the sentry does not find the compiled filter.
func TestFilter_IsUsed(t *testing.T) {
	if _, err := filters.ReadFile("filters/" + runtime.GOARCH + ".json"); err != nil {
		t.Skipf("no compiled filter for this architecture; type go generate: %v", err)
	}
	dir := t.TempDir()
	e, err := Open(t.Context(), Config{StateDir: t.TempDir(), DebugDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	create(t, e, "guest", newSpec(t)).ask(t, "echo up")
	logs, err := filepath.Glob(filepath.Join(dir, "*.boot.txt"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs of the sentry: %v, %v", logs, err)
	}
	b, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "Loaded precompiled seccomp") || strings.Contains(string(b), "No precompiled program") {
		t.Errorf("the sentry has compiled its filter")
	}
}
