// Package isolated tests the agent as the first process of a real guest, with another
// user to switch to and a kernel of its own to enforce limits. internal/guest/client
// has the tests that need no guest. The sentry does not support cgo, so these tests do
// not run with it.
package isolated
