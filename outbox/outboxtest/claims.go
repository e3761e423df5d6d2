package outboxtest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/outbox"
)

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
