package jobstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

func cancelledByPerson(b *bench) {
	b.enqueue(jobs.Job{ID: "a"}, jobs.Job{ID: "waits", Queue: "nobody's"})
	began, cause := make(chan struct{}), make(chan error, 1)
	w := b.worker(func(ctx context.Context, j jobs.Job) error { return b.Effect(context.WithoutCancel(ctx), j.ID) })
	h := w.config.Handlers["work"]
	h.Prepare = func(ctx context.Context, _ jobs.Job) (any, error) {
		close(began)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, nil
	}
	w.config.Handlers["work"] = h
	w.config.Relay.Lease = lease
	w.start()
	hear(b, "the handler", began)
	d := outbox.Decision{Verdict: outbox.VerdictCancel, By: "ada", Because: "wrong customer"}
	for _, id := range []string{"a", "waits"} {
		done, err := b.Store.Decide(b.Context(), outbox.Filter{ID: id}, d)
		if err != nil || len(done) != 1 || done[0].ID != id {
			b.Fatalf("cancelled: %+v, %v", done, err)
		}
	}
	if err := hear(b, "the end of the handler's context", cause); !errors.Is(err, outbox.ErrLeaseLost) {
		b.Errorf("the handler's context ended with %v", err)
	}
	hear(b, "the loss", w.lost)
	w.stop()
	b.wantEffects("a", 0)
	for _, id := range []string{"a", "waits"} {
		e := b.find(id)
		if e.State != outbox.StateDead || e.Cause != "cancelled by ada: wrong customer" {
			b.Errorf("it is %+v", e)
		}
		b.wantDecisions(id, d)
	}
	if done, err := b.Store.Decide(b.Context(), outbox.Filter{ID: "a"}, d); err != nil || len(done) != 0 {
		b.Errorf("cancelled twice: %+v, %v", done, err)
	}
}

func (b *bench) wantDecisions(id string, want ...outbox.Decision) {
	b.Helper()
	got := b.find(id).Decisions
	if len(got) != len(want) {
		b.Fatalf("decisions on record: %+v; want %+v", got, want)
	}
	for i, d := range got {
		if d.At.IsZero() || d.At.After(time.Now().Add(time.Minute)) {
			b.Errorf("a decision is of %v", d.At)
		}
		if d.At = (time.Time{}); d != want[i] {
			b.Errorf("decision %+v is on record; want %+v", d, want[i])
		}
	}
}

func authority(b *bench) {
	b.enqueue(jobs.Job{ID: "revoked", Authority: jobs.Authority{Actor: "mallory"}}, jobs.Job{ID: "fine", Authority: jobs.Authority{Actor: "ada"}})
	ran := make(chan string, 100)
	var asked atomic.Int64
	w := b.worker(func(ctx context.Context, j jobs.Job) error {
		ran <- j.ID
		return b.Effect(ctx, j.ID)
	})
	w.config.Authorize = func(_ context.Context, j jobs.Job) error {
		switch {
		case j.Authority.Actor == "mallory":
			return fmt.Errorf("%w: mallory left the company", jobs.ErrRevoked)
		case asked.Add(1) == 1:
			return errors.New("no answer")
		case asked.Load() == 2:
			panic("on purpose")
		}
		return nil
	}
	w.start()
	if err := hear(b, "the refusal", w.dead); !errors.Is(err, jobs.ErrRevoked) {
		b.Error(err)
	}
	hear(b, "the other job", w.delivered)
	w.stop()
	if e := b.find("revoked"); e.State != outbox.StateDead || !strings.HasSuffix(e.Cause, "mallory left the company") || e.Attempts != 1 {
		b.Errorf("the revoked job is %+v", e)
	}
	if e := b.find("fine"); e.Attempts != 3 || <-ran != "fine" || len(ran) > 0 {
		b.Errorf("the other is %+v", e)
	}
	b.wantEffects("revoked", 0)
	b.wantEffects("fine", 1)
}

func givenUp(b *bench) {
	b.enqueue(jobs.Job{ID: "tried"}, jobs.Job{ID: "cancelled"}, jobs.Job{ID: "nobodys", Kind: "of none"})
	w := b.worker(func(ctx context.Context, j jobs.Job) error {
		if err := b.Effect(ctx, j.ID); err != nil {
			return err
		}
		if j.ID == "cancelled" {
			return jobs.Cancel(errFailed)
		}
		return errFailed
	})
	w.config.Queues[0].MaxAttempts = 3
	w.start()
	for range 3 {
		hear(b, "a dead job", w.dead)
	}
	for id, want := range map[string]struct {
		attempts int
		cause    string
	}{
		"tried": {3, "failed on purpose"}, "cancelled": {1, "cancelled by its handler: failed on purpose"},
		"nobodys": {3, `jobs: this worker has no handler of kind "of none"`},
	} {
		if e := b.find(id); e.State != outbox.StateDead || e.Attempts != want.attempts || e.Cause != want.cause {
			b.Errorf("%s is %+v", id, e)
		}
		b.wantEffects(id, 0)
	}
}

