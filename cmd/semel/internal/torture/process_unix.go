//go:build unix

package torture

import (
	"os"
	"syscall"
)

// canPause reports whether the system can stop a process and let it go on.
const canPause = true

func suspend(p *os.Process) bool  { return p.Signal(syscall.SIGSTOP) == nil }
func proceed(p *os.Process)       { _ = p.Signal(syscall.SIGCONT) }
func askToEnd(p *os.Process) bool { return p.Signal(syscall.SIGTERM) == nil }
