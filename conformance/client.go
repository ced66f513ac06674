package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// notOffered are the scenarios of extensions that the client kit does not implement.
// The suite does not score them.
var notOffered = []string{"auth/dpop", "auth/dpop-nonce", "auth/enterprise-managed-authorization", "auth/wif-jwt-bearer"}

// clientLimit bounds a client in the suite, in ms, including its wait for other
// clients. It is less than suiteLimit, so that the suite reports the timeout.
const clientLimit = "100000"

// kit returns the subject for a client built on the client kit.
func kit(program string) *subject {
	return &subject{
		target: clientKit, side: clientSide, reach: []string{"--command", program, "--timeout", clientLimit},
		leaves: func(scenario string) bool { return slices.Contains(notOffered, scenario) },
	}
}

// finished adds a failed check if the client did not reach the end of its script: the
// suite judges only the messages on the wire.
func (sc *scenario) finished(dir string) error {
	said, err := readBounded(filepath.Join(dir, "stdout.txt"))
	if err != nil || string(said) == "done\n" {
		return err
	}
	why := tail(filepath.Join(dir, "stderr.txt"))
	sc.checks = append(sc.checks, check{ID: "client-finished", Status: failure, Error: why[max(0, strings.LastIndex(why, "client: error:")):]})
	return nil
}
