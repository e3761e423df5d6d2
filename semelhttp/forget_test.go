package semelhttp_test

import (
	"runtime"
	"testing"

	"github.com/semelhq/semel/semelhttp"
)

// TestMiddlewareIsForgotten: a guard for which middleware is made again and again
// keeps nothing of what is not used any more.
func TestMiddlewareIsForgotten(t *testing.T) {
	b := newFixture(t)
	var o orders
	make := func(n int) {
		for range n {
			b.protect(t, &o, func(*semelhttp.Config) {})
		}
	}
	heap := func() uint64 {
		for range 4 { // pools are given up in steps, and cleanups run behind
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	make(100)
	before := heap()
	const n = 5000
	make(n)
	after := heap()
	for i := 0; i < 50 && after > before+n*40; i++ {
		runtime.Gosched()
		after = heap()
	}
	if after > before+n*40 {
		t.Errorf("%d bytes are kept of each", (after-before)/n)
	}
	runtime.KeepAlive(b.guard)
}
