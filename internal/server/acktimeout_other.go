//go:build !linux

package server

import "net"

// setAckTimeout keeps the kernel's default.
func setAckTimeout(net.Conn) {}
