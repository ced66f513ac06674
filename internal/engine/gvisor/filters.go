//go:build linux && (amd64 || arm64)

package gvisor

import (
	"embed"
	"encoding/json"
	"runtime"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

// The sentry's system call filter takes longer to compile than anything else that
// a boot or a restore does, and leaves megabytes of garbage. gVisor compiles it in
// its own build, of which the Go module is a result without such things, so here
// it is a file. A test compares it with what gVisor would compile.
//
//go:generate go test -run ^TestFilter$ -update .
//go:embed filters
var filters embed.FS

// compiled is gVisor's table of compiled filters, by what they are for.
//
//go:linkname compiled gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var compiled map[string]precompiledseccomp.Program

// addFilter puts the compiled filter into gVisor's table. Where there is none for
// this architecture, the sentry compiles it.
func addFilter() {
	b, err := filters.ReadFile("filters/" + runtime.GOARCH + ".json")
	if err != nil {
		return
	}
	var p precompiledseccomp.Program
	if err := json.Unmarshal(b, &p); err != nil {
		panic(err) // the file is part of the program
	}
	filter.ListPrecompiled() // makes the table
	compiled[p.Name] = p
}
