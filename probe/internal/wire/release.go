package wire

import (
	"runtime"
	"time"
)

// release writes what each pipe holds, one right after the other, and returns
// when each write ended; the zero time for one that failed.
func release(pipes []*pipe) []time.Time {
	at := make([]time.Time, len(pipes))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	parts := releaseRaw(pipes, at)
	for i, p := range pipes {
		b := p.unhold() // what the raw way did not come to
		if parts != nil {
			b = append(parts[i], b...)
		}
		if len(b) == 0 {
			continue
		}
		if _, err := p.Write(b); err == nil {
			at[i] = time.Now()
		} else {
			at[i] = time.Time{}
		}
	}
	return at
}
