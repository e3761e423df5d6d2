// Package outboxtest is the contract of outbox.Store in executable form.
//
//	func TestOutbox(t *testing.T) {
//		outboxtest.Run(t, outboxtest.Config{New: newHarness})
//	}
package outboxtest

import (
	"cmp"
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

// Check tests the store against the rules named, or every rule, and returns those
// it breaks, each with what was wrong first: for tests of this suite against stores
// known to be wrong. It fails t only where the harness does.
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

func claimBounds(b *bench) {
	for range 10 {
		b.enqueue(outbox.Message{Topic: "t", Payload: make([]byte, 1000)})
	}
	b.enqueue(outbox.Message{Topic: "other"})
	want(b, "number claimed of at most 3", len(b.claim(outbox.Claim{Topic: "t", Max: 3})), 3)
	want(b, "number claimed within 2500 bytes", len(b.claim(outbox.Claim{Topic: "t", Max: 10, MaxBytes: 2500})), 2)
	want(b, "number claimed within 10 bytes", len(b.claim(outbox.Claim{Topic: "t", Max: 10, MaxBytes: 10})), 1)
	want(b, "number claimed of no topic", len(b.claim(outbox.Claim{Topic: "none", Max: 10})), 0)
	want(b, "number claimed of the rest", len(b.claim(outbox.Claim{Max: 10})), 5)
	want(b, "number claimed of nothing", len(b.claim(outbox.Claim{Max: 10})), 0)
}

func topicShares(b *bench) {
	for _, topic := range []string{"a", "b", "c"} {
		for range 20 {
			b.enqueue(outbox.Message{Topic: topic})
		}
	}
	for range 4 {
		seen := map[string]int{}
		for _, m := range b.claim(outbox.Claim{Max: 15}) {
			seen[m.Topic]++
		}
		if seen["a"] != 5 || seen["b"] != 5 || seen["c"] != 5 {
			b.Errorf("in a claim of 15 came %v; want 5 of each", seen)
		}
	}
}

func leases(b *bench) {
	b.enqueue(outbox.Message{ID: "m", Topic: "t"})
	first := b.one("m")
	b.Advance(lease - time.Second)
	b.wantClaim()
	if lost, err := b.Store.Renew(b.Context(), lease, []outbox.Ref{first.Ref}); err != nil || len(lost) > 0 {
		b.Fatal(lost, err)
	}
	b.Advance(lease - time.Second)
	b.wantClaim()
	if e := b.find("m"); e.LeaseLeft <= 0 || e.LeaseLeft > lease {
		b.Errorf("%v are left of the lease", e.LeaseLeft)
	}
	b.Advance(time.Second)
	second := b.one("m")
	if second.Fence == first.Fence {
		b.Error("two claims have one fence")
	}
	want(b, "attempts", second.Attempts, 2)
	want(b, "lapses", second.Lapses, 1)
}

func staleClaim(b *bench) {
	b.enqueue(lane("t", "k", 2)...)
	stale := b.one("t.k.0")
	b.Advance(lease)
	held := b.one("t.k.0")
	for _, outcome := range []outbox.Outcome{
		outbox.OutcomeDelivered, outbox.OutcomeRetry, outbox.OutcomeDead, outbox.OutcomeUnknown, outbox.OutcomeReleased,
	} {
		if !b.lost(stale, outbox.Settlement{Outcome: outcome, Unsure: true, Cause: "stale"}) {
			b.Errorf("a stale claim settled outcome %d", outcome)
		}
	}
	if lost, err := b.Store.Renew(b.Context(), time.Hour, []outbox.Ref{stale.Ref, held.Ref}); err != nil || !slices.Equal(lost, []outbox.Ref{stale.Ref}) {
		b.Errorf("renewing a stale claim and a good one lost %v, %v", lost, err)
	}
	if err := b.Store.Mark(b.Context(), stale.Ref); !errors.Is(err, outbox.ErrLeaseLost) {
		b.Errorf("a stale claim was marked: %v", err)
	}
	e := b.find("t.k.0")
	if e.State != outbox.StatePending || e.Unsure || e.Cause != "" || e.LeaseLeft <= lease {
		b.Errorf("a stale claim left %+v", e)
	}
	b.wantClaim()
	b.deliver(held)
	b.deliver(b.one("t.k.1"))
	if !b.lost(stale, outbox.Settlement{Outcome: outbox.OutcomeRetry}) {
		b.Error("a stale claim settled a message that was delivered")
	}
	want(b, "state", b.find("t.k.0").State, outbox.StateDelivered)
}

func lapsedHolds(b *bench) {
	b.enqueue(outbox.Message{ID: "a", Topic: "t"}, outbox.Message{ID: "b", Topic: "t"})
	got := b.wantClaim("a", "b")
	b.Advance(2 * lease)
	if lost, err := b.Store.Renew(b.Context(), lease, []outbox.Ref{got[0].Ref}); err != nil || len(lost) > 0 {
		b.Errorf("a claim that nobody followed is lost: %v, %v", lost, err)
	}
	b.deliver(got[1])
	b.wantClaim()
	b.deliver(got[0])
	// Nor is it lost by another's claim that takes something else.
	b.enqueue(outbox.Message{ID: "c", Topic: "t"}, outbox.Message{ID: "d", Topic: "t"})
	got = b.wantClaim("c", "d")
	b.Advance(lease)
	taken := b.claim(outbox.Claim{Max: 1})
	want(b, "number claimed", len(taken), 1)
	for _, m := range got {
		if m.ID != taken[0].ID {
			b.deliver(m)
			want(b, "state", b.find(m.ID).State, outbox.StateDelivered)
		} else if !b.lost(m, outbox.Settlement{Outcome: outbox.OutcomeDelivered}) {
			b.Error("a claim that another followed is not lost")
		}
	}
}

// settleOrClaim has owners whose lease is over settle while another claims.
func settleOrClaim(b *bench) {
	const n = 40
	for i := range n {
		b.enqueue(outbox.Message{ID: fmt.Sprint("m", i), Topic: "t"})
	}
	late := b.claim(outbox.Claim{Max: n})
	want(b, "number claimed", len(late), n)
	b.Advance(lease)
	type answer struct {
		claimed []outbox.Claimed
		lost    []outbox.Ref
		err     error
	}
	settled, claimed := make(chan answer), make(chan answer)
	owner, other := b.Open(), b.Open()
	began := make(chan struct{}) // so that there is something left to claim
	go func() {
		var all answer
		for i, m := range late {
			if i == n/2 {
				<-began
			}
			_, lost, err := owner.Exchange(b.Context(), []outbox.Settlement{{Ref: m.Ref, Outcome: outbox.OutcomeDelivered}}, outbox.Claim{})
			all.lost, all.err = append(all.lost, lost...), errors.Join(all.err, err)
		}
		settled <- all
	}()
	go func() {
		var all answer
		for i := range n / 4 {
			got, _, err := other.Exchange(b.Context(), nil, outbox.Claim{Max: 2, Lease: lease})
			all.claimed, all.err = append(all.claimed, got...), errors.Join(all.err, err)
			if i == 0 {
				close(began)
			}
		}
		claimed <- all
	}()
	s, c := <-settled, <-claimed
	if err := errors.Join(s.err, c.err); err != nil {
		b.Fatal(err)
	}
	want(b, "number of settlements lost", len(s.lost), len(c.claimed))
	for _, m := range c.claimed {
		e := b.find(m.ID)
		if e.State != outbox.StatePending || e.Attempts != 2 || e.LeaseLeft <= 0 {
			b.Errorf("claimed by another, %s is %+v", m.ID, e)
		}
		b.deliver(m)
	}
	page, err := b.Store.List(b.Context(), outbox.Filter{State: outbox.StateDelivered})
	if err != nil {
		b.Fatal(err)
	}
	want(b, "number delivered", len(page), n)
}

func settleAgain(b *bench) {
	for i, s := range []outbox.Settlement{
		{Outcome: outbox.OutcomeDelivered},
		{Outcome: outbox.OutcomeRetry, Delay: time.Hour, Cause: "why"},
		{Outcome: outbox.OutcomeDead, Cause: "why"},
		{Outcome: outbox.OutcomeUnknown, Cause: "why"},
	} {
		id := fmt.Sprint("m", i)
		b.enqueue(outbox.Message{ID: id, Topic: "t"})
		m := b.one(id)
		b.settle(m, s)
		once := b.find(id)
		b.settle(m, s)
		twice := b.find(id)
		if once.State != twice.State || once.Attempts != twice.Attempts || once.Cause != twice.Cause || !once.SettledAt.Equal(twice.SettledAt) {
			b.Errorf("settled once it is %+v, twice %+v", once, twice)
		}
		if s.Cause != once.Cause {
			b.Errorf("outcome %d has cause %q; want %q", s.Outcome, once.Cause, s.Cause)
		}
		if lost, err := b.Store.Renew(b.Context(), lease, []outbox.Ref{m.Ref}); err != nil || len(lost) != 1 {
			b.Errorf("a settled claim was renewed: %v, %v", lost, err)
		}
		if err := b.Store.Mark(b.Context(), m.Ref); !errors.Is(err, outbox.ErrLeaseLost) {
			b.Errorf("a settled claim was marked: %v", err)
		}
	}
	// Twice in one exchange is once, and what is between is left alone.
	b.enqueue(lane("t", "", 3)...)
	got := b.claim(outbox.Claim{Max: 10})
	want(b, "number claimed", len(got), 3)
	slices.SortFunc(got, func(x, y outbox.Claimed) int { return cmp.Compare(x.Position, y.Position) })
	var s []outbox.Settlement
	for _, i := range []int{0, 0, 2} {
		s = append(s, outbox.Settlement{Ref: got[i].Ref, Outcome: outbox.OutcomeDelivered})
	}
	if _, lost, err := b.Store.Exchange(b.Context(), s, outbox.Claim{}); err != nil || len(lost) > 0 {
		b.Errorf("settled twice in one exchange: lost %v, %v", lost, err)
	}
	for i, m := range got {
		state := outbox.StateDelivered
		if i == 1 {
			state = outbox.StatePending
		}
		want(b, "state", b.find(m.ID).State, state)
	}
	b.deliver(got[1])
}

func exchangeOnward(b *bench) {
	b.enqueue(slices.Concat(lane("t", "x", 3), lane("t", "y", 2))...)
	stale := b.claim(outbox.Claim{Max: 10})
	b.Advance(lease)
	held := b.wantClaim("t.x.0", "t.y.0")
	s := []outbox.Settlement{{Ref: stale[0].Ref, Outcome: outbox.OutcomeDelivered}}
	for _, m := range held {
		outcome := outbox.OutcomeDelivered
		if m.Key == "y" {
			outcome = outbox.OutcomeRetry
		}
		s = append(s, outbox.Settlement{Ref: m.Ref, Outcome: outcome, Delay: time.Hour})
	}
	got, lost, err := b.Store.Exchange(b.Context(), s, outbox.Claim{Max: 10, Lease: lease})
	if err != nil || !slices.Equal(lost, []outbox.Ref{stale[0].Ref}) {
		b.Fatalf("an exchange with a stale claim lost %v, %v", lost, err)
	}
	b.wantIDs(got, "t.x.1")
	b.wantClaim()
}

func exchangeWhole(b *bench) {
	b.enqueue(outbox.Message{ID: "a", Topic: "t"}, outbox.Message{ID: "b", Topic: "t"})
	m := b.claim(outbox.Claim{Max: 1})[0]
	got, lost, err := b.Store.Exchange(b.Context(), []outbox.Settlement{
		{Ref: m.Ref, Outcome: outbox.OutcomeDelivered}, {Ref: m.Ref},
	}, outbox.Claim{Max: 1, Lease: lease})
	if err == nil {
		b.Errorf("a settlement without an outcome: claimed %v, lost %v", got, lost)
	}
	want(b, "state", b.find(m.ID).State, outbox.StatePending)
	want(b, "number claimed", len(b.claim(outbox.Claim{Max: 10})), 1)
	if got, lost, err := b.Store.Exchange(b.Context(), nil, outbox.Claim{}); len(got)+len(lost) > 0 || err != nil {
		b.Errorf("an exchange of nothing: %v, %v, %v", got, lost, err)
	}
	b.deliver(m)
}

func laneHead(b *bench) {
	b.enqueue(slices.Concat(lane("t", "x", 3), lane("t", "y", 2), lane("u", "x", 2))...)
	b.enqueue(outbox.Message{ID: "free1", Topic: "t"}, outbox.Message{ID: "free2", Topic: "t"})
	got := b.wantClaim("t.x.0", "t.y.0", "u.x.0", "free1", "free2")
	b.wantClaim()
	for _, m := range got {
		if m.ID == "t.x.0" {
			b.deliver(m)
		}
	}
	next := b.one("t.x.1")
	want(b, "whether the third waits", b.find("t.x.2").Waiting, true)
	b.Advance(lease) // all leases are over: the same come again, and no other
	b.wantClaim("t.x.1", "t.y.0", "u.x.0", "free1", "free2")
	if !b.lost(next, outbox.Settlement{Outcome: outbox.OutcomeDelivered}) {
		b.Error("a stale claim settled a message")
	}
	b.enqueue(outbox.Message{ID: "t.x.3", Topic: "t", Key: "x"})
	b.wantClaim()
}

func laneWaits(b *bench) {
	m := lane("t", "x", 3)
	m[0].NotBefore = time.Now().Add(time.Hour)
	m[1].NotBefore = time.Now().Add(2 * time.Hour)
	b.enqueue(m...)
	b.wantClaim()
	b.Advance(time.Hour + time.Second)
	b.deliver(b.one("t.x.0"))
	b.wantClaim()
	b.Advance(time.Hour)
	b.deliver(b.one("t.x.1"))
	b.deliver(b.one("t.x.2"))
}

func laneFailure(b *bench) {
	b.enqueue(slices.Concat(lane("t", "x", 2), lane("t", "y", 2))...)
	for _, m := range b.wantClaim("t.x.0", "t.y.0") {
		if m.Key == "x" {
			b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeRetry, Delay: time.Hour, Cause: "no"})
		} else {
			b.deliver(m)
		}
	}
	b.deliver(b.one("t.y.1"))
	b.wantClaim()
	b.Advance(time.Hour)
	again := b.one("t.x.0")
	want(b, "attempts", again.Attempts, 2)
	b.settle(again, outbox.Settlement{Outcome: outbox.OutcomeReleased})
	again = b.one("t.x.0")
	want(b, "attempts after a release", again.Attempts, 2)
	b.deliver(again)
	b.deliver(b.one("t.x.1"))
}

