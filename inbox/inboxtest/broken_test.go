package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/store/memory"
)

type (
	work     = func(context.Context, []bool) error
	transact = func(ctx context.Context, consumer string, ids []string, w work) error
)

// store is the correct one with methods replaced.
type store struct {
	*memory.Inbox
	transact transact
	seen     func(ctx context.Context, consumer string, ids []string) ([]bool, error)
	sweep    func(ctx context.Context, consumer string, retention time.Duration, limit int) (int, error)
	count    func(ctx context.Context, consumer string, limit int) (int, error)
}

func (s *store) Transact(ctx context.Context, consumer string, ids []string, w work) error {
	return s.transact(ctx, consumer, ids, w)
}

func (s *store) Seen(ctx context.Context, consumer string, ids []string) ([]bool, error) {
	return s.seen(ctx, consumer, ids)
}

func (s *store) Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (int, error) {
	return s.sweep(ctx, consumer, retention, limit)
}

func (s *store) Count(ctx context.Context, consumer string, limit int) (int, error) {
	return s.count(ctx, consumer, limit)
}

// named has all methods see other consumers and ids than they are told.
func (s *store) named(name func(consumer, id string) (string, string)) {
	names := func(consumer string, ids []string) (string, []string) {
		c, _ := name(consumer, "")
		all := make([]string, len(ids))
		for i, id := range ids {
			c, all[i] = name(consumer, id)
		}
		return c, all
	}
	s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
		c, all := names(consumer, ids)
		return s.Inbox.Transact(ctx, c, all, w)
	}
	s.seen = func(ctx context.Context, consumer string, ids []string) ([]bool, error) {
		c, all := names(consumer, ids)
		return s.Inbox.Seen(ctx, c, all)
	}
}

func nothing(context.Context, []bool) error { return nil }

var transactions atomic.Int64

// apart runs w in a transaction that records nothing of interest.
func (s *store) apart(ctx context.Context, first []bool, w work) error {
	return s.Inbox.Transact(ctx, "apart", []string{fmt.Sprint(transactions.Add(1))}, func(ctx context.Context, _ []bool) error {
		return w(ctx, first)
	})
}

