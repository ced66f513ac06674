//go:build !linux

package mcpserver

import "net"

// limitPatience leaves the kernel its own.
func limitPatience(net.Conn) {}