func deadPolicies(b *bench) {
	for i, outcome := range []outbox.Outcome{outbox.OutcomeDead, outbox.OutcomeUnknown} {
		state := []outbox.State{outbox.StateDead, outbox.StateUnknown}[i]
		blocked, skipped := fmt.Sprint("blocked", i), fmt.Sprint("skipped", i)
		b.enqueue(slices.Concat(lane("t", blocked, 2), lane("t", skipped, 2))...)
		for _, m := range b.wantClaim("t."+blocked+".0", "t."+skipped+".0") {
			b.settle(m, outbox.Settlement{Outcome: outcome, Blocks: m.Key == blocked, Cause: "no"})
		}
		b.deliver(b.one("t." + skipped + ".1"))
		b.wantClaim()
		b.enqueue(outbox.Message{ID: "later" + blocked, Topic: "t", Key: blocked})
		b.Advance(24 * time.Hour)
		b.wantClaim()
		for _, key := range []string{blocked, skipped} {
			e := b.find("t." + key + ".0")
			want(b, "state", e.State, state)
			want(b, "whether it blocks", e.Blocks, key == blocked)
			want(b, "cause", e.Cause, "no")
			want(b, "whether settled", e.SettledAt.IsZero(), false)
		}
	}
	// Without a key nothing is blocked.
	b.enqueue(outbox.Message{ID: "a", Topic: "t"}, outbox.Message{ID: "b", Topic: "t"})
	got := b.claim(outbox.Claim{Max: 1})
	b.settle(got[0], outbox.Settlement{Outcome: outbox.OutcomeDead, Blocks: true})
	want(b, "whether it blocks", b.find(got[0].ID).Blocks, false)
	want(b, "number claimed behind it", len(b.claim(outbox.Claim{Max: 10})), 1)
}

