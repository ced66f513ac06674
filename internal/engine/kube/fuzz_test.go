package kube

import (
	"testing"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
)

// FuzzExit reads termination messages that a guest's root might have written.
func FuzzExit(f *testing.F) {
	f.Add(`{"exited":137}`, "Error")
	f.Add(`{"exited":-1,"stopped":true}`, "OOMKilled")
	f.Add(`{"error":"a\n\u001b[31mb\u202e"}`, "Completed\n")
	f.Fuzz(func(t *testing.T, message, reason string) {
		exit := exitOfContainer(&kubeapi.Pod{}, &kubeapi.Terminated{Message: message, Reason: reason})
		if exit.Code < 0 || exit.Code > 255 {
			t.Errorf("code %d", exit.Code)
		}
		if exit.Reason == "" || exit.Reason == engine.ExitDisk {
			t.Errorf("reason %q", exit.Reason)
		}
		if len(exit.Detail) > 10*maxDetail || !utf8.ValidString(exit.Detail) {
			t.Errorf("detail of %d bytes", len(exit.Detail))
		}
		for _, r := range exit.Detail {
			if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' {
				t.Errorf("detail %q", exit.Detail)
			}
		}
	})
}
