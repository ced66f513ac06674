//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"
	"strconv"
	"strings"
)

const (
	// oomScoreEnv passes its oom_score_adj to a part of gVisor.
	oomScoreEnv = "GLOVEBOX_OOM_SCORE_ADJ"
	// oomScoreStep is by how much the oom_score_adj of a guest exceeds the server's, in
	// thousandths of the machine's memory: when memory runs out, the host's kernel kills
	// a guest unless the server takes half of the machine's memory more than the guest.
	// Other programs that leak memory are still killed before small guests.
	oomScoreStep = 500
	maxOOMScore  = 1000
	oomScoreFile = "/proc/self/oom_score_adj"
)

// guestOOMScore returns the oom_score_adj of guests. Raising it needs no privilege.
func guestOOMScore() string {
	b, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return ""
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return ""
	}
	return strconv.Itoa(min(own+oomScoreStep, maxOOMScore))
}

// setOOMScore sets the oom_score_adj of this process, which its children inherit. Best
// effort: /proc may be read-only.
func setOOMScore() {
	if score := os.Getenv(oomScoreEnv); score != "" {
		_ = os.WriteFile(oomScoreFile, []byte(score), 0)
	}
}