func redriveInOrder(b *bench) {
	b.enqueue(lane("t", "x", 3)...)
	m := b.one("t.x.0")
	b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeDead, Blocks: true})
	done := b.redrive(outbox.Filter{ID: "t.x.0"})
	if len(done) != 1 || done[0].ID != "t.x.0" || done[0].OutOfOrder {
		b.Fatalf("redriven: %+v", done)
	}
	m = b.one("t.x.0")
	want(b, "attempts", m.Attempts, 1)
	want(b, "redriven", b.find("t.x.0").Redriven, 1)
	if !b.lost(outbox.Claimed{Ref: outbox.Ref{Position: m.Position, Fence: m.Fence + 1}}, outbox.Settlement{Outcome: outbox.OutcomeDelivered}) {
		b.Error("a made-up fence settled a message")
	}
	b.deliver(m)
	b.deliver(b.one("t.x.1"))
	if done := b.redrive(outbox.Filter{}); len(done) != 0 {
		b.Errorf("messages were redriven that were not dead: %+v", done)
	}
	b.deliver(b.one("t.x.2"))
}

func redriveOutOfOrder(b *bench) {
	b.enqueue(lane("t", "x", 3)...)
	b.settle(b.one("t.x.0"), outbox.Settlement{Outcome: outbox.OutcomeDead})
	b.enqueue(outbox.Message{ID: "free", Topic: "t"})
	for _, m := range b.wantClaim("t.x.1", "free") {
		if m.ID == "free" {
			b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeUnknown})
		}
	}
	for _, d := range b.redrive(outbox.Filter{Topic: "t"}) {
		want(b, "whether "+d.ID+" is out of order", d.OutOfOrder, d.ID == "t.x.0")
	}
	for _, m := range b.wantClaim("t.x.0", "free") { // beside t.x.1, which is under way
		b.deliver(m)
	}
	b.wantClaim()
}

