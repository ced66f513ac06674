// Package rest stands in for the package of client-go. This module has what Helm's
// template engine names of client-go, for a chart that asks no cluster while it is
// rendered: the real one takes minutes to compile.
package rest

// Config is the configuration of a client. There is none.
type Config struct{}
