// Package outboxtest is the contract of outbox.Store in executable form.
//
//	func TestOutbox(t *testing.T) {
//		outboxtest.Run(t, outboxtest.Config{New: newHarness})
//	}
package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/outbox"
)

// Store is what the suite needs of one.
type Store interface {
	outbox.Store
	outbox.Admin
}

// Harness is a store set up for one rule.
type Harness struct {
	// Store is fresh and empty.
	Store Store
	// Enqueue adds messages in a transaction of their own, and commits it.
	Enqueue func(ctx context.Context, messages ...outbox.Message) error
	// Advance moves the store's time forward.
	Advance func(d time.Duration)
	// Open returns another handle on the same messages, as another process
	// would have.
	Open func() Store
}

// Config says how to test a store.
type Config struct {
	// New returns a harness; it registers its clean-up with t.
	New func(t *testing.T) Harness
	// Virtual runs each rule in a bubble of package testing/synctest: for
	// stores whose clock is time.Now and that do no I/O.
	Virtual bool
}

// Run tests a store against every rule, each as a subtest.
func Run(t *testing.T, c Config) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			c.run(t, func(t *testing.T) { r.check(&bench{TB: t, Harness: c.New(t)}) })
		})
	}
}

// Check tests the store against the named rules, or all rules if none are named,
// and returns those that it breaks, each with the first failure. It is for tests of
// this suite with stores that are known to be wrong. It fails t only if the harness
// does.
func Check(t *testing.T, c Config, only ...string) map[string]string {
	broken := map[string]string{}
	for _, r := range rules {
		if len(only) > 0 && !slices.Contains(only, r.name) {
			continue
		}
		rec := &recorder.Recorder{}
		func() {
			if c.Virtual {
				// A bubble whose goroutines wait for each other panics here.
				defer func() {
					if v := recover(); v != nil {
						rec.Errorf("the store hangs: %v", v)
					}
				}()
			}
			c.run(t, func(t *testing.T) {
				h := c.New(t)
				rec.Run(t, func(tb testing.TB) { r.check(&bench{TB: tb, Harness: h}) })
			})
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

func (c Config) run(t *testing.T, fn func(*testing.T)) {
	if c.Virtual {
		synctest.Test(t, fn)
	} else {
		fn(t)
	}
}

// bench is a rule's table.
type bench struct {
	testing.TB
	Harness
}

const lease = time.Minute

func (b *bench) enqueue(messages ...outbox.Message) {
	b.Helper()
	if err := b.Enqueue(b.Context(), messages...); err != nil {
		b.Fatal(err)
	}
}

// lane makes messages of one lane whose ids are its name and a number.
func lane(topic, key string, n int) (all []outbox.Message) {
	for i := range n {
		all = append(all, outbox.Message{ID: fmt.Sprint(topic, ".", key, ".", i), Topic: topic, Key: key, Payload: []byte("payload")})
	}
	return all
}

func (b *bench) claim(c outbox.Claim) []outbox.Claimed {
	b.Helper()
	if c.Lease == 0 {
		c.Lease = lease
	}
	got, _, err := b.Store.Exchange(b.Context(), nil, c)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

// wantClaim claims what there is and checks the ids, in whatever order.
func (b *bench) wantClaim(ids ...string) []outbox.Claimed {
	b.Helper()
	got := b.claim(outbox.Claim{Max: 100, Suspect: true})
	b.wantIDs(got, ids...)
	return got
}

func (b *bench) wantIDs(got []outbox.Claimed, ids ...string) {
	b.Helper()
	var have []string
	for _, m := range got {
		have = append(have, m.ID)
	}
	slices.Sort(have)
	slices.Sort(ids)
	if !slices.Equal(have, ids) {
		b.Fatalf("claimed %q; want %q", have, ids)
	}
}

func (b *bench) one(id string) outbox.Claimed {
	b.Helper()
	return b.wantClaim(id)[0]
}

// settle settles and wants nothing lost.
func (b *bench) settle(m outbox.Claimed, s outbox.Settlement) {
	b.Helper()
	if b.lost(m, s) {
		b.Fatalf("the claim on %s is lost", m.ID)
	}
}

func (b *bench) lost(m outbox.Claimed, s outbox.Settlement) bool {
	b.Helper()
	s.Ref = m.Ref
	_, lost, err := b.Store.Exchange(b.Context(), []outbox.Settlement{s}, outbox.Claim{})
	if err != nil {
		b.Fatal(err)
	}
	return slices.Contains(lost, m.Ref)
}

func (b *bench) deliver(m outbox.Claimed) {
	b.Helper()
	b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeDelivered})
}

func (b *bench) find(id string) outbox.Entry {
	b.Helper()
	e, err := b.Store.Find(b.Context(), id)
	if err != nil {
		b.Fatalf("find %s: %v", id, err)
	}
	return e
}

func (b *bench) redrive(f outbox.Filter) []outbox.Redriven {
	b.Helper()
	done, err := b.Store.Redrive(b.Context(), f)
	if err != nil {
		b.Fatal(err)
	}
	return done
}

func want[T comparable](b *bench, what string, got, want T) {
	b.Helper()
	if got != want {
		b.Errorf("%s is %v; want %v", what, got, want)
	}
}

// rule is one promise of a store.
type rule struct {
	name  string
	check func(*bench)
}

var rules = []rule{
	{"a-message-comes-as-it-was-enqueued", comesAsEnqueued},
	{"an-id-is-taken-once", idOnce},
	{"a-message-is-not-enqueued-that-breaks-its-bounds", bounds},
	{"a-claim-takes-no-more-than-it-asks-for", claimBounds},
	{"every-topic-has-its-share", topicShares},
	{"a-leased-message-is-not-claimed-again-before-its-lease-is-over", leases},
	{"a-stale-claim-changes-nothing", staleClaim},
	{"a-lapsed-claim-that-nobody-followed-still-holds", lapsedHolds},
	{"of-a-settlement-and-a-claim-after-the-lease-one-has-the-message", settleOrClaim},
	{"settling-again-changes-nothing", settleAgain},
	{"an-exchange-claims-of-the-lane-that-it-lets-go-on", exchangeOnward},
	{"an-exchange-takes-effect-as-a-whole", exchangeWhole},
	{"of-a-lane-only-the-first-is-claimed", laneHead},
	{"a-lane-waits-for-its-first-messages-time", laneWaits},
	{"a-failure-keeps-its-lane-waiting-and-no-other", laneFailure},
	{"a-dead-message-blocks-its-lane-or-lets-it-go-on", deadPolicies},
	{"redriving-a-blocking-message-keeps-the-order", redriveInOrder},
	{"redriving-a-skipped-message-says-that-order-is-given-up", redriveOutOfOrder},
	{"of-concurrent-redrives-one-takes-place", redriveOnce},
	{"a-delivered-message-is-redriven-by-its-id-only", redriveDelivered},
	{"a-decision-is-on-record-and-ends-what-it-cancels", decides},
	{"a-delay-delays-and-a-release-does-not", delays},
	{"a-release-with-a-delay-delays-and-is-no-attempt", releasedLater},
	{"a-marked-claim-leaves-the-message-unsure", marks},
	{"suspects-come-alone", suspects},
	{"what-comes-back-and-what-is-new-do-not-starve-each-other", noStarvation},
	{"concurrent-claims-share-nothing", concurrentClaims},
	{"a-message-is-not-before-its-time", notBefore},
	{"a-sweep-keeps-what-is-wanted", sweeps},
	{"status-tells-what-waits", status},
	{"lists-are-paged-and-filtered", lists},
	{"origins-are-kept-and-found", origins},
	{"a-purge-removes-and-unblocks", purges},
	{"who-has-left-is-not-served", cancelled},
}

func comesAsEnqueued(b *bench) {
	long := strings.Repeat("x", outbox.MaxName)
	for _, m := range []outbox.Message{
		{Topic: "t", Payload: []byte("plain")},
		{ID: "an.id:of-my_own", Topic: "t", Key: "k", Type: "order.paid", Headers: map[string]string{"Name": "välue", "x": ""}, Payload: []byte{0, 1, 0xff, '\n'}},
		{ID: long, Topic: long, Key: strings.Repeat("ü", 127), Type: long, Payload: make([]byte, outbox.MaxPayload)},
		{Topic: "t"},
	} {
		before := time.Now()
		b.enqueue(m)
		got := b.claim(outbox.Claim{Max: 10})
		if len(got) != 1 {
			b.Fatalf("claimed %d messages; want 1", len(got))
		}
		g := got[0]
		if m.ID == "" {
			if g.ID == "" {
				b.Error("a message has no id")
			}
			m.ID = g.ID
		}
		if g.ID != m.ID || g.Topic != m.Topic || g.Key != m.Key || g.Type != m.Type || string(g.Payload) != string(m.Payload) ||
			fmt.Sprint(g.Headers) != fmt.Sprint(m.Headers) || !g.NotBefore.IsZero() || g.Malformed != nil {
			b.Errorf("%+v came as %+v", m, g)
		}
		if g.EnqueuedAt.Before(before.Add(-time.Minute)) || g.EnqueuedAt.After(time.Now().Add(time.Minute)) {
			b.Errorf("enqueued at %v, now is %v", g.EnqueuedAt, time.Now())
		}
		want(b, "attempts", g.Attempts, 1)
		want(b, "lapses", g.Lapses, 0)
		want(b, "unsure", g.Unsure, false)
		b.deliver(g)
		want(b, "state", b.find(g.ID).State, outbox.StateDelivered)
	}
	b.wantClaim()
}

func origins(b *bench) {
	b.enqueue(outbox.Message{ID: "none", Topic: "t"})
	b.enqueue(outbox.Message{ID: "own", Topic: "t", Key: "k", Origin: "record 1"})
	b.enqueue(outbox.Message{ID: "other", Topic: "u", Origin: "record"})
	ctx := outbox.WithOrigin(b.Context(), "record 1")
	if err := b.Enqueue(ctx, outbox.Message{ID: "of-context", Topic: "t"}, outbox.Message{ID: "own-first", Topic: "t", Origin: "record"}); err != nil {
		b.Fatal(err)
	}
	want(b, "an origin", b.find("of-context").Origin, "record 1")
	want(b, "no origin", b.find("none").Origin, "")
	listed := func(f outbox.Filter) string {
		page, err := b.Store.List(b.Context(), f)
		if err != nil {
			b.Fatal(err)
		}
		var ids []string
		for _, e := range page {
			if e.Origin != f.Origin {
				b.Errorf("%s has the origin %q", e.ID, e.Origin)
			}
			ids = append(ids, e.ID)
		}
		return strings.Join(ids, " ")
	}
	want(b, "messages of an origin", listed(outbox.Filter{Origin: "record 1"}), "own of-context")
	for _, g := range b.claim(outbox.Claim{Max: 10}) {
		b.deliver(g)
	}
	want(b, "messages of an origin, once delivered", listed(outbox.Filter{Origin: "record 1"}), "own of-context")
	want(b, "messages of an origin and a topic", listed(outbox.Filter{Origin: "record", Topic: "u"}), "other")
	want(b, "messages of an unknown origin", listed(outbox.Filter{Origin: "record%"}), "")
	if err := b.Enqueue(b.Context(), outbox.Message{Topic: "t", Origin: strings.Repeat("x", outbox.MaxName+1)}); err == nil {
		b.Error("an origin beyond the bound was enqueued")
	}
}

func idOnce(b *bench) {
	m := outbox.Message{ID: "one", Topic: "t"}
	b.enqueue(m)
	if err := b.Enqueue(b.Context(), outbox.Message{ID: "two", Topic: "t"}, m); !errors.Is(err, outbox.ErrDuplicate) {
		b.Errorf("a second message of one id: %v", err)
	}
	b.wantClaim("one")
	ids := map[string]bool{}
	b.enqueue(make([]outbox.Message, 0)...)
	for range 3 {
		b.enqueue(outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"})
	}
	for _, m := range b.claim(outbox.Claim{Max: 100}) {
		ids[m.ID] = true
	}
	want(b, "number of different ids", len(ids), 6)
}

func bounds(b *bench) {
	for name, m := range map[string]outbox.Message{
		"no topic":            {},
		"long topic":          {Topic: strings.Repeat("x", outbox.MaxName+1)},
		"long key":            {Topic: "t", Key: strings.Repeat("x", outbox.MaxName+1)},
		"key that is no text": {Topic: "t", Key: "\xff"},
		"id with a space":     {Topic: "t", ID: "a b"},
		"long id":             {Topic: "t", ID: strings.Repeat("x", outbox.MaxName+1)},
		"header without name": {Topic: "t", Headers: map[string]string{"": "x"}},
		"large headers":       {Topic: "t", Headers: map[string]string{"x": strings.Repeat("x", outbox.MaxHeaders)}},
		"large payload":       {Topic: "t", Payload: make([]byte, outbox.MaxPayload+1)},
	} {
		if err := b.Enqueue(b.Context(), outbox.Message{Topic: "t", ID: "beside"}, m); err == nil {
			b.Errorf("%s was enqueued", name)
		}
	}
	b.wantClaim()
}
