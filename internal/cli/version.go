package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// Set by the linker: see the Makefile.
var (
	version = ""
	commit  = ""
)

// versionInfo is the output of version --json, which is part of the interface.
type versionInfo struct {
	Version       string        `json:"version"`
	Commit        string        `json:"commit"`
	Go            string        `json:"go"`
	Platform      string        `json:"platform"`
	AgentProtocol int           `json:"agent_protocol"`
	GVisor        *gvisorStatus `json:"gvisor,omitempty"` // absent if it is not linked in
}

// gvisorStatus is the version of gVisor in the binary.
type gvisorStatus struct {
	Version string `json:"version"`
	Date    string `json:"date,omitempty"`
	AgeDays int    `json:"age_days"`
}

// buildVersion returns version and commit of the program.
func buildVersion() (v, rev string) {
	v, rev = version, commit
	info, ok := debug.ReadBuildInfo()
	if v == "" {
		v = "dev"
		if ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v = info.Main.Version
		}
	}
	if rev == "" {
		rev = "unknown"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	return v, rev
}

// newVersionInfo collects the versions; now dates the age of gVisor.
func newVersionInfo(now time.Time) versionInfo {
	v, rev := buildVersion()
	info := versionInfo{
		Version:       v,
		Commit:        rev,
		Go:            runtime.Version(),
		Platform:      runtime.GOOS + "/" + runtime.GOARCH,
		AgentProtocol: protocol.Version,
	}
	if pin, date, ok := engines.Version("gvisor"); ok {
		info.GVisor = &gvisorStatus{Version: pin}
		if !date.IsZero() {
			info.GVisor.Date = date.Format(time.DateOnly)
			info.GVisor.AgeDays = max(0, int(now.Sub(date).Hours()/24))
		}
	}
	return info
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Glovebox and its parts",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return a.printVersion(asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printVersion prints the versions to standard output.
func (a *app) printVersion(asJSON bool) error {
	info := newVersionInfo(time.Now())
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(info)
	}
	fmt.Fprintf(a.Out, "glovebox %s (%s)\n", info.Version, info.Commit)
	fmt.Fprintf(a.Out, "go       %s %s\n", info.Go, info.Platform)
	switch g := info.GVisor; {
	case g == nil:
		fmt.Fprintf(a.Out, "gvisor   not on this platform\n")
	case g.Date == "":
		fmt.Fprintf(a.Out, "gvisor   %s\n", g.Version)
	default:
		fmt.Fprintf(a.Out, "gvisor   %s (%s, %s old)\n", g.Version, g.Date, plural.N(g.AgeDays, "day"))
	}
	fmt.Fprintf(a.Out, "agent    protocol %d\n", info.AgentProtocol)
	return nil
}