func runAgain(b *bench) {
	b.enqueue(jobs.Job{ID: "a"})
	var mended atomic.Bool
	var runs, prepared atomic.Int64
	w := b.worker(nil)
	w.config.Handlers["work"] = jobs.Handler{
		Prepare: func(context.Context, jobs.Job) (any, error) { return prepared.Add(1), nil },
		Handle: func(ctx context.Context, j jobs.Job) error {
			runs.Add(1)
			if !mended.Load() {
				return jobs.Cancel(errFailed)
			}
			return b.Effect(ctx, j.ID)
		},
	}
	w.start()
	hear(b, "the failure", w.dead)
	mended.Store(true)
	d := outbox.Decision{Verdict: outbox.VerdictAgain, By: "ada", Because: "the printer has paper"}
	decide := func(f outbox.Filter, d outbox.Decision, n int) {
		b.Helper()
		if done, err := b.Store.Decide(b.Context(), f, d); err != nil || len(done) != n {
			b.Fatalf("decided: %+v, %v", done, err)
		}
	}
	decide(outbox.Filter{TopicPrefix: "other"}, d, 0)
	decide(outbox.Filter{TopicPrefix: jobs.TopicPrefix, State: outbox.StateDead}, d, 1)
	hear(b, "the job", w.delivered)
	b.wantEffects("a", 1)
	// Of one that is done nothing is done.
	decide(outbox.Filter{ID: "a"}, d, 0)
	again := outbox.Decision{Verdict: outbox.VerdictAgain, By: "bob", Because: "did not look"}
	decide(outbox.Filter{ID: "a", State: outbox.StateDelivered}, again, 1)
	hear(b, "the job", w.delivered)
	b.wantEffects("a", 1)
	b.wantDecisions("a", d, again)
	if n, p := runs.Load(), prepared.Load(); n != 2 || p != 2 {
		b.Errorf("the handler prepared %d times and ran %d times", p, n)
	}
	for _, wrong := range []outbox.Decision{{Verdict: outbox.VerdictAgain, By: "x"}, {By: "x", Because: "y"}, {Verdict: outbox.VerdictCancel, Because: strings.Repeat("x", 501), By: "x"}} {
		if _, err := b.Store.Decide(b.Context(), outbox.Filter{}, wrong); err == nil {
			b.Errorf("decision %+v was taken", wrong)
		}
	}
}

func idDoneOnce(b *bench) {
	b.enqueue(jobs.Job{ID: "a"})
	m, err := jobs.Job{ID: "a", Queue: "q", Kind: "work"}.Message()
	if err != nil {
		b.Fatal(err)
	}
	if err := b.Enqueue(b.Context(), m); !errors.Is(err, outbox.ErrDuplicate) {
		b.Errorf("enqueued twice: %v", err)
	}
	revoked := atomic.Bool{}
	w := b.worker(func(ctx context.Context, j jobs.Job) error { return b.Effect(ctx, j.ID) })
	w.config.Authorize = func(context.Context, jobs.Job) error {
		if revoked.Load() {
			return jobs.ErrRevoked
		}
		return nil
	}
	w.start()
	hear(b, "the job", w.delivered)
	for range 2 { // as after it was swept
		if gone, err := b.Store.Purge(b.Context(), outbox.Filter{ID: "a"}); err != nil || len(gone) != 1 {
			b.Fatalf("%+v, %v", gone, err)
		}
		b.enqueue(jobs.Job{ID: "a"})
		hear(b, "the job", w.delivered)
		revoked.Store(true) // which is no news of what is done
	}
	b.wantEffects("a", 1)
}

func bounded(b *bench) {
	const workers = 3
	for i := range 10 {
		b.enqueue(jobs.Job{ID: fmt.Sprint("m", i)})
	}
	b.enqueue(jobs.Job{ID: "o", Queue: "other"})
	var running, most atomic.Int64
	in, hold := make(chan struct{}, 100), make(chan struct{})
	w := b.worker(nil)
	w.config.Queues[0].Workers = workers
	w.config.Handlers["work"] = jobs.Handler{Prepare: func(_ context.Context, j jobs.Job) (any, error) {
		if j.Queue == "q" {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			in <- struct{}{}
			<-hold
		}
		return nil, nil
	}}
	w.start()
	for range workers {
		hear(b, "a job", in)
	}
	if id := hear(b, "the other queue's job", w.delivered); id != "o" {
		b.Errorf("%s is done", id)
	}
	close(hold)
	for range 10 {
		hear(b, "a job", w.delivered)
	}
	if n := most.Load(); n != workers {
		b.Errorf("%d ran at the same time", n)
	}
}

func drained(b *bench) {
	b.enqueue(jobs.Job{ID: "quick"}, jobs.Job{ID: "slow"})
	began, finish := make(chan struct{}, 2), make(chan struct{})
	w := b.worker(func(ctx context.Context, j jobs.Job) error { return b.Effect(ctx, j.ID) })
	prepare := func(ctx context.Context, j jobs.Job) (any, error) {
		began <- struct{}{}
		if j.ID == "quick" {
			<-finish
			return nil, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	h := w.config.Handlers["work"]
	w.config.Handlers["work"] = jobs.Handler{Prepare: prepare, Handle: h.Handle}
	w.config.Relay.Drain = lease
	w.start()
	hear(b, "a job", began)
	hear(b, "a job", began)
	go func() { finish <- struct{}{} }()
	w.stop()
	b.wantEffects("quick", 1)
	b.wantEffects("slow", 0)
	if e := b.find("slow"); e.State != outbox.StatePending || e.LeaseLeft > 0 || e.Attempts != 0 {
		b.Errorf("the slow job is %+v", e)
	}
	next := b.worker(h.Handle).start()
	if id := hear(b, "the slow job", next.delivered); id != "slow" {
		b.Errorf("%s is done", id)
	}
	b.wantEffects("slow", 1)
}
