package semel

import (
	"testing"
	"testing/synctest"
	"time"
)

// The timer that executions share is there while one waits, and no longer once
// the guard drains.
func TestBeatsGiveTheTimerUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWork(Config{})
		b := w.beatsOf(time.Minute)
		if w.beatsOf(time.Minute) != b || w.beatsOf(time.Hour) == b {
			t.Fatal("those of one heartbeat do not share")
		}
		var xs [5]Execution
		for i := range xs {
			b.wait(&xs[i], time.Now())
			time.Sleep(time.Second)
		}
		for _, i := range []int{2, 0, 4} { // one between others, the first, the last
			b.leave(&xs[i])
			b.leave(&xs[i])
		}
		if b.first != &xs[1] || xs[1].beat.behind != &xs[3] || b.last != &xs[3] || !b.armed {
			t.Errorf("what is left is not the second and the fourth")
		}
		w.drain()
		b.leave(&xs[1])
		if !b.armed {
			t.Error("somebody waits without a timer")
		}
		b.leave(&xs[3])
		if b.armed || b.first != nil || b.last != nil {
			t.Error("a timer goes on after the drain")
		}
		if late := w.beatsOf(time.Second); !late.draining {
			t.Error("a policy that comes after the drain knows nothing of it")
		}
	})
}
