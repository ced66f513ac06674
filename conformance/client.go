package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// notOffered are scenarios of extensions that the client kit does not have. The
// suite does not score them.
var notOffered = []string{"auth/dpop", "auth/dpop-nonce", "auth/enterprise-managed-authorization", "auth/wif-jwt-bearer"}

// clientLimit is what the suite gives a client, in ms: its time with that of those
// whose turn comes before. It is less than suiteLimit, so that the suite can tell.
const clientLimit = "100000"

// kit is the client that is made of the client kit, a program.
func kit(program string) *subject {
	return &subject{
		target: clientKit, side: clientSide, reach: []string{"--command", program, "--timeout", clientLimit},
		leaves: func(scenario string) bool { return slices.Contains(notOffered, scenario) },
	}
}

// finished notes whether the client came to the end of its script: the suite only
// judges what it saw on the wire.
func (sc *scenario) finished(dir string) error {
	said, err := readBounded(filepath.Join(dir, "stdout.txt"))
	if err != nil || string(said) == "done\n" {
		return err
	}
	why := tail(filepath.Join(dir, "stderr.txt"))
	sc.checks = append(sc.checks, check{ID: "client-finished", Status: failure, Error: why[max(0, strings.LastIndex(why, "client: error:")):]})
	return nil
}
