package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// One turn of a sweep stays short even where results are large.
func TestSweepOfLargeResults(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	const n = 6
	for i := range n {
		a := attempt(fmt.Sprint(i))
		a.Retention = 0
		c, err := s.Begin(t.Context(), a)
		if err == nil {
			_, err = c.Complete(t.Context(), semel.Result{Head: make([]byte, 10), Body: make([]byte, sweepBytes/2)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	removed, err := write(t.Context(), s, 0, func(t *tx) (int, error) {
		n, _, err := t.sweepRecords(sweepRows)
		return n, err
	})
	if err != nil || removed != 2 {
		t.Errorf("one turn removed %d results of half its bytes, %v; want 2", removed, err)
	}
	if removed, err := s.Sweep(t.Context(), 3); err != nil || removed != 3 {
		t.Errorf("Sweep with limit 3 removed %d, %v", removed, err)
	}
	if removed, err := s.Sweep(t.Context(), 100); err != nil || removed != n-5 {
		t.Errorf("Sweep removed the last %d, %v; want %d", removed, err, n-5)
	}
}

// What a sweep of the trail reports are entries, also of those that records are.
func TestSweptEntriesAreCounted(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{TrailRetention: time.Hour})
	for i := range 5 {
		c := mustBegin(t, s, attempt(fmt.Sprint(i)))
		if err := c.Hold(t.Context(), "lost contact"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := write(t.Context(), s, 0, func(t *tx) (int64, error) {
		_, err := t.exec("UPDATE executed SET at = 0")
		if err == nil {
			_, err = t.exec("UPDATE trail SET at = 0")
		}
		return 0, err
	}); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, want := range []int{3, 7, 0} {
		records, entries, err := s.sweep(t.Context(), max(want, 3))
		if total += entries; err != nil || records != 0 || entries != want {
			t.Errorf("a sweep removed %d records and %d entries, %v; want %d entries", records, entries, err, want)
		}
	}
	if total != 10 {
		t.Errorf("%d entries were swept; want 10", total)
	}
}

// A sweep's turn ends early where others wait, but removes as many records as share
// its commit, and Run ends where less than a batch is left, though there may be
// more in the meantime.
func TestSweepGivesWay(t *testing.T) {
	f := &faults{}
	swept := make(chan Swept)
	s := openFaulty(t, f, Config{OnSweep: func(d Swept) { swept <- d }})
	const n = 90
	for i := range n {
		if _, err := mustBegin(t, s, attempt(fmt.Sprint(i))).Complete(t.Context(), semel.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	pass(t, s, 100*24*time.Hour)
	waiting := &op{run: func(*tx) {}, done: make(chan struct{})}
	turn := func(callers int, wait bool) (removed int) {
		t.Helper()
		removed, err := write(t.Context(), s, 0, func(t *tx) (int, error) {
			if wait {
				s.queue <- waiting
			}
			t.callers, t.time = callers, t.time.Add(-time.Hour)
			n, more, err := t.sweepRecords(sweepRows)
			if err == nil && !more && n < 50 {
				err = errors.New("that is not all")
			}
			return n, err
		})
		if err != nil {
			t.Error(err)
		}
		return removed
	}
	if got := turn(7, false); got != 7 {
		t.Errorf("a late turn that 7 share removed %d", got)
	}
	if got := turn(1, true); got != 1 {
		t.Errorf("a late turn that another waits for removed %d", got)
	}
	<-waiting.done
	if got := turn(1, false); got != n-8 {
		t.Errorf("a turn that nobody waits for removed %d of %d", got, n-8)
	}

	if _, err := mustBegin(t, s, attempt("one more")).Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
	pass(t, s, 100*24*time.Hour)
	turns := 0
	f.arm(func(_ int, query string, _ []driver.Value) (bool, bool) {
		if query == selectExpired {
			turns++
		}
		return false, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	if did := <-swept; did.Records != 1 || turns != 1 {
		t.Errorf("%d records were swept in %d turns; want one in one", did.Records, turns)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
