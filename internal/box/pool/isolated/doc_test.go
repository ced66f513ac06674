// Package isolated tests the pool with real isolation: machines restored from a
// template. internal/box/pool tests its logic. The sentry does not support cgo, so
// these tests do not run with it.
package isolated