// stores are wrong on purpose, each in one way in which real ones have been.
var stores = []struct {
	name, what string
	breaks     []string
	change     func(s *store)
}{
	{
		"insert-after-the-handler", "looks, runs the handler, and then records the id: two racers both run",
		[]string{"racing-deliveries-have-one-effect", "a-racer-that-fails-leaves-the-message-to-the-others"},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				seen, err := s.Inbox.Seen(ctx, consumer, ids)
				if err != nil {
					return err
				}
				for i := range seen {
					seen[i] = !seen[i]
				}
				if !slices.Contains(seen, true) {
					return nil
				}
				time.Sleep(time.Millisecond)
				if err := s.apart(ctx, seen, w); err != nil {
					return err
				}
				return s.Inbox.Transact(context.WithoutCancel(ctx), consumer, ids, nothing)
			}
		},
	},
	{
		"insert-in-another-transaction", "commits the id before the handler runs: a failure is its own duplicate",
		[]string{
			"a-failed-handler-leaves-nothing-and-its-redelivery-runs", "a-panic-leaves-nothing-and-its-redelivery-runs",
			"a-requeued-failure-is-not-its-own-duplicate", "who-has-left-has-no-effect", "the-id-is-committed-with-the-effect",
		},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				var first []bool
				err := s.Inbox.Transact(ctx, consumer, ids, func(_ context.Context, f []bool) error {
					first = f
					return nil
				})
				if err != nil || first == nil {
					return err
				}
				return s.apart(ctx, first, w)
			}
		},
	},
	{
		"effect-in-another-transaction", "rolls the id back when the handler fails, and not what the handler did",
		[]string{"a-failed-handler-leaves-nothing-and-its-redelivery-runs", "a-racer-that-fails-leaves-the-message-to-the-others"},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				return s.Inbox.Transact(ctx, consumer, ids, func(ctx context.Context, first []bool) error {
					var failed error
					if err := s.apart(ctx, first, func(ctx context.Context, first []bool) error {
						failed = w(ctx, first)
						return nil
					}); err != nil {
						return err
					}
					return failed
				})
			}
		},
	},
	{
		"panic-commits", "commits what a panicking handler has done",
		[]string{"a-panic-leaves-nothing-and-its-redelivery-runs"},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				return s.Inbox.Transact(ctx, consumer, ids, func(ctx context.Context, first []bool) (err error) {
					defer func() { _ = recover() }()
					return w(ctx, first)
				})
			}
		},
	},
	{
		"deaf-to-the-context", "begins for who has left",
		[]string{"who-has-left-has-no-effect"},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				return s.Inbox.Transact(context.WithoutCancel(ctx), consumer, ids, w)
			}
		},
	},
	{
		"commit-with-the-callers-context", "does not commit once the context has ended",
		[]string{"work-is-committed-whose-context-ended-late"},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				return s.Inbox.Transact(ctx, consumer, ids, func(in context.Context, first []bool) error {
					return errors.Join(w(in, first), ctx.Err())
				})
			}
		},
	},
	{
		"digest-without-the-consumer", "one consumer's message is another's duplicate",
		[]string{"consumers-are-independent", "a-sweep-forgets-what-is-old-and-nothing-else", "a-count-is-of-one-consumer-and-bounded"},
		func(s *store) { s.named(func(_, id string) (string, string) { return "billing", id }) },
	},
	{
		"joined-without-a-length", "consumer and id run into each other",
		[]string{"consumers-are-independent"},
		func(s *store) { s.named(func(consumer, id string) (string, string) { return "all", consumer + id }) },
	},
	{
		"folded", "a collation takes upper case for lower",
		[]string{"ids-are-compared-byte-by-byte"},
		func(s *store) {
			s.named(func(consumer, id string) (string, string) { return consumer, strings.ToLower(id) })
		},
	},
	{
		"cut", "a column that is too short cuts ids",
		[]string{"ids-are-compared-byte-by-byte"},
		func(s *store) {
			s.named(func(consumer, id string) (string, string) { return consumer, id[:min(len(id), 128)] })
		},
	},
	{
		"forgetful", "remembers nothing",
		[]string{"a-message-is-first-once", "a-batch-of-duplicates-calls-nobody", "a-batch-tells-the-first-from-the-others"},
		func(s *store) {
			s.transact = func(ctx context.Context, _ string, ids []string, w work) error {
				return s.apart(ctx, slices.Repeat([]bool{true}, len(ids)), w)
			}
		},
	},
	{
		"all-or-none", "takes a batch for new if one of it is",
		[]string{"a-batch-tells-the-first-from-the-others"},
		func(s *store) {
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				return s.Inbox.Transact(ctx, consumer, ids, func(ctx context.Context, first []bool) error {
					return w(ctx, slices.Repeat([]bool{true}, len(first)))
				})
			}
		},
	},
	{
		"locks-in-the-callers-order", "two batches wait for each other",
		[]string{"batches-in-opposite-orders-do-not-deadlock"},
		func(s *store) {
			locks := map[string]chan struct{}{}
			var mu sync.Mutex
			s.transact = func(ctx context.Context, consumer string, ids []string, w work) error {
				for _, id := range ids {
					mu.Lock()
					if locks[id] == nil {
						locks[id] = make(chan struct{}, 1)
					}
					lock := locks[id]
					mu.Unlock()
					lock <- struct{}{}
					defer func() { <-lock }()
					time.Sleep(time.Millisecond)
				}
				return s.Inbox.Transact(ctx, consumer, ids, w)
			}
		},
	},
	{
		"sweeps-too-early", "forgets before the retention is over",
		[]string{"a-sweep-forgets-what-is-old-and-nothing-else", "a-clock-set-back-forgets-nothing-early"},
		func(s *store) {
			s.sweep = func(ctx context.Context, consumer string, retention time.Duration, limit int) (int, error) {
				return s.Inbox.Sweep(ctx, consumer, retention/4, limit)
			}
		},
	},
	{
		"sweeps-everybody", "forgets other consumers' ids too",
		[]string{"a-sweep-forgets-what-is-old-and-nothing-else"},
		func(s *store) {
			s.sweep = func(ctx context.Context, consumer string, retention time.Duration, limit int) (int, error) {
				n, err := s.Inbox.Sweep(ctx, consumer, retention, limit)
				_, other := s.Inbox.Sweep(ctx, "shipping", retention, limit)
				return n, errors.Join(err, other)
			}
		},
	},
	{
		"sweeps-without-a-limit", "one sweep holds up everybody",
		[]string{"a-sweep-removes-no-more-than-its-limit"},
		func(s *store) {
			s.sweep = func(ctx context.Context, consumer string, retention time.Duration, _ int) (int, error) {
				return s.Inbox.Sweep(ctx, consumer, retention, 1<<30)
			}
		},
	},
	{
		"counts-everything", "a count reads on beyond its limit",
		[]string{"a-count-is-of-one-consumer-and-bounded"},
		func(s *store) {
			s.count = func(ctx context.Context, consumer string, _ int) (int, error) {
				return s.Inbox.Count(ctx, consumer, 1<<30)
			}
		},
	},
}

func harness(change func(*store)) func(testing.TB) inboxtest.Harness {
	return func(testing.TB) inboxtest.Harness {
		b := memory.NewInbox()
		s := &store{Inbox: b, transact: b.Transact, seen: b.Seen, sweep: b.Sweep, count: b.Count}
		change(s)
		e := &recorder.Effects{OnCommit: memory.OnCommit}
		return inboxtest.Harness{Store: s, Open: func() inbox.Store { return s }, Advance: time.Sleep, Effect: e.Effect, Effects: e.Effects}
	}
}

// Each broken store breaks the rules that it is to break, and each rule is broken
// by one.
func TestBrokenStores(t *testing.T) {
	breakers := map[string]int{}
	if broken := inboxtest.Check(t, inboxtest.Config{Virtual: true, New: harness(func(*store) {})}); len(broken) > 0 {
		t.Errorf("the correct store breaks %v", broken)
	}
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Log(s.what)
			broken := inboxtest.Check(t, inboxtest.Config{Virtual: true, New: harness(s.change)})
			for rule, message := range broken {
				t.Logf("breaks %s: %s", rule, message)
			}
			for _, rule := range s.breaks {
				if broken[rule] == "" {
					t.Errorf("passes %s", rule)
				}
			}
		})
		for _, rule := range s.breaks {
			breakers[rule]++
		}
	}
	for _, rule := range inboxtest.Rules() {
		if breakers[rule] == 0 {
			t.Errorf("no broken store is to break %s", rule)
		}
		delete(breakers, rule)
	}
	for rule := range breakers {
		t.Errorf("%s is no rule", rule)
	}
}
