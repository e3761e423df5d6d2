//go:build unix

package recorder

import (
	"syscall"
	"testing"
	"time"
)

// CPU reports the processor time that this process uses until the returned function is
// called, for each op: on a busy machine it says more than the clock does.
func CPU(b *testing.B) (stop func()) {
	begun := cpu(b)
	return func() { b.ReportMetric(float64((cpu(b)-begun).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op") }
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
