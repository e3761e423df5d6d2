//go:build unix

package wire

import (
	"syscall"
	"time"
)

// releaseRaw takes all descriptors first, so that between two writes there is
// nothing but the system call: neither the scheduler of the runtime nor a lock.
// It returns what it could not write, or nil if it wrote and took nothing.
func releaseRaw(pipes []*pipe, at []time.Time) (left [][]byte) {
	fds := make([]int, len(pipes))
	var take func(i int)
	take = func(i int) {
		if i == len(pipes) {
			left = make([][]byte, len(pipes))
			for i, p := range pipes {
				left[i] = p.unhold()
			}
			for i, fd := range fds {
				n := writeOnce(fd, left[i])
				pipes[i].add(n)
				if left[i] = left[i][n:]; len(left[i]) == 0 {
					at[i] = time.Now()
				}
			}
			return
		}
		c, ok := pipes[i].Conn.(syscall.Conn)
		if !ok {
			return
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Write(func(fd uintptr) bool { // fails without the call on a closed connection
			fds[i] = int(fd)
			take(i + 1)
			return true
		})
	}
	take(0)
	return left
}

// writeOnce returns how many bytes were written; the ordinary way meets any
// error again.
func writeOnce(fd int, b []byte) int {
	for {
		n, err := syscall.Write(fd, b)
		if err != syscall.EINTR {
			return max(n, 0)
		}
	}
}
