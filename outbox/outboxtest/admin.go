package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/semelhq/semel/outbox"
)

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
