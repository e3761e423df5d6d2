package main

import "os"

// reloadSignals: there is no such signal.
var reloadSignals []os.Signal
