// Package engines lists the engines that this program can use and chooses one.
// No other package of the command line depends on a concrete engine.
//
// engines.go has the list, select.go the choice. internal/cli (engine.go) selects by the settings.
//
// Tests use internal/engine/process, which isolates nothing and cannot be chosen.
package engines

import (
	"os"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/microsandbox"
)

// local lists the engines from which the default is chosen, the preferred one first. Their
// boxes run on this machine: probing those must not use the network.
var local = []engine.Factory{gvisor.Factory()}

// all lists the engines. Those that are not in local are used only if selected: kube because
// it asks a cluster, microsandbox because its boxes have no snapshots.
var all = append(slices.Clone(local), kube.Factory(&kubeSettings), microsandbox.Factory())

// Main runs the helper process of an engine if os.Args[0] names one, and does not
// return then.
func Main() {
	for _, f := range all {
		if f.Main != nil {
			f.Main()
		}
	}
}

// Names returns the names of the engines.
func Names() []string {
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
	}
	return names
}

// Local returns the names of the engines from which the default is chosen. Their boxes run on
// this machine and can be examined from outside.
func Local() []string { return Names()[:len(local)] }

// Enter moves the process into the namespaces that the default engine needs, if it needs any:
// see engine.Factory.Enter. It may re-execute the program and then does not return.
func Enter(surviveParent bool) error {
	f := Default()
	if f.Enter == nil {
		return nil
	}
	if err := os.Setenv(enteredEnv, f.Name); err != nil {
		return err
	}
	defer os.Unsetenv(enteredEnv) // not for child processes
	return f.Enter(surviveParent)
}

// Version returns the version of an engine and its date; ok is false if the engine
// is not linked in.
func Version(name string) (version string, date time.Time, ok bool) {
	for _, f := range all {
		if f.Name == name {
			version, date = f.Version()
		}
	}
	return version, date, version != ""
}
