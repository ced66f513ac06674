package remote

import (
	"encoding/json"

	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

// maxExitCode is the greatest exit code of a process.
const maxExitCode = 255

// ParseTermination parses the message in which a helper tells why it has ended. A guest's root
// can forge it: an exit code that no process can have is left out, and Error is untrusted text
// as long as the message.
func ParseTermination(message []byte) (podlink.Termination, error) {
	var t podlink.Termination
	if err := json.Unmarshal(message, &t); err != nil {
		return podlink.Termination{}, err
	}
	if t.Exited != nil && (*t.Exited < 0 || *t.Exited > maxExitCode) {
		t.Exited = nil
	}
	return t, nil
}
