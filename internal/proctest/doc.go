// Package proctest fails the tests of a package that leave processes running.
package proctest
