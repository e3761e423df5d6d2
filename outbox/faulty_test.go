package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

// A row that cannot be written does not keep those from being settled that were
// delivered with it.
func TestOneBadRowDoesNotRollBackTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		f := &badRow{Outbox: o, bad: 7}
		for i := range 20 {
			enqueue(t, o, outbox.Message{ID: fmt.Sprint("m", i), Topic: "t"})
		}
		stop := start(t, outbox.Config{Store: f, Observer: p.observer()}, outbox.Route{Sink: p})
		pass(10 * time.Minute)
		for i := range 20 {
			state := outbox.StateDelivered
			if i == 6 {
				state = outbox.StatePending
			}
			want(t, fmt.Sprint("state of m", i), find(t, o, fmt.Sprint("m", i)).State, state)
		}
		want(t, "number delivered", len(p.ids()), 20)
		if err := stop(); err == nil || !strings.Contains(err.Error(), "1 messages could not be written down") {
			t.Errorf("the relay ended by %v", err)
		}
	})
}

// badRow is a store with a row that cannot be settled.
type badRow struct {
	*memory.Outbox
	bad uint64 // its position
}

func (b *badRow) Exchange(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
	if slices.ContainsFunc(s, func(s outbox.Settlement) bool { return s.Position == b.bad }) {
		return nil, nil, errFault
	}
	return b.Outbox.Exchange(ctx, s, c)
}

// A relay that dies between what may be the effect and its record leaves an
// unknown message under hold, and a repetition under retry.
func TestDiedAtTheEffect(t *testing.T) {
	for _, policy := range []outbox.UnknownPolicy{outbox.UnknownHold, outbox.UnknownRetry} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
				enqueue(t, o, outbox.Message{ID: "before", Topic: "t"}, outbox.Message{ID: "at", Topic: "t"})
				dead, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 2, Lease: time.Minute}) // by a relay that dies
				if err != nil || o.Mark(t.Context(), dead[1].Ref) != nil {
					t.Fatal(dead, err)
				}
				p.answer = func(ctx context.Context, d outbox.Delivery) error { return d.BeforeEffect(ctx) }
				stop := start(t, outbox.Config{Store: o, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, OnUnknown: policy})
				pass(10 * time.Minute)
				stopped(t, stop)
				if policy == outbox.UnknownHold {
					wantIDs(t, p.ids(), "before")
					want(t, "state", find(t, o, "at").State, outbox.StateUnknown)
					want(t, "number unknown", p.count("unknown"), 1)
					return
				}
				want(t, "number delivered", len(p.ids()), 2)
				for _, d := range p.arrived {
					want(t, "unsure of "+d.ID, d.Unsure, d.ID == "at")
				}
			})
		})
	}
}

// faulty is a store whose calls fail: instead of being carried out, or after.
type faulty struct {
	*memory.Outbox
	fail func(call string) (before, after bool)
}

var errFault = errors.New("injected fault")

func around[T any](f *faulty, name string, call func() (T, error)) (T, error) {
	before, after := f.fail(name)
	var zero T
	if before {
		return zero, errFault
	}
	v, err := call()
	if after {
		return zero, errFault
	}
	return v, err
}

func (f *faulty) Exchange(ctx context.Context, s []outbox.Settlement, c outbox.Claim) (claimed []outbox.Claimed, lost []outbox.Ref, err error) {
	name := "exchange"
	switch {
	case len(s) == 0:
		name = "claim"
	case c.Max == 0:
		name = "settle"
	}
	claimed, err = around(f, name, func() ([]outbox.Claimed, error) {
		claimed, lost, err = f.Outbox.Exchange(ctx, s, c)
		return claimed, err
	})
	return claimed, lost, err
}

func (f *faulty) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) ([]outbox.Ref, error) {
	return around(f, "renew", func() ([]outbox.Ref, error) { return f.Outbox.Renew(ctx, lease, refs) })
}

func (f *faulty) Mark(ctx context.Context, ref outbox.Ref) error {
	_, err := around(f, "mark", func() (struct{}, error) { return struct{}{}, f.Outbox.Mark(ctx, ref) })
	return err
}

// Every call of a store fails at times, before or after it took effect. A commit
// whose answer was lost is neither a loss nor a second delivery, but where a
// claim's answer was lost: that waits for its lease.
func TestStoreFailsAtTimes(t *testing.T) {
	for _, call := range []string{"claim", "renew", "settle", "mark"} {
		for _, when := range []string{"before", "after"} {
			t.Run(call+" "+when, func(t *testing.T) {
				bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
					var n atomic.Int64
					f := &faulty{Outbox: o, fail: func(name string) (before, after bool) {
						both := name == "exchange" && (call == "claim" || call == "settle")
						if name != call && !both || n.Add(1)%2 == 0 {
							return false, false
						}
						return when == "before", when == "after"
					}}
					p.answer = func(ctx context.Context, d outbox.Delivery) error {
						time.Sleep(20 * time.Second)
						return d.BeforeEffect(ctx)
					}
					stop := start(t, outbox.Config{Store: f, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, MaxInFlight: 4})
					enqueue(t, o, slices.Concat(lane("t", "x", 5), lane("t", "y", 5))...)
					time.Sleep(time.Hour)
					stopped(t, stop)
					got := map[string][]string{}
					for _, d := range p.arrived {
						got[d.Key] = append(got[d.Key], d.ID)
					}
					for _, key := range []string{"x", "y"} {
						wantIDs(t, got[key], key+".0", key+".1", key+".2", key+".3", key+".4")
					}
					if p.count("failed "+call)+p.count("failed exchange") == 0 {
						t.Error("nothing failed")
					}
				})
			})
		}
	}
}

