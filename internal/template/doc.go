// Package template keeps machines with a started interpreter and its libraries
// imported as snapshots, addressed by what went into them, so that a new box is a
// restore instead of a boot.
package template
