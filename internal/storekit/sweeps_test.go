package storekit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

// A round goes on until a batch is not full, rests between batches, survives a
// failure, and ends with its context or its store.
func TestSweeps(t *testing.T) {
	failed := errors.New("the disk is full")
	for name, tt := range map[string]struct {
		answers []any // of calls of Sweep: rows removed, or an error
		close   time.Duration
		end     time.Duration
		told    []Swept
		closed  bool
		after   time.Duration
	}{
		"until less is left": {[]any{10, 10, 4}, 0, 30 * time.Second, []Swept{{Records: 24, Took: 3*3*time.Second + 2*time.Second}}, false, 30 * time.Second},
		"after a failure":    {[]any{failed, 4}, 0, 80 * time.Second, []Swept{{Err: failed, Took: 3 * time.Second}, {Records: 4, Took: 3 * time.Second}}, false, 80 * time.Second},
		"closed in a rest":   {[]any{10}, 3500 * time.Millisecond, time.Hour, []Swept{{Records: 10, Took: 3500 * time.Millisecond}}, true, 3500 * time.Millisecond},
		"closed in between":  {[]any{4}, 20 * time.Second, time.Hour, []Swept{{Records: 4, Took: 3 * time.Second}}, true, 20 * time.Second},
		"found closed":       {[]any{semel.ErrNotOpen}, time.Hour, time.Hour, nil, true, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), tt.end)
				defer stop()
				done := make(chan struct{})
				if tt.close > 0 {
					defer time.AfterFunc(tt.close, func() { close(done) }).Stop()
				}
				calls := 0
				var told []Swept
				start := time.Now()
				closed := Sweeps{
					Every: time.Minute, Batch: 10, Rest: time.Second, Done: done, Told: func(did Swept) { told = append(told, did) },
					Sweep: func(_ context.Context, limit int) (records, entries int, err error) {
						time.Sleep(3 * time.Second)
						calls++
						if limit != 10 || calls > len(tt.answers) {
							t.Fatalf("call %d, of at most %d rows", calls, limit)
						}
						if n, ok := tt.answers[calls-1].(int); ok {
							return n, 0, nil
						}
						return 0, 0, tt.answers[calls-1].(error)
					},
				}.Run(ctx)
				if closed != tt.closed || time.Since(start) != tt.after || calls != len(tt.answers) {
					t.Errorf("closed %v after %v and %d calls; want %v after %v and %d", closed, time.Since(start), calls, tt.closed, tt.after, len(tt.answers))
				}
				if len(told) != len(tt.told) {
					t.Fatalf("told %+v; want %+v", told, tt.told)
				}
				for i := range told {
					if told[i] != tt.told[i] {
						t.Errorf("told %+v; want %+v", told[i], tt.told[i])
					}
				}
			})
		})
	}
}

// Every watcher is woken once, even if another does not receive, until it
// stops.
func TestHints(t *testing.T) {
	var h Hints
	h.Send()
	a, stop := h.Watch()
	b, _ := h.Watch()
	h.Send()
	h.Send()
	if len(a) != 1 || len(b) != 1 {
		t.Errorf("%d and %d hints; want one each", len(a), len(b))
	}
	<-a
	stop()
	<-b
	h.Send()
	if len(a) != 0 || len(b) != 1 {
		t.Errorf("%d hints behind stop, %d for the other", len(a), len(b))
	}
}
