package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// unitName is the systemd unit that docs/deploy.md installs.
const unitName = "glovebox.service"

// unitTimeout bounds a query of systemd, which answers within milliseconds.
const unitTimeout = 5 * time.Second

// namespaces are the namespaces that boxes need, as in RestrictNamespaces=.
var namespaces = []string{"user", "mnt", "pid", "net", "ipc", "uts"}

// neededCalls are the groups of system calls that boxes need: SystemCallFilter= must
// allow them.
var neededCalls = []string{"@mount", "@privileged", "@debug", "@setuid", "@process", "@system-service", "@basic-io", "@file-system"}

// unitProblems returns the settings of a systemd unit, with its drop-ins, that prevent
// boxes from starting, as written. Each was observed on Debian 12.
func unitProblems(unit string) []string {
	var problems []string
	last := map[string]string{} // settings whose last value counts
	var calls []string
	for line := range strings.Lines(unit) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") || strings.HasPrefix(name, ";") {
			continue
		}
		value = strings.TrimSpace(value)
		switch {
		case name != "SystemCallFilter":
			last[name] = value
		case value == "": // resets the list
			calls = nil
		default:
			calls = append(calls, value)
		}
	}
	problem := func(name, value string) { problems = append(problems, name+"="+value) }
	if v := last["RestrictNamespaces"]; !allowsNamespaces(v) {
		problem("RestrictNamespaces", v)
	}
	if v := last["MemoryDenyWriteExecute"]; isTrue(v) {
		problem("MemoryDenyWriteExecute", v)
	}
	if v := last["ProcSubset"]; v == "pid" {
		problem("ProcSubset", v)
	}
	if v := last["RestrictAddressFamilies"]; v != "" && !strings.HasPrefix(v, "~") && !slices.Contains(strings.Fields(v), "AF_UNIX") {
		problem("RestrictAddressFamilies", v)
	}
	allowed := false // an allow list has begun
	for _, v := range calls {
		names, denies := strings.CutPrefix(v, "~")
		switch {
		case denies && slices.ContainsFunc(strings.Fields(names), func(name string) bool { return slices.Contains(neededCalls, name) }):
			problem("SystemCallFilter", v)
		case !denies && !allowed && !strings.Contains(strings.Join(calls, " "), "@mount"):
			problem("SystemCallFilter", v)
		}
		allowed = allowed || !denies
	}
	return problems
}

// allowsNamespaces reports whether a value of RestrictNamespaces= allows all namespaces
// that boxes need.
func allowsNamespaces(value string) bool {
	if list, denies := strings.CutPrefix(value, "~"); denies {
		return !slices.ContainsFunc(namespaces, func(name string) bool { return slices.Contains(strings.Fields(list), name) })
	}
	if value == "" || slices.Contains([]string{"no", "false", "off", "0"}, strings.ToLower(value)) {
		return true
	}
	return !slices.ContainsFunc(namespaces, func(name string) bool { return !slices.Contains(strings.Fields(value), name) })
}

func isTrue(value string) bool {
	return slices.Contains([]string{"yes", "true", "on", "1"}, strings.ToLower(value))
}

// inUnit reports whether systemd started this process as a service.
func inUnit() bool { return os.Getenv("INVOCATION_ID") != "" && os.Getenv("SYSTEMD_EXEC_PID") != "" }

// unitHint explains why a service fails where the doctor, run from a shell, finds no
// problem; "" outside of a service.
func unitHint() string {
	if !inUnit() {
		return ""
	}
	return "settings of this systemd service (RestrictNamespaces=, SystemCallFilter=, MemoryDenyWriteExecute= …) may forbid " +
		"what boxes need: compare systemctl cat " + unitName + " with packaging/glovebox.service; as root, " +
		"glovebox doctor checks the unit, too; "
}

// examineUnit checks the systemd unit, if it is installed. The doctor's other checks
// apply outside of it.
func examineUnit(ctx context.Context) []finding {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil // systemd does not run here
	}
	systemctl := systemProgram("systemctl")
	if systemctl == "" {
		return nil // systemd runs another system's units
	}
	ctx, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	text, err := exec.CommandContext(ctx, systemctl, "cat", unitName).Output()
	if err != nil {
		return nil // not installed
	}
	f := finding{Name: "unit", Level: levelOK, Detail: unitName + " is installed and allows boxes"}
	if problems := unitProblems(string(text)); len(problems) > 0 {
		f.Level = levelFail
		f.Detail = fmt.Sprintf("%s does not allow boxes: %s", unitName, strings.Join(problems, ", "))
		f.Fix = "type: systemctl edit " + unitName + " and set these as in packaging/glovebox.service"
		return []finding{f}
	}
	// systemd does not report a service that it restarts as failed.
	state, err := exec.CommandContext(ctx, systemctl, "show", unitName, "--property=SubState", "--value").Output()
	if err == nil && slices.Contains([]string{"auto-restart", "failed"}, strings.TrimSpace(string(state))) {
		f.Level, f.Detail, f.Fix = levelWarn, unitName+" is installed, but fails and restarts", "type: journalctl -u "+unitName
	}
	return []finding{f}
}

// systemDirs are where systems have their own programs. PATH may begin with directories of
// another user when root runs the doctor through sudo.
var systemDirs = []string{"/usr/bin", "/bin", "/run/current-system/sw/bin"}

// systemProgram returns the path of a program of the system; "" if there is none.
func systemProgram(name string) string {
	for _, dir := range systemDirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
