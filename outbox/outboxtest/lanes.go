package outboxtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/semelhq/semel/outbox"
)

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
