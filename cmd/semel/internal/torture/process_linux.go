package torture

import "syscall"

// childAttr has children end with this process, also if it is killed.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
