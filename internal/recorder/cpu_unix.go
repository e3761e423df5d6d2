//go:build unix

package recorder

import (
	"syscall"
	"testing"
	"time"
)

// CPU reports, beside the time of each of n things, which on a shared machine says
// little, how much of this process's processor time each took. It is started before
// them, and what it returns is called behind them.
func CPU(b *testing.B, n func() int) (end func()) {
	begun := cpu(b)
	return func() { b.ReportMetric(float64((cpu(b)-begun).Nanoseconds())/1e3/float64(n()), "cpu-µs/op") }
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
