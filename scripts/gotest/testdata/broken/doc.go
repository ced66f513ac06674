// Package broken has a test that does not compile with the tag broken.
package broken
