// Package archtest tests rules that the compiler does not check: which packages may
// import which, package comments, the length of files, documented dependencies, and
// links in documents. It has no code of its own.
//
// A package that no rule in imports_test.go covers needs a rule there.
package archtest
