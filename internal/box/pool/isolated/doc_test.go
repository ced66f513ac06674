// Package isolated tests the pool with what it is for: machines in real
// isolation, restored from a template. Its logic is tested in internal/box/pool. The
// sentry is not made for cgo, so neither are these tests.
package isolated
