package tools

import (
	"strings"
	"testing"
)

// TestOffer_Wordings: descriptions of servers whose boxes have an image, or are not kept on
// disk, say nothing that is untrue there. Servers without code mode and with it agree.
func TestOffer_Wordings(t *testing.T) {
	const ofMachine, ofDisk = "this machine", "hibernated"
	for name, test := range map[string]struct {
		offer  Offer
		absent []string
		want   map[string]string // by tool
	}{
		"of this machine": {Offer{}, []string{"container image", "ends by itself"},
			map[string]string{"execute_code": ownLibraries, "run_code": ownLibraries, "stop_session": idleKept, "get_sessions": wakes, "list_contexts": contextsWake}},
		"an image": {Offer{Image: true}, []string{ofMachine, "numpy", "ends by itself"},
			map[string]string{"execute_code": imageLibraries, "run_code": imageLibraries, "stop_session": idleKept}},
		"no hibernation": {Offer{NoHibernation: true}, []string{ofDisk, "on disk by themselves", "container image"},
			map[string]string{"execute_code": ownLibraries, "stop_session": idleEnded, "get_sessions": pausedOne, "list_contexts": contextsPaused}},
		"an engine without snapshots": {Offer{Image: true, NoSnapshots: true}, []string{ofMachine, ofDisk, "on disk", "numpy"},
			map[string]string{"execute_code": imageLibraries, "run_code": imageLibraries, "stop_session": idleEnded, "get_sessions": pausedOne, "list_contexts": contextsPaused}},
	} {
		for _, code := range []bool{false, true} {
			offer := test.offer
			offer.Code = code
			for _, tool := range All() {
				if !tool.In(offer) {
					continue
				}
				d := tool.Definition(offer).Description
				if want := test.want[tool.Def.Name]; !strings.Contains(d, want) {
					t.Errorf("%s, code mode %t: %s: got %q, want %q in it", name, code, tool.Def.Name, d, want)
				}
				for _, text := range test.absent {
					// Without hibernation the tools for snapshots still speak of the disk.
					if strings.Contains(d, text) && tool.Set != Snapshots {
						t.Errorf("%s, code mode %t: %s says %q: %q", name, code, tool.Def.Name, text, d)
					}
				}
				if code && tool.calls != "" && !strings.HasSuffix(d, tool.calls) {
					t.Errorf("%s: %s does not say how code calls tools: %q", name, tool.Def.Name, d)
				}
				if len(d) > 1024 {
					t.Errorf("%s: %s has a description of %d characters", name, tool.Def.Name, len(d))
				}
			}
		}
	}
	for _, tool := range All() {
		for _, w := range tool.wordings {
			if strings.Count(tool.Def.Description, w.text) != 1 {
				t.Errorf("%s: %q is not in the description, and cannot be replaced", tool.Def.Name, w.text)
			}
		}
	}
}