// A relay that cannot renew its leases cancels what is under way before somebody
// else can have it.
func TestLeaseThatCannotBeRenewedIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		var down atomic.Bool
		f := &faulty{Outbox: o, fail: func(string) (bool, bool) { return down.Load(), false }}
		var ended time.Duration
		p.answer = func(ctx context.Context, d outbox.Delivery) error {
			if d.Attempt == 1 {
				down.Store(true)
				<-ctx.Done()
				ended = time.Since(p.start)
				if !errors.Is(context.Cause(ctx), outbox.ErrLeaseLost) {
					t.Errorf("it ended by %v", context.Cause(ctx))
				}
				return ctx.Err()
			}
			return nil
		}
		cut := start(t, outbox.Config{Store: f, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, Timeout: time.Hour})
		enqueue(t, o, outbox.Message{ID: "m", Topic: "t"})
		pass(time.Second)
		other := start(t, outbox.Config{Store: o, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p})
		pass(time.Minute)
		if ended < 15*time.Second || ended > 16500*time.Millisecond {
			t.Errorf("with a lease of 15 s the delivery was cancelled after %v", ended)
		}
		wantIDs(t, p.ids(), "m")
		down.Store(false)
		pass(time.Minute)
		stopped(t, cut)
		stopped(t, other)
		want(t, "state", find(t, o, "m").State, outbox.StateDelivered)
		want(t, "number of leases lost", p.count("lease lost"), 1)
	})
}

// A relay that was paused finds that another has its messages: it cancels what is
// under way and changes nothing.
func TestStaleRelayChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		paused := make(chan struct{})
		f := &faulty{Outbox: o, fail: func(call string) (bool, bool) {
			if call == "renew" {
				<-paused
			}
			return false, false
		}}
		p.answer = func(ctx context.Context, d outbox.Delivery) error {
			if d.ID == "x.0" && d.Attempt == 1 {
				<-paused
				time.Sleep(time.Second)
				return errors.New("late")
			}
			return nil
		}
		stale := start(t, outbox.Config{Store: f, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, Timeout: time.Hour})
		enqueue(t, o, lane("t", "x", 2)...)
		pass(time.Second)
		other := start(t, outbox.Config{Store: o}, outbox.Route{Topic: "t", Sink: p})
		pass(time.Minute)
		close(paused)
		pass(time.Minute)
		stopped(t, stale)
		stopped(t, other)
		want(t, "state", find(t, o, "x.0").State, outbox.StateDelivered)
		want(t, "attempts", find(t, o, "x.0").Attempts, 2)
		want(t, "number of leases lost", p.count("lease lost"), 1)
	})
}

// A message that kills every relay that touches it is given up in the end, and
// those that were claimed with it are delivered.
func TestMessageThatKillsItsRelays(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		for i := range 10 {
			enqueue(t, o, outbox.Message{ID: fmt.Sprint("m", i), Topic: "t"})
		}
		for deaths := 0; ; deaths++ {
			ctx, kill := context.WithCancel(t.Context())
			// A dead relay's calls do nothing.
			f := &faulty{Outbox: o, fail: func(string) (bool, bool) { return ctx.Err() != nil, false }}
			p.answer = func(_ context.Context, d outbox.Delivery) error {
				if d.ID == "m7" {
					kill()
				}
				time.Sleep(time.Second) // so that all are under way
				if ctx.Err() != nil {
					return errors.New("dead")
				}
				return nil
			}
			r, err := outbox.New(outbox.Config{Store: f, Drain: time.Second, Routes: []outbox.Route{{Topic: "t", Sink: p, MaxAttempts: 6}}})
			if err != nil {
				t.Fatal(err)
			}
			within, cancel := context.WithTimeout(ctx, 2*time.Minute)
			_ = r.Run(within)
			cancel()
			if ctx.Err() == nil {
				kill()
				want(t, "number of deaths", deaths, 6)
				break
			}
			if deaths > 50 {
				t.Fatal("it kills relays for ever")
			}
		}
		want(t, "state", find(t, o, "m7").State, outbox.StateDead)
		ids := p.ids()
		slices.Sort(ids)
		wantIDs(t, ids, "m0", "m1", "m2", "m3", "m4", "m5", "m6", "m8", "m9")
	})
}