func redriveOnce(b *bench) {
	for i := range 20 {
		b.enqueue(outbox.Message{ID: fmt.Sprint("m", i), Topic: "t"})
	}
	for _, m := range b.claim(outbox.Claim{Max: 20}) {
		b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeDead})
	}
	counts := make(chan int)
	for range 4 {
		s := b.Open()
		go func() {
			done, err := s.Redrive(b.Context(), outbox.Filter{})
			if err != nil {
				b.Error(err)
			}
			counts <- len(done)
		}()
	}
	want(b, "number redriven", <-counts+<-counts+<-counts+<-counts, 20)
	want(b, "redriven", b.find("m7").Redriven, 1)
}

func redriveDelivered(b *bench) {
	b.enqueue(lane("t", "x", 2)...)
	b.deliver(b.one("t.x.0"))
	for _, f := range []outbox.Filter{{ID: "t.x.0"}, {State: outbox.StateDelivered}, {Topic: "t", State: outbox.StateDelivered}} {
		if done := b.redrive(f); len(done) != 0 {
			b.Errorf("by %+v were redriven: %+v", f, done)
		}
	}
	// One that is under way is no matter of its lane's past.
	next := b.one("t.x.1")
	done := b.redrive(outbox.Filter{ID: "t.x.0", State: outbox.StateDelivered})
	if len(done) != 1 || done[0].ID != "t.x.0" || !done[0].OutOfOrder {
		b.Fatalf("redriven: %+v", done)
	}
	again := b.one("t.x.0")
	want(b, "attempts", again.Attempts, 1)
	want(b, "redriven", b.find("t.x.0").Redriven, 1)
	b.deliver(again)
	b.deliver(next)
	want(b, "state", b.find("t.x.0").State, outbox.StateDelivered)
	if done := b.redrive(outbox.Filter{ID: "t.x.0", State: outbox.StateDead}); len(done) != 0 {
		b.Errorf("a delivered message counts as dead: %+v", done)
	}
	b.wantClaim()
}

