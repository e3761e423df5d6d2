// Package inboxtest is the contract of inbox.Store in executable form.
//
//	func TestInbox(t *testing.T) {
//		inboxtest.Run(t, inboxtest.Config{New: newHarness})
//	}
package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/recorder"
)

// Harness is a store set up for one rule.
type Harness struct {
	// Store is fresh and empty.
	Store inbox.Store
	// Open returns another handle on the same ids, as another process would have.
	Open func() inbox.Store
	// Effect counts an effect of that name in the transaction that ctx carries.
	Effect func(ctx context.Context, name string) error
	// Effects returns how often each effect has been committed.
	Effects func() map[string]int
	// Advance moves the store's time forward, or back.
	Advance func(d time.Duration)
}

// Config says how to test a store.
type Config struct {
	// New returns a harness; it registers its clean-up with t.
	New func(t testing.TB) Harness
	// Virtual runs each rule in a bubble of package testing/synctest: for stores
	// whose clock is time.Now and that do no I/O.
	Virtual bool
}

// Run tests a store against every rule, each as a subtest.
func Run(t *testing.T, c Config) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) { c.run(t, r, nil) })
	}
}

// Check tests a store against every rule and returns those that it breaks, each
// with the first failure. It is for tests of this suite with stores that are
// known to be wrong.
func Check(t *testing.T, c Config) map[string]string {
	broken := map[string]string{}
	for _, r := range rules {
		rec := &recorder.Recorder{}
		func() {
			defer func() { // a bubble whose goroutines wait for each other panics
				if v := recover(); v != nil {
					rec.Errorf("the store hangs: %v", v)
				}
			}()
			c.run(t, r, rec)
		}()
		if rec.Failed() {
			broken[r.name] = rec.Message()
		}
	}
	return broken
}

// Rules returns the names of all rules.
func Rules() (names []string) {
	for _, r := range rules {
		names = append(names, r.name)
	}
	return names
}

func (c Config) run(t *testing.T, r rule, rec *recorder.Recorder) {
	check := func(t *testing.T) {
		h := c.New(t)
		if rec == nil {
			r.check(&bench{TB: t, Harness: h})
			return
		}
		rec.Run(t, func(tb testing.TB) { r.check(&bench{TB: tb, Harness: h}) })
	}
	if c.Virtual {
		synctest.Test(t, check)
	} else {
		check(t)
	}
}

// bench is a rule's table.
type bench struct {
	testing.TB
	Harness
}

const consumer = "billing"

var errHandler = errors.New("the handler failed")

