//go:build !linux

package server

import "net"

// limitPatience keeps the kernel's default.
func limitPatience(net.Conn) {}