func decides(b *bench) {
	b.enqueue(lane("t", "x", 3)...)
	ada := outbox.Decision{Verdict: outbox.VerdictCancel, By: "ada", Because: "wrong customer"}
	decide := func(f outbox.Filter, d outbox.Decision, ids ...string) {
		b.Helper()
		done, err := b.Store.Decide(b.Context(), f, d)
		if err != nil {
			b.Fatal(err)
		}
		var got []string
		for _, m := range done {
			got = append(got, m.ID)
		}
		if !slices.Equal(got, ids) {
			b.Fatalf("by %+v were changed: %q; want %q", f, got, ids)
		}
	}
	m := b.one("t.x.0")
	decide(outbox.Filter{TopicPrefix: "t", Key: "x", Limit: 2}, ada, "t.x.0", "t.x.1")
	if !b.lost(m, outbox.Settlement{Outcome: outbox.OutcomeDelivered}) {
		b.Error("a claim on what was cancelled still settles")
	}
	b.deliver(b.one("t.x.2")) // the lane goes on
	for _, id := range []string{"t.x.0", "t.x.1"} {
		e := b.find(id)
		if e.State != outbox.StateDead || e.Blocks || e.SettledAt.IsZero() || e.LeaseLeft != 0 || e.Cause != ada.Cause() {
			b.Errorf("cancelled it is %+v", e)
		}
	}
	decide(outbox.Filter{Topic: "t"}, ada)
	bob := outbox.Decision{Verdict: outbox.VerdictAgain, By: "bob", Because: "it was the right one"}
	decide(outbox.Filter{ID: "t.x.1"}, bob, "t.x.1")
	b.deliver(b.one("t.x.1"))
	var got []outbox.Decision
	for _, d := range b.find("t.x.1").Decisions {
		if d.At.IsZero() {
			b.Error("a decision has no time")
		}
		d.At = time.Time{}
		got = append(got, d)
	}
	if !slices.Equal(got, []outbox.Decision{ada, bob}) {
		b.Errorf("on record are %+v", got)
	}
	b.enqueue(outbox.Message{ID: "other", Topic: "u"})
	if d := b.find("other").Decisions; len(d) > 0 {
		b.Errorf("of another are on record %+v", d)
	}
	if _, err := b.Store.Decide(b.Context(), outbox.Filter{}, outbox.Decision{Verdict: outbox.VerdictCancel, By: "ada"}); err == nil {
		b.Error("a decision without a reason was taken")
	}
}

func releasedLater(b *bench) {
	b.enqueue(lane("t", "x", 2)...)
	b.enqueue(outbox.Message{ID: "m", Topic: "t"})
	for _, m := range b.wantClaim("m", "t.x.0") {
		b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeReleased, Delay: time.Hour})
	}
	b.wantClaim()
	if e := b.find("m"); e.DueAt.IsZero() || e.State != outbox.StatePending || e.Attempts != 0 {
		b.Errorf("released for later it is %+v", e)
	}
	b.Advance(time.Hour - time.Second)
	b.wantClaim()
	b.Advance(2 * time.Second)
	for _, m := range b.wantClaim("m", "t.x.0") {
		want(b, "attempts", m.Attempts, 1)
		want(b, "lapses", m.Lapses, 0)
		b.deliver(m)
	}
	b.deliver(b.one("t.x.1"))
}

