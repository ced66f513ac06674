// Package plural counts things in texts for people.
package plural

import "strconv"

// N returns n with a noun, which is an English one with a regular plural: "1 byte",
// "2 bytes".
func N[T int | int64](n T, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.FormatInt(int64(n), 10) + " " + noun
}