// receive handles ids with an effect for each that is first, and returns the error
// and which were.
func (b *bench) receive(s inbox.Store, consumer string, ids ...string) (first []bool, err error) {
	first = make([]bool, len(ids))
	err = s.Transact(b.Context(), consumer, ids, func(ctx context.Context, f []bool) error {
		copy(first, f)
		for i, id := range ids {
			if f[i] {
				if err := b.Effect(ctx, consumer+"/"+id); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return first, err
}

// wantFirst handles ids and checks which are first.
func (b *bench) wantFirst(consumer string, ids []string, want ...bool) {
	b.Helper()
	got, err := b.receive(b.Store, consumer, ids...)
	if err != nil {
		b.Fatalf("%.80q: %v", ids, err)
	}
	if !slices.Equal(got, want) {
		b.Fatalf("%s: of %.80q first are %v; want %v", consumer, ids, got, want)
	}
}

// wantSeen checks which ids another handle sees.
func (b *bench) wantSeen(ids []string, want ...bool) {
	b.Helper()
	for _, s := range []inbox.Store{b.Store, b.Open()} {
		got, err := s.Seen(b.Context(), consumer, ids)
		if err != nil {
			b.Fatal(err)
		}
		if !slices.Equal(got, want) {
			b.Fatalf("of %.80q seen are %v; want %v", ids, got, want)
		}
	}
}

func (b *bench) wantEffects(want map[string]int) {
	b.Helper()
	got := b.Effects()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("effects %.300v; want %.300v", got, want)
	}
}

func (b *bench) sweep(consumer string, retention time.Duration, limit int) int {
	b.Helper()
	n, err := b.Store.Sweep(b.Context(), consumer, retention, limit)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// rule is one promise of a store.
type rule struct {
	name  string
	check func(*bench)
}

var rules = []rule{
	{"a-message-is-first-once", firstOnce},
	{"the-id-is-committed-with-the-effect", committedTogether},
	{"a-failed-handler-leaves-nothing-and-its-redelivery-runs", failureLeavesNothing},
	{"a-panic-leaves-nothing-and-its-redelivery-runs", panicLeavesNothing},
	{"a-requeued-failure-is-not-its-own-duplicate", requeued},
	{"who-has-left-has-no-effect", cancelled},
	{"work-is-committed-whose-context-ended-late", endedLate},
	{"consumers-are-independent", consumersIndependent},
	{"ids-are-compared-byte-by-byte", bytes},
	{"a-batch-tells-the-first-from-the-others", batches},
	{"a-batch-of-duplicates-calls-nobody", allDuplicates},
	{"racing-deliveries-have-one-effect", racing},
	{"a-racer-that-fails-leaves-the-message-to-the-others", racingFailures},
	{"batches-in-opposite-orders-do-not-deadlock", oppositeOrders},
	{"a-sweep-forgets-what-is-old-and-nothing-else", sweeps},
	{"a-sweep-removes-no-more-than-its-limit", sweepLimit},
	{"a-clock-set-back-forgets-nothing-early", clockSetBack},
	{"a-count-is-of-one-consumer-and-bounded", counts},
}

func firstOnce(b *bench) {
	b.wantSeen([]string{"m"}, false)
	for i := range 3 {
		b.wantFirst(consumer, []string{"m"}, i == 0)
	}
	if got, err := b.receive(b.Open(), consumer, "m"); err != nil || got[0] {
		b.Fatalf("another handle: first is %v, %v", got, err)
	}
	b.wantSeen([]string{"m", "n"}, true, false)
	b.wantEffects(map[string]int{"billing/m": 1})
}

func committedTogether(b *bench) {
	other := b.Open()
	err := b.Store.Transact(b.Context(), consumer, []string{"m"}, func(ctx context.Context, _ []bool) error {
		if err := b.Effect(ctx, "e"); err != nil {
			return err
		}
		seen, err := other.Seen(b.Context(), consumer, []string{"m"})
		if err == nil && seen[0] {
			err = errors.New("the id is on record before its transaction is committed")
		}
		if err == nil && len(b.Effects()) != 0 {
			err = errors.New("the effect is committed before its handler has returned")
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.wantSeen([]string{"m"}, true)
	b.wantEffects(map[string]int{"e": 1})
}

func (b *bench) failing(s inbox.Store, id string) error {
	return s.Transact(b.Context(), consumer, []string{id, id + "'"}, func(ctx context.Context, first []bool) error {
		if !first[0] || !first[1] {
			return errors.New("it is its own duplicate")
		}
		if err := b.Effect(ctx, "failed"); err != nil {
			return err
		}
		return errHandler
	})
}

func failureLeavesNothing(b *bench) {
	if err := b.failing(b.Store, "m"); !errors.Is(err, errHandler) {
		b.Fatalf("Transact tells %v", err)
	}
	b.wantSeen([]string{"m", "m'"}, false, false)
	b.wantEffects(map[string]int{})
	b.wantFirst(consumer, []string{"m"}, true)
	b.wantEffects(map[string]int{"billing/m": 1})
}

func panicLeavesNothing(b *bench) {
	for _, end := range []func(){func() { panic("on purpose") }, runtime.Goexit} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			_ = b.Store.Transact(b.Context(), consumer, []string{"m"}, func(ctx context.Context, _ []bool) error {
				_ = b.Effect(ctx, "failed")
				end()
				return nil
			})
		}()
		<-done
		b.wantSeen([]string{"m"}, false)
	}
	b.wantFirst(consumer, []string{"m"}, true)
	b.wantEffects(map[string]int{"billing/m": 1})
}

func requeued(b *bench) {
	for range 3 {
		for _, s := range []inbox.Store{b.Store, b.Open()} {
			if err := b.failing(s, "m"); !errors.Is(err, errHandler) {
				b.Fatalf("Transact tells %v", err)
			}
		}
	}
	b.wantFirst(consumer, []string{"m", "m'"}, true, true)
	b.wantEffects(map[string]int{"billing/m": 1, "billing/m'": 1})
}

func cancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	err := b.Store.Transact(ctx, consumer, []string{"m"}, func(context.Context, []bool) error {
		b.Error("work is called")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		b.Errorf("Transact tells %v", err)
	}
	if _, err := b.Store.Seen(ctx, consumer, []string{"m"}); !errors.Is(err, context.Canceled) {
		b.Errorf("Seen tells %v", err)
	}
	ctx, cancel = context.WithCancel(b.Context())
	err = b.Store.Transact(ctx, consumer, []string{"m"}, func(ctx context.Context, _ []bool) error {
		cancel()
		return errors.Join(ctx.Err(), b.Effect(context.WithoutCancel(ctx), "failed"))
	})
	if !errors.Is(err, context.Canceled) {
		b.Errorf("Transact tells %v", err)
	}
	b.wantSeen([]string{"m"}, false)
	b.wantEffects(map[string]int{})
	b.wantFirst(consumer, []string{"m"}, true)
}

func endedLate(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	err := b.Store.Transact(ctx, consumer, []string{"m"}, func(ctx context.Context, _ []bool) error {
		defer cancel()
		return b.Effect(ctx, "e")
	})
	if err != nil {
		b.Fatal(err)
	}
	b.wantSeen([]string{"m"}, true)
	b.wantEffects(map[string]int{"e": 1})
}

func consumersIndependent(b *bench) {
	effects := map[string]int{}
	for _, c := range []string{consumer, "shipping", "Billing", "billing ", "a", "aa"} {
		for _, id := range []string{"m", "am"} {
			b.wantFirst(c, []string{id}, true)
			effects[c+"/"+id]++
		}
	}
	b.wantFirst("shipping", []string{"m", "n"}, false, true)
	effects["shipping/n"]++
	b.wantEffects(effects)
}

func bytes(b *bench) {
	long := strings.Repeat("x", inbox.MaxName-1)
	ids := []string{
		"m", "M", "m ", " m", "é", "e\u0301", "1", "01", "1.0", "+1", "x'31'", "%", "_", "\\", "'", "\x01", "\u00a0", "null", "NULL", "{", "\"", "a,b",
		long + "a", long + "b", strings.Repeat("ü", inbox.MaxName/2),
	}
	want := make([]bool, len(ids))
	for i := range want {
		want[i] = true
	}
	b.wantFirst(consumer, ids, want...)
	b.wantSeen(ids, want...)
	b.wantFirst(consumer, ids, make([]bool, len(ids))...)
	if got := b.Effects(); len(got) != len(ids) {
		b.Errorf("%d effects of %d ids", len(got), len(ids))
	}
}

func batches(b *bench) {
	b.wantFirst(consumer, []string{"c", "a"}, true, true)
	b.wantFirst(consumer, []string{"d", "c", "b", "a"}, true, false, true, false)
	many := make([]string, 1000)
	want := make([]bool, len(many))
	for i := range many {
		many[i], want[i] = fmt.Sprint("many", len(many)-i), true
	}
	b.wantFirst(consumer, many, want...)
	b.wantFirst(consumer, many, make([]bool, len(many))...)
	if got := b.Effects(); len(got) != 4+len(many) {
		b.Errorf("%d effects", len(got))
	}
}

func allDuplicates(b *bench) {
	b.wantFirst(consumer, []string{"a", "b"}, true, true)
	err := b.Store.Transact(b.Context(), consumer, []string{"b", "a"}, func(context.Context, []bool) error {
		b.Error("work is called")
		return nil
	})
	if err != nil {
		b.Error(err)
	}
}

// deliver handles ids until that needs no redelivery.
func (b *bench) deliver(s inbox.Store, ids []string, before func(ctx context.Context) error) error {
	for try := 0; ; try++ {
		err := s.Transact(b.Context(), consumer, ids, func(ctx context.Context, first []bool) error {
			if before != nil {
				if err := before(ctx); err != nil {
					return err
				}
			}
			for i, id := range ids {
				if first[i] {
					if err := b.Effect(ctx, id); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err == nil || try == 1000 {
			return err
		}
	}
}

const racers = 8

func (b *bench) race(fn func(n int, s inbox.Store) error) {
	handles := []inbox.Store{b.Store, b.Open()}
	var wg sync.WaitGroup
	for n := range racers {
		wg.Go(func() {
			if err := fn(n, handles[n%2]); err != nil {
				b.Errorf("racer %d: %v", n, err)
			}
		})
	}
	wg.Wait()
}

func racing(b *bench) {
	want := map[string]int{}
	for round := range 10 {
		id := fmt.Sprint("m", round)
		want[id] = 1
		b.race(func(_ int, s inbox.Store) error {
			return b.deliver(s, []string{id}, func(context.Context) error {
				runtime.Gosched()
				return nil
			})
		})
	}
	b.wantEffects(want)
}

func racingFailures(b *bench) {
	var mu sync.Mutex
	fails := racers / 2
	b.race(func(_ int, s inbox.Store) error {
		return b.deliver(s, []string{"m"}, func(ctx context.Context) error {
			if err := b.Effect(ctx, "failed"); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if fails > 0 {
				fails--
				return errHandler
			}
			return b.Effect(ctx, "before")
		})
	})
	b.wantEffects(map[string]int{"m": 1, "before": 1, "failed": 1})
}

func oppositeOrders(b *bench) {
	want := map[string]int{}
	for round := range 10 {
		var ids []string
		for i := range 20 {
			ids = append(ids, fmt.Sprint("m", round, ".", i))
			want[ids[i]] = 1
		}
		back := slices.Clone(ids)
		slices.Reverse(back)
		b.race(func(n int, s inbox.Store) error {
			all := ids
			if n%4 >= 2 {
				all = back
			}
			err := b.deliver(s, all, nil)
			if err != nil && strings.Contains(err.Error(), "deadlock") {
				b.Error(err)
			}
			return err
		})
	}
	b.wantEffects(want)
}

const day = 24 * time.Hour

func sweeps(b *bench) {
	b.wantFirst(consumer, []string{"old", "older"}, true, true)
	b.wantFirst("shipping", []string{"old"}, true)
	b.Advance(2 * day)
	b.wantFirst(consumer, []string{"young"}, true)
	if n := b.sweep(consumer, 3*day, 100); n != 0 {
		b.Fatalf("swept %d that are to be kept", n)
	}
	b.wantFirst(consumer, []string{"old", "older"}, false, false) // which makes them no younger
	if n := b.sweep(consumer, day, 100); n != 2 {
		b.Fatalf("swept %d; want 2", n)
	}
	b.wantSeen([]string{"old", "older", "young"}, false, false, true)
	b.wantFirst("shipping", []string{"old"}, false)
	b.wantFirst(consumer, []string{"old", "young"}, true, false)
}

func sweepLimit(b *bench) {
	for i := range 7 {
		b.wantFirst(consumer, []string{fmt.Sprint("m", i)}, true)
		b.Advance(time.Hour)
	}
	b.Advance(day)
	if n := b.sweep(consumer, day, 3); n != 3 {
		b.Fatalf("swept %d; want 3", n)
	}
	b.wantSeen([]string{"m0", "m1", "m2", "m3"}, false, false, false, true)
	if n := b.sweep(consumer, day, 0); n != 0 {
		b.Fatalf("swept %d; want none", n)
	}
	if n := b.sweep(consumer, day, 100); n != 4 {
		b.Fatalf("swept %d; want 4", n)
	}
}

func clockSetBack(b *bench) {
	b.wantFirst(consumer, []string{"before"}, true)
	b.Advance(-day)
	b.wantFirst(consumer, []string{"before", "after"}, false, true)
	for range 2 {
		if n := b.sweep(consumer, 3*day, 100); n != 0 {
			b.Fatalf("swept %d", n)
		}
		b.Advance(day + time.Hour)
	}
	b.wantSeen([]string{"before", "after"}, true, true)
	b.Advance(10 * day)
	if n := b.sweep(consumer, 3*day, 100); n != 2 {
		b.Fatalf("swept %d; want 2", n)
	}
}

func counts(b *bench) {
	b.wantFirst(consumer, []string{"a", "b", "c"}, true, true, true)
	b.wantFirst("shipping", []string{"a"}, true)
	for _, c := range []struct {
		consumer    string
		limit, want int
	}{{consumer, 100, 3}, {consumer, 2, 2}, {"shipping", 100, 1}, {"nobody", 100, 0}} {
		if n, err := b.Store.Count(b.Context(), c.consumer, c.limit); err != nil || n != c.want {
			b.Errorf("%s: count is %d, %v; want %d", c.consumer, n, err, c.want)
		}
	}
}
