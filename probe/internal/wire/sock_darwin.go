package wire

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unacked returns how many of the bytes written the other side has not yet
// acknowledged, sent or not.
func (p *pipe) unacked() (n int, ok bool) {
	return p.control(func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NWRITE) })
}

func (p *pipe) control(ask func(fd int) (int, error)) (n int, ok bool) {
	c, isConn := p.Conn.(syscall.Conn)
	if !isConn {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var asked error
	err = raw.Control(func(fd uintptr) { n, asked = ask(int(fd)) })
	return n, err == nil && asked == nil
}
