package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The shipped unit has no setting that prevents boxes.
func TestUnit_Shipped(t *testing.T) {
	text, err := os.ReadFile("../../packaging/glovebox.service")
	if err != nil {
		t.Fatal(err)
	}
	if problems := unitProblems(string(text)); len(problems) > 0 {
		t.Errorf("no box can be made with %q", problems)
	}
	// The test can fail: it finds each of these.
	for _, setting := range []string{
		"RestrictNamespaces=yes", "RestrictNamespaces=user mnt", "RestrictNamespaces=~pid", "MemoryDenyWriteExecute=true", "ProcSubset=pid",
		"RestrictAddressFamilies=AF_INET AF_INET6", "SystemCallFilter=~@mount", "SystemCallFilter=~@clock @privileged", "SystemCallFilter=@system-service",
	} {
		if got := unitProblems(string(text) + "\n[Service]\n" + setting + "\n"); !slices.Equal(got, []string{setting}) {
			t.Errorf("with %s: got %q", setting, got)
		}
	}
}

func TestUnit_Problems(t *testing.T) {
	for unit, want := range map[string]string{
		"": "",
		"# MemoryDenyWriteExecute=yes\n;ProcSubset=pid":                    "",
		"MemoryDenyWriteExecute=yes\n[Service]\nMemoryDenyWriteExecute=no": "", // a drop-in
		"RestrictNamespaces=no":                                            "",
		"RestrictNamespaces=user mnt pid net ipc uts cgroup":               "",
		"RestrictNamespaces=~cgroup":                                       "",
		"SystemCallFilter=~@mount\nSystemCallFilter=":                      "",
		"SystemCallFilter=@system-service @mount @debug":                   "",
		"RestrictAddressFamilies=~AF_PACKET":                               "",
		"ProcSubset=pid\nRestrictNamespaces=true":                          "RestrictNamespaces=true, ProcSubset=pid",
		"RestrictSUIDSGID=yes\nNoNewPrivileges=yes\nbroken li":             "",
	} {
		if got := strings.Join(unitProblems(unit), ", "); got != want {
			t.Errorf("%q: got %q, want %q", unit, got, want)
		}
	}
}

// The error of a server that fails as a systemd service names the unit's settings.
func TestUnit_Hint(t *testing.T) {
	t.Setenv("INVOCATION_ID", "")
	t.Setenv("SYSTEMD_EXEC_PID", "")
	if got := unitHint(); got != "" {
		t.Errorf("outside of a service: got %q", got)
	}
	t.Setenv("INVOCATION_ID", "0123")
	t.Setenv("SYSTEMD_EXEC_PID", "1")
	if got := unitHint(); !strings.Contains(got, "RestrictNamespaces=") || !strings.Contains(got, "systemctl cat") {
		t.Errorf("in a service: got %q", got)
	}
}
