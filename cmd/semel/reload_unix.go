//go:build !windows

package main

import (
	"os"
	"syscall"
)

// reloadSignals have the configuration read again.
var reloadSignals = []os.Signal{syscall.SIGHUP}
