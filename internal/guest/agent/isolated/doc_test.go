// Package isolated tests the agent where it lives: as the first process of a
// real guest, with a user of its own to switch to and a kernel of its own to
// hold limits. What needs no guest is tested in internal/guest/client. The sentry is not
// made for cgo, so neither are these tests.
package isolated
