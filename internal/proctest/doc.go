// Package proctest fails the tests of a package that leave processes running.
package proctest

import "testing"

// Checked returns m with Main as its Run, for testscript.Main.
func Checked(m *testing.M) interface{ Run() int } { return checked{m} }

type checked struct{ *testing.M }

func (c checked) Run() int { return Main(c.M) }
