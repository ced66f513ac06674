// Package archtest holds the rules of the house that a compiler does not check,
// as tests: who may import whom, that packages say what they are for, that
// dependencies are accounted for. It has no code of its own.
//
// A new package needs a row in the table of imports_test.go.
package archtest