func delays(b *bench) {
	b.enqueue(outbox.Message{ID: "m", Topic: "t"})
	b.settle(b.one("m"), outbox.Settlement{Outcome: outbox.OutcomeRetry, Delay: time.Hour})
	b.Advance(time.Hour - time.Second)
	b.wantClaim()
	if e := b.find("m"); e.DueAt.IsZero() || e.State != outbox.StatePending {
		b.Errorf("delayed it is %+v", e)
	}
	b.Advance(time.Second)
	b.settle(b.one("m"), outbox.Settlement{Outcome: outbox.OutcomeReleased})
	want(b, "attempts", b.one("m").Attempts, 2)
}

func marks(b *bench) {
	b.enqueue(outbox.Message{ID: "m", Topic: "t"})
	m := b.one("m")
	if err := b.Store.Mark(b.Context(), m.Ref); err != nil {
		b.Fatal(err)
	}
	b.Advance(lease)
	m = b.one("m")
	want(b, "unsure", m.Unsure, true)
	b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeRetry})
	m = b.one("m")
	want(b, "unsure after a certain failure", m.Unsure, false)
	b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeRetry, Unsure: true})
	m = b.one("m")
	want(b, "unsure after an uncertain failure", m.Unsure, true)
	b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeUnknown, Unsure: true})
	want(b, "unsure of what is unknown", b.find("m").Unsure, true)
	b.redrive(outbox.Filter{State: outbox.StateUnknown})
	m = b.one("m")
	want(b, "unsure after a redrive", m.Unsure, false)
	if err := b.Store.Mark(b.Context(), m.Ref); err != nil {
		b.Fatal(err)
	}
	b.deliver(m)
	want(b, "unsure of what is delivered", b.find("m").Unsure, false)
}

func suspects(b *bench) {
	for i := range 5 {
		b.enqueue(outbox.Message{ID: fmt.Sprint("m", i), Topic: "t"})
	}
	for range outbox.SuspectLapses {
		want(b, "number claimed", len(b.claim(outbox.Claim{Max: 10})), 5)
		b.Advance(lease)
	}
	b.enqueue(outbox.Message{ID: "new", Topic: "t"})
	b.wantIDs(b.claim(outbox.Claim{Max: 10}), "new")
	got := b.claim(outbox.Claim{Max: 10, Suspect: true})
	if len(got) != 1 || got[0].Lapses != outbox.SuspectLapses {
		b.Fatalf("claimed %+v; want one suspect", got)
	}
	b.settle(got[0], outbox.Settlement{Outcome: outbox.OutcomeRetry}) // it killed nobody
	b.wantIDs(b.claim(outbox.Claim{Max: 10}), got[0].ID)
	for range 4 {
		want(b, "number of suspects", len(b.claim(outbox.Claim{Max: 10, Suspect: true})), 1)
	}
}

func noStarvation(b *bench) {
	for i := range 10 {
		b.enqueue(outbox.Message{ID: fmt.Sprint("old", i), Topic: "t"})
	}
	for _, m := range b.claim(outbox.Claim{Max: 10}) {
		b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeRetry})
	}
	for i := range 10 {
		b.enqueue(outbox.Message{ID: fmt.Sprint("new", i), Topic: "t"})
	}
	b.Advance(time.Second)
	old := 0
	for _, m := range b.claim(outbox.Claim{Max: 10}) {
		if strings.HasPrefix(m.ID, "old") {
			old++
		}
	}
	want(b, "number of ten that were tried before", old, 5)
	want(b, "number of the rest", len(b.claim(outbox.Claim{Max: 20})), 10)
}

func concurrentClaims(b *bench) {
	const n = 300
	for i := range n {
		b.enqueue(outbox.Message{ID: fmt.Sprint("m", i), Topic: "t", Key: fmt.Sprint(i % 100)})
	}
	type result struct {
		claimed []outbox.Claimed
		err     error
	}
	results := make(chan result)
	for range 8 {
		s := b.Open()
		go func() {
			var r result
			for r.err == nil {
				var got []outbox.Claimed
				got, _, r.err = s.Exchange(b.Context(), nil, outbox.Claim{Max: 7, Lease: lease})
				if len(got) == 0 {
					break
				}
				r.claimed = append(r.claimed, got...)
			}
			results <- r
		}()
	}
	ids, keys := map[string]bool{}, map[string]bool{}
	for range 8 {
		r := <-results
		if r.err != nil {
			b.Error(r.err)
		}
		for _, m := range r.claimed {
			if ids[m.ID] || keys[m.Key] {
				b.Errorf("%s was claimed beside itself or another of its lane", m.ID)
			}
			ids[m.ID], keys[m.Key] = true, true
		}
	}
	want(b, "number of lanes claimed", len(keys), 100)
}

