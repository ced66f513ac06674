package pod

import "golang.org/x/sys/unix"

// raiseLoopback enables the loopback interface of this network namespace, on which the
// agent answers the box's programs. gVisor's is enabled from the start, Linux's is not.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return err
	}
	if lo.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}
