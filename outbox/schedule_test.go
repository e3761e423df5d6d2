package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

// The delay doubles up to its bound, is never more, and is at least what the
// receiver asks for.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		var at []time.Time
		p.answer = func(_ context.Context, d outbox.Delivery) error {
			at = append(at, time.Now())
			if d.Attempt == 6 {
				return outbox.RetryAfter(10*time.Minute, errors.New("busy"))
			}
			return errors.New("no")
		}
		stop := start(t, outbox.Config{Store: o}, outbox.Route{Topic: "t", Sink: p, MaxAttempts: 8, Backoff: 4 * time.Second, MaxBackoff: time.Minute})
		enqueue(t, o, outbox.Message{Topic: "t"})
		pass(time.Hour)
		stopped(t, stop)
		want(t, "attempts", len(at), 8)
		for i, most := range []time.Duration{4, 8, 16, 32, 60, 660, 60} {
			least := most / 2
			if i == 5 {
				least = 600
			}
			// A poll may come a second late.
			if d := at[i+1].Sub(at[i]); d < least*time.Second || d > (most+1)*time.Second {
				t.Errorf("delay %d is %v; want %v to %v s", i+1, d, int(least), int(most))
			}
		}
	})
}

// A schedule is kept as it is, but for chance, which only shortens; it is the last
// of the attempts that the span reaches to.
func TestSchedule(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		var at []time.Time
		p.answer = func(context.Context, outbox.Delivery) error {
			at = append(at, time.Now())
			return errors.New("no")
		}
		route := outbox.Route{Topic: "t", Sink: p, Schedule: []time.Duration{10 * time.Second, 10 * time.Minute, 5 * time.Hour}}
		span := route.RetrySpan(0)
		want(t, "span", span, 5*time.Hour+10*time.Minute+10*time.Second+4*30*time.Second)
		stop := start(t, outbox.Config{Store: o, Observer: p.observer()}, route)
		enqueue(t, o, outbox.Message{Topic: "t"})
		pass(7 * time.Hour)
		stopped(t, stop)
		want(t, "attempts", len(at), 4)
		want(t, "dead", p.count("dead"), 1)
		for i, most := range route.Schedule {
			// A poll may come a second late.
			if d := at[i+1].Sub(at[i]); d < most*4/5 || d > most+time.Second {
				t.Errorf("delay %d is %v; want about %v", i+1, d, most)
			}
		}
		if d := at[3].Sub(at[0]); d > span {
			t.Errorf("the attempts took %v; the span is %v", d, span)
		}
	})
	// As MaxAttempts says of the defaults.
	if d := (outbox.Route{}).RetrySpan(0); d < 5*time.Hour || d > 10*time.Hour {
		t.Errorf("the default span is %v", d)
	}
	if _, err := outbox.New(outbox.Config{Store: memory.NewOutbox(), Routes: []outbox.Route{{Sink: newPost(), Schedule: []time.Duration{1, 0}}}}); err == nil || !strings.Contains(err.Error(), "Schedule[1]") {
		t.Errorf("a delay of nothing: %v", err)
	}
}

// What was postponed was not tried: it costs no attempt, however often.
func TestPostponed(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		calls := 0
		p.answer = func(_ context.Context, d outbox.Delivery) error {
			want(t, "attempt", d.Attempt, 1)
			if calls++; calls <= 50 {
				return fmt.Errorf("wrapped: %w", outbox.Postpone(time.Minute, errors.New("full")))
			}
			return nil
		}
		stop := start(t, outbox.Config{Store: o, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, MaxAttempts: 2})
		enqueue(t, o, outbox.Message{ID: "m", Topic: "t"})
		pass(40 * time.Minute)
		want(t, "delivered", p.count("delivered"), 0)
		pass(20 * time.Minute)
		stopped(t, stop)
		want(t, "calls", calls, 51)
		want(t, "delivered", p.count("delivered"), 1)
		want(t, "retried", p.count("retried"), 0)
	})
}

// What a sink may answer, before and after the point where the effect may happen.
func TestOutcomes(t *testing.T) {
	no := errors.New("no")
	for _, tt := range []struct {
		name    string
		marked  bool
		err     error
		policy  outbox.UnknownPolicy
		state   outbox.State
		retried int
	}{
		{"error", false, no, outbox.UnknownHold, outbox.StateDead, 2},
		{"permanent", false, outbox.Permanent(no), outbox.UnknownHold, outbox.StateDead, 0},
		{"uncertain, held", false, outbox.Uncertain(no), outbox.UnknownHold, outbox.StateUnknown, 0},
		{"uncertain, retried", false, outbox.Uncertain(no), outbox.UnknownRetry, outbox.StateUnknown, 2},
		{"error behind the effect, held", true, no, outbox.UnknownHold, outbox.StateUnknown, 0},
		{"error behind the effect, retried", true, no, outbox.UnknownRetry, outbox.StateUnknown, 2},
		{"certain failure behind the effect", true, outbox.RetryAfter(0, no), outbox.UnknownHold, outbox.StateDead, 2},
		{"permanent behind the effect", true, fmt.Errorf("wrapped: %w", outbox.Permanent(no)), outbox.UnknownHold, outbox.StateDead, 0},
		{"delivered behind the effect", true, nil, outbox.UnknownHold, outbox.StateDelivered, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
				p.answer = func(ctx context.Context, d outbox.Delivery) error {
					if tt.marked {
						if err := d.BeforeEffect(ctx); err != nil {
							return err
						}
					}
					return tt.err
				}
				stop := start(t, outbox.Config{Store: o, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, MaxAttempts: 3, OnUnknown: tt.policy})
				enqueue(t, o, outbox.Message{ID: "m", Topic: "t"})
				pass(time.Hour)
				stopped(t, stop)
				want(t, "state", find(t, o, "m").State, tt.state)
				want(t, "number of retries", p.count("retried"), tt.retried)
			})
		})
	}
}

// A relay that has nothing to do polls less and less often, and a hint wakes
// it.
func TestPolling(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		var claims atomic.Int64
		f := &faulty{Outbox: o, fail: func(call string) (bool, bool) {
			if call == "claim" {
				claims.Add(1)
			}
			return false, false
		}}
		r, err := outbox.New(outbox.Config{Store: struct{ outbox.Store }{f}, Routes: []outbox.Route{{Sink: p}}})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- r.Run(ctx) }()
		pass(10 * time.Second)
		before := claims.Load()
		pass(time.Minute)
		if n := claims.Load() - before; n < 60 || n > 85 {
			t.Errorf("an idle relay looked %d times in a minute", n)
		}
		enqueue(t, o, outbox.Message{Topic: "t"})
		began := time.Now()
		for len(p.ids()) == 0 {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(began); d > time.Second+time.Millisecond {
			t.Errorf("without a hint a message waited %v", d)
		}
		pass(10 * time.Second)
		enqueue(t, o, outbox.Message{Topic: "t"})
		r.Wake()
		synctest.Wait()
		want(t, "number delivered at once with a hint", len(p.ids()), 2)
		if err := r.Run(ctx); err == nil {
			t.Error("it ran twice at the same time")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}

		// The store's own hints do the same.
		stop := start(t, outbox.Config{Store: o}, outbox.Route{Sink: p})
		pass(time.Minute)
		enqueue(t, o, slices.Concat(lane("t", "x", 20), lane("u", "x", 0))...)
		synctest.Wait()
		want(t, "number delivered at once", len(p.ids()), 22)
		stopped(t, stop)
	})
}