func notBefore(b *bench) {
	at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	b.enqueue(outbox.Message{ID: "later", Topic: "t", NotBefore: at}, outbox.Message{ID: "past", Topic: "t", NotBefore: time.Now().Add(-time.Hour)})
	b.deliver(b.one("past"))
	e := b.find("later")
	if !e.DueAt.Equal(at) || !e.NotBefore.Equal(at) {
		b.Errorf("enqueued for %v it is due at %v", at, e.DueAt)
	}
	b.Advance(time.Hour)
	want(b, "attempts", b.one("later").Attempts, 1)
}

func sweeps(b *bench) {
	end := func(id, key string, s outbox.Settlement) {
		b.enqueue(outbox.Message{ID: id, Topic: "t", Key: key})
		b.settle(b.one(id), s)
		b.Advance(time.Minute)
	}
	for i := range 5 {
		end(fmt.Sprint("delivered", i), "", outbox.Settlement{Outcome: outbox.OutcomeDelivered})
		end(fmt.Sprint("dead", i), "", outbox.Settlement{Outcome: outbox.OutcomeDead})
	}
	end("blocking", "k", outbox.Settlement{Outcome: outbox.OutcomeDead, Blocks: true})
	end("unknown", "", outbox.Settlement{Outcome: outbox.OutcomeUnknown})
	b.enqueue(outbox.Message{ID: "pending", Topic: "t"})
	sweep := func(r outbox.Retention, limit, n int, left ...string) {
		b.Helper()
		got, err := b.Store.Sweep(b.Context(), r, limit)
		if err != nil {
			b.Fatal(err)
		}
		want(b, fmt.Sprintf("number swept by %+v", r), got, n)
		page, err := b.Store.List(b.Context(), outbox.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		var ids []string
		for _, e := range page {
			ids = append(ids, e.ID)
		}
		slices.Sort(ids)
		if slices.Sort(left); !slices.Equal(ids, left) {
			b.Errorf("a sweep by %+v left %q; want %q", r, ids, left)
		}
	}
	kept := []string{"blocking", "unknown", "pending", "delivered3", "delivered4"}
	sweep(outbox.Retention{}, 100, 0, append([]string{"delivered0", "delivered1", "delivered2", "dead0", "dead1", "dead2", "dead3", "dead4"}, kept...)...)
	sweep(outbox.Retention{MaxDelivered: 2}, 2, 2, append([]string{"delivered2", "dead0", "dead1", "dead2", "dead3", "dead4"}, kept...)...)
	sweep(outbox.Retention{MaxDelivered: 2}, 100, 1, append([]string{"dead0", "dead1", "dead2", "dead3", "dead4"}, kept...)...)
	sweep(outbox.Retention{MaxDead: 3}, 100, 2, append([]string{"dead2", "dead3", "dead4"}, kept...)...)
	b.Advance(24 * time.Hour)
	sweep(outbox.Retention{Delivered: -1, Dead: 24*time.Hour + 6*time.Minute}, 100, 1, append([]string{"dead3", "dead4"}, kept...)...)
	sweep(outbox.Retention{}, 100, 2, "dead3", "dead4", "blocking", "unknown", "pending")
	sweep(outbox.Retention{Dead: time.Nanosecond}, 100, 2, "blocking", "unknown", "pending")
}

func status(b *bench) {
	get := func() map[string]outbox.TopicStatus {
		b.Helper()
		all, err := b.Store.Status(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		m := map[string]outbox.TopicStatus{}
		for _, s := range all {
			m[s.Topic] = s
		}
		return m
	}
	want(b, "number of topics", len(get()), 0)
	b.enqueue(outbox.Message{Topic: "later", NotBefore: time.Now().Add(time.Hour)})
	b.enqueue(slices.Concat(lane("t", "x", 3), lane("t", "y", 2))...)
	for _, m := range b.wantClaim("t.x.0", "t.y.0") {
		if m.Key == "x" {
			b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeDead, Blocks: true})
		} else {
			b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeUnknown})
		}
	}
	b.Advance(10 * time.Minute)
	all := get()
	want(b, "number of topics", len(all), 2)
	want(b, "age of what is due later", all["later"].OldestAge, 0)
	s := all["t"]
	if s.OldestAge < 10*time.Minute || s.OldestAge > 20*time.Minute {
		b.Errorf("the oldest age is %v; want ten minutes", s.OldestAge)
	}
	s.OldestAge = 0
	want(b, "status", s, outbox.TopicStatus{Topic: "t", Pending: 3, Dead: 1, Unknown: 1, Blocked: 1})
	b.Advance(time.Hour)
	for _, of := range []string{"ten minutes past its time", "under way"} { // and nothing else of the topic is pending
		later := get()["later"]
		if age := later.OldestAge; age < 9*time.Minute || age > 11*time.Minute || later.Pending != 1 {
			b.Errorf("%s it is %v old, and %d are pending", of, age, later.Pending)
		}
		b.claim(outbox.Claim{Topic: "later", Max: 1})
	}
}

