package torture

import "syscall"

// childAttr makes children end with this process, even if it is killed.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
