// Package pool keeps a few machines ready ahead of the calls that want one. A
// machine that was handed out never comes back.
package pool