func lists(b *bench) {
	b.enqueue(slices.Concat(lane("t", "x", 3), lane("u", "", 4))...)
	got := b.claim(outbox.Claim{Topic: "u", Max: 3})
	b.settle(got[0], outbox.Settlement{Outcome: outbox.OutcomeDead, Cause: "refused: 404"})
	b.settle(got[1], outbox.Settlement{Outcome: outbox.OutcomeDead, Cause: "refused: 410"})
	b.deliver(got[2])
	for _, tt := range []struct {
		f outbox.Filter
		n int
	}{
		{outbox.Filter{}, 7},
		{outbox.Filter{Topic: "t"}, 3},
		{outbox.Filter{Topic: "t", Key: "x"}, 3},
		{outbox.Filter{Key: "y"}, 0},
		{outbox.Filter{State: outbox.StateDead}, 2},
		{outbox.Filter{State: outbox.StatePending}, 4},
		{outbox.Filter{State: outbox.StateDelivered}, 1},
		{outbox.Filter{State: outbox.StateUnknown}, 0},
		{outbox.Filter{Cause: "refused: 404"}, 1},
		{outbox.Filter{Cause: "refused*"}, 2},
		{outbox.Filter{Cause: "refused"}, 0},
		{outbox.Filter{ID: "t.x.1"}, 1},
	} {
		var all []outbox.Entry
		for f := tt.f; ; f.After = all[len(all)-1].Position {
			f.Limit = 2
			page, err := b.Store.List(b.Context(), f)
			if err != nil {
				b.Fatal(err)
			}
			if all = append(all, page...); len(page) < 2 {
				break
			}
		}
		want(b, fmt.Sprintf("number listed by %+v", tt.f), len(all), tt.n)
		for i, e := range all {
			if i > 0 && e.Position <= all[i-1].Position || e.Payload != nil || e.Size != 7 {
				b.Errorf("listed: %+v", e)
			}
		}
	}
	if _, err := b.Store.Find(b.Context(), "nobody"); !errors.Is(err, outbox.ErrNotFound) {
		b.Errorf("find of nothing: %v", err)
	}
	want(b, "payload", string(b.find("t.x.0").Payload), "payload")
}

func purges(b *bench) {
	b.enqueue(lane("t", "x", 3)...)
	for _, f := range []outbox.Filter{{}, {Topic: "t"}} {
		if _, err := b.Store.Purge(b.Context(), f); !errors.Is(err, outbox.ErrPurgeAll) {
			b.Errorf("a purge of %+v: %v", f, err)
		}
	}
	purge := func(f outbox.Filter, n int) {
		b.Helper()
		gone, err := b.Store.Purge(b.Context(), f)
		if err != nil {
			b.Fatal(err)
		}
		want(b, fmt.Sprintf("number purged by %+v", f), len(gone), n)
	}
	m := b.one("t.x.0")
	purge(outbox.Filter{ID: "t.x.0"}, 0) // it is under way
	b.settle(m, outbox.Settlement{Outcome: outbox.OutcomeDead, Blocks: true})
	purge(outbox.Filter{State: outbox.StateDead}, 1)
	purge(outbox.Filter{ID: "t.x.2"}, 1)
	m = b.one("t.x.1")
	b.Advance(lease)
	purge(outbox.Filter{State: outbox.StatePending, Topic: "t"}, 1)
	if !b.lost(m, outbox.Settlement{Outcome: outbox.OutcomeDelivered}) {
		b.Error("a claim on a message that was purged settled it")
	}
	b.enqueue(outbox.Message{ID: "next", Topic: "t", Key: "x"})
	b.one("next")
}

func cancelled(b *bench) {
	b.enqueue(outbox.Message{ID: "m", Topic: "t"})
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if got, _, err := b.Store.Exchange(ctx, nil, outbox.Claim{Max: 1, Lease: lease}); err == nil {
		b.Errorf("claimed %v", got)
	}
	m := b.one("m")
	if _, _, err := b.Store.Exchange(ctx, []outbox.Settlement{{Ref: m.Ref, Outcome: outbox.OutcomeDelivered}}, outbox.Claim{}); err == nil {
		b.Error("settled")
	}
	if err := b.Store.Mark(ctx, m.Ref); err == nil {
		b.Error("marked")
	}
	e := b.find("m")
	want(b, "state", e.State, outbox.StatePending)
	want(b, "unsure", e.Unsure, false)
}
