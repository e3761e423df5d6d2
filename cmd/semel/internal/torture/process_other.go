//go:build !unix

package torture

import "os"

// canPause reports whether the system can stop a process and let it go on.
const canPause = false

func suspend(*os.Process) bool  { return false }
func proceed(*os.Process)       {}
func askToEnd(*os.Process) bool { return false }
