package semel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

func TestExecutesOnceAndReplays(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	var e effects
	first, err := g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, first, err, semel.AnswerExecuted)
	again, err := g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, again, err, semel.AnswerReplayed)
	if string(again.Result.Body) != "effect 1" || again.Result.Label != "ok" || again.Record.ID != first.Record.ID {
		t.Fatalf("replayed %q of record %s; want the first result of %s", again.Result.Body, again.Record.ID, first.Record.ID)
	}
	if !first.Record.ExpiresAt.Equal(again.Record.ExpiresAt) || first.Record.ExpiresAt.IsZero() {
		t.Fatalf("the record expires at %v by the first answer and at %v by the second", first.Record.ExpiresAt, again.Record.ExpiresAt)
	}
	e.want(t, 1)
}

func TestRacedSubmitsExecuteOnce(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	var e effects
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 200 {
		wg.Go(func() {
			<-start
			for {
				out, err := g.Do(t.Context(), submit("k"), e.do)
				switch {
				case err == nil && string(out.Result.Body) == "effect 1":
					return
				case errors.Is(err, semel.ErrInProgress) && errors.Is(err, semel.ErrMaybeEffect):
					runtime.Gosched()
				default:
					t.Errorf("answer %v, body %q, error %v", out.Answer, out.Result.Body, err)
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	e.want(t, 1)
}

// A client that disconnects must not cancel the work or its record.
func TestCallerGoneWorkGoesOn(t *testing.T) {
	for _, detached := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			g := newGuard(t, newStore(t), semel.Policy{})
			type valueKey struct{}
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "kept"))
			var e effects
			sub := submit("k")
			sub.Detached = detached
			var settled semel.Outcome
			sub.Settled = func(out semel.Outcome, _ error) { settled = out }
			out, err := g.Do(ctx, sub, func(ctx context.Context) (semel.Result, error) {
				cancel()
				time.Sleep(time.Minute)
				if ctx.Err() != nil || ctx.Value(valueKey{}) != "kept" {
					t.Errorf("the work's context: %v, value %v", ctx.Err(), ctx.Value(valueKey{}))
				}
				return e.do(ctx)
			})
			if detached {
				wantAnswer(t, out, err, semel.AnswerInProgress)
				if !errors.Is(err, context.Canceled) || !errors.Is(err, semel.ErrMaybeEffect) || !out.Claimed {
					t.Fatalf("the caller that left was told %v", err)
				}
				if err := g.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if settled.Answer != semel.AnswerExecuted || settled.Record.State != semel.StateCompleted {
					t.Fatalf("settled as %+v", settled)
				}
			} else {
				wantAnswer(t, out, err, semel.AnswerExecuted)
			}
			e.want(t, 1)
		})
	}
}

// What a handler does to its goroutine it does to the caller's, once the record
// tells of it; a detached one has nobody above.
func TestPanicAndGoexitGoOnUp(t *testing.T) {
	for _, detached := range []bool{false, true} {
		for _, goexit := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				s := newStore(t)
				var panicked atomic.Int64
				var answered []semel.Answer
				g, err := semel.New(semel.Config{Store: s, Observer: &semel.Observer{
					Panicked: func(context.Context, semel.Panicked) { panicked.Add(1) },
					Answered: func(_ context.Context, a semel.Answered) { answered = append(answered, a.Answer) },
				}})
				if err != nil {
					t.Fatal(err)
				}
				sub := submit("k")
				sub.Detached = detached
				var out semel.Outcome
				var value any
				returned := false
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { value = recover() }()
					out, err = g.Do(t.Context(), sub, func(context.Context) (semel.Result, error) {
						if goexit {
							runtime.Goexit()
						}
						panic("boom")
					})
					returned = true
				}()
				<-done
				if returned != detached {
					t.Fatalf("detached %v, goexit %v: Do returned: %v", detached, goexit, returned)
				}
				if detached {
					wantAnswer(t, out, err, semel.AnswerUnknown)
					if _, ok := errors.AsType[*semel.PanicError](err); !ok {
						t.Fatalf("told %v", err)
					}
				} else if !goexit && value != "boom" || goexit && value != nil {
					t.Fatalf("the caller recovered %v", value)
				}
				r, err := s.Find(t.Context(), sub.Identity)
				if err != nil || r.State != semel.StateUnknown || panicked.Load() != 1 || len(answered) != 1 || answered[0] != semel.AnswerUnknown {
					t.Fatalf("the record reads %v, %v; %d panics and answers %v observed", r.State, err, panicked.Load(), answered)
				}
				if err := g.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// The handler runs in the caller's goroutine, where the server's own limits
// hold.
func TestRunsOnTheCallersGoroutine(t *testing.T) {
	id := func() string {
		b := make([]byte, 64)
		return strings.Fields(string(b[:runtime.Stack(b, false)]))[1]
	}
	g := newGuard(t, newStore(t), semel.Policy{})
	var in string
	_, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		in = id()
		return semel.Result{}, nil
	})
	if err != nil || in != id() {
		t.Fatalf("called from goroutine %s, ran in %s, %v", id(), in, err)
	}
}

func TestCallerGoneBeforeTheClaim(t *testing.T) {
	s := newStore(t)
	g := newGuard(t, s, semel.Policy{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var e effects
	_, err := g.Do(ctx, submit("k"), e.do)
	if !errors.Is(err, semel.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("told %v", err)
	}
	if _, err := s.Find(t.Context(), submit("k").Identity); !errors.Is(err, semel.ErrNotFound) {
		t.Fatalf("a record was left: %v", err)
	}
	e.want(t, 0)
}

// The result must be durable before it is returned.
func TestNoAnswerBeforeTheRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		written := make(chan struct{})
		s := &faulty{Store: newStore(t), before: func(call string) error {
			if call == "complete" {
				<-written
			}
			return nil
		}}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		answered := make(chan semel.Outcome, 1)
		go func() {
			out, _ := g.Do(t.Context(), submit("k"), e.do)
			answered <- out
		}()
		synctest.Wait()
		select {
		case out := <-answered:
			t.Fatalf("answered %v before the record was written", out.Answer)
		default:
		}
		close(written)
		if out := <-answered; out.Answer != semel.AnswerExecuted {
			t.Fatalf("answered %v", out.Answer)
		}
	})
}

func TestWhatTheHandlerSays(t *testing.T) {
	cause := errors.New("the reason")
	for _, c := range []struct {
		name   string
		fn     func(context.Context) (semel.Result, error)
		first  semel.Answer
		second semel.Answer
	}{
		{"no effect", func(context.Context) (semel.Result, error) { return semel.Result{}, semel.NoEffect(cause) }, semel.AnswerReleased, semel.AnswerExecuted},
		{"wrapped no effect", func(context.Context) (semel.Result, error) {
			return semel.Result{}, fmt.Errorf("on the way: %w", semel.NoEffect(cause))
		}, semel.AnswerReleased, semel.AnswerExecuted},
		{"indeterminate", func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.Indeterminate("lost contact", cause)
		}, semel.AnswerUnknown, semel.AnswerUnknown},
		{"unclassified", func(context.Context) (semel.Result, error) { return semel.Result{}, cause }, semel.AnswerUnknown, semel.AnswerUnknown},
		{"panic", func(context.Context) (semel.Result, error) { panic("secret payload") }, semel.AnswerUnknown, semel.AnswerUnknown},
		{"nil panic", func(context.Context) (semel.Result, error) { panic(nil) }, semel.AnswerUnknown, semel.AnswerUnknown},
		{"goexit", func(context.Context) (semel.Result, error) { runtime.Goexit(); return semel.Result{}, nil }, semel.AnswerUnknown, semel.AnswerUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuard(t, newStore(t), semel.Policy{})
			out, err := g.Do(t.Context(), detached("k"), c.fn)
			wantAnswer(t, out, err, c.first)
			if strings.Contains(err.Error(), "secret") {
				t.Fatalf("the error shows the panic's value: %v", err)
			}
			isPanic := strings.Contains(c.name, "panic") || c.name == "goexit"
			if _, ok := errors.AsType[*semel.PanicError](err); ok != isPanic {
				t.Fatalf("a PanicError: %v; want %v", ok, isPanic)
			}
			if !isPanic && !errors.Is(err, cause) {
				t.Fatalf("the cause is missing from %v", err)
			}
			if errors.Is(err, semel.ErrNoEffect) != (c.first == semel.AnswerReleased) {
				t.Fatalf("errors.Is(%v, ErrNoEffect)", err)
			}
			var e effects
			out, err = g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, c.second)
			if c.second == semel.AnswerUnknown && (out.Record.Cause == "" || strings.Contains(out.Record.Cause, "reason")) {
				t.Fatalf("the record's cause is %q", out.Record.Cause)
			}
		})
	}
}

func TestFinalFailureIsReplayed(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	declined := errors.New("card declined")
	out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		return semel.Result{}, semel.Final(declined)
	})
	if out.Answer != semel.AnswerExecuted || !errors.Is(err, semel.ErrRecorded) || !errors.Is(err, declined) {
		t.Fatalf("answer %v, error %v", out.Answer, err)
	}
	var e effects
	out, err = g.Do(t.Context(), submit("k"), e.do)
	if out.Answer != semel.AnswerReplayed || !errors.Is(err, semel.ErrRecorded) || err.Error() != "card declined" {
		t.Fatalf("answer %v, error %v", out.Answer, err)
	}
	e.want(t, 0)
}

// What each answer says about the effect and about trying again is what clients
// act on.
func TestAnswersAdvise(t *testing.T) {
	for answer, want := range map[semel.Answer]struct {
		retry  semel.RetryAdvice
		effect semel.Effect
	}{
		semel.AnswerExecuted:    {semel.RetryNo, semel.EffectDone},
		semel.AnswerReplayed:    {semel.RetryNo, semel.EffectDone},
		semel.AnswerReleased:    {semel.RetrySameKey, semel.EffectNone},
		semel.AnswerInProgress:  {semel.RetrySameKey, semel.EffectMaybe},
		semel.AnswerMismatch:    {semel.RetryNo, semel.EffectNone},
		semel.AnswerUnknown:     {semel.RetryAfterResolution, semel.EffectMaybe},
		semel.AnswerRejected:    {semel.RetryNewKey, semel.EffectNone},
		semel.AnswerUnavailable: {semel.RetrySameKey, semel.EffectMaybe},
	} {
		if got := answer.Retry(); got != want.retry {
			t.Errorf("%v advises %s; want %s", answer, got, want.retry)
		}
		if got := answer.Effect(); got != want.effect {
			t.Errorf("%v says effect %v; want %v", answer, got, want.effect)
		}
	}
}

func TestRejectsBadIdentities(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	for name, id := range map[string]semel.Identity{
		"empty key":      {Scope: scope},
		"no operation":   {Scope: semel.Scope{Tenant: "t", Actor: "a"}, Key: "k"},
		"long key":       {Scope: scope, Key: strings.Repeat("k", 256)},
		"control":        {Scope: scope, Key: "a\x00b"},
		"not UTF-8":      {Scope: scope, Key: "\xff"},
		"bad tenant":     {Scope: semel.Scope{Tenant: "a\nb", Operation: "op"}, Key: "k"},
		"long operation": {Scope: semel.Scope{Operation: strings.Repeat("o", 256)}, Key: "k"},
	} {
		var e effects
		out, err := g.Do(t.Context(), semel.Submit{Identity: id}, e.do)
		wantAnswer(t, out, err, semel.AnswerRejected)
		if id.Key != "" && len(id.Key) < 200 && id.Key != "k" && strings.Contains(err.Error(), id.Key) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
		e.want(t, 0)
	}
}

func TestConfigErrorsComeTogether(t *testing.T) {
	_, err := semel.New(semel.Config{Policy: semel.Policy{
		Lease: time.Second, Heartbeat: time.Second, Deadline: -1, OnCrash: semel.CrashReconcile, SettleAfter: -1,
	}, MaxExecutions: -1, MaxTenantWaiters: -1})
	for _, want := range []string{"Store", "MaxExecutions", "MaxTenantWaiters", "Heartbeat", "Deadline", "Reconcile", "SettleAfter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// A request that waited for an execution must find its record.
func TestRetentionOutlastsTheDeadline(t *testing.T) {
	_, err := semel.New(semel.Config{Store: newStore(t), Policy: semel.Policy{Retention: time.Minute, Deadline: 2 * time.Minute}})
	if err == nil || !strings.Contains(err.Error(), "Retention 1m0s is shorter than the Deadline 2m0s") {
		t.Errorf("told %v", err)
	}
	g := newGuard(t, newStore(t), semel.Policy{Retention: time.Minute})
	if d := g.Policy().Deadline; d != time.Minute {
		t.Errorf("the deadline is %v", d)
	}
}

func TestObserver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var answered []semel.Answer
		var failed, lost, panicked atomic.Int64
		s := &faulty{Store: newStore(t)}
		g, err := semel.New(semel.Config{Store: s, Observer: &semel.Observer{
			Answered:    func(_ context.Context, a semel.Answered) { answered = append(answered, a.Answer) },
			StoreFailed: func(context.Context, semel.StoreFailed) { failed.Add(1) },
			LeaseLost:   func(context.Context, semel.LeaseLost) { lost.Add(1) },
			Panicked:    func(context.Context, semel.Panicked) { panicked.Add(1) },
		}})
		if err != nil {
			t.Fatal(err)
		}
		var e effects
		_, _ = g.Do(t.Context(), submit("k"), e.do)
		_, _ = g.Do(t.Context(), submit("k"), e.do)
		func() {
			defer func() { _ = recover() }()
			_, _ = g.Do(t.Context(), submit("p"), func(context.Context) (semel.Result, error) { panic(1) })
		}()
		s.before = func(call string) error {
			if call == "renew" {
				return errors.New("store down")
			}
			return nil
		}
		_, _ = g.Do(t.Context(), submit("l"), func(ctx context.Context) (semel.Result, error) { <-ctx.Done(); return semel.Result{}, ctx.Err() })
		want := []semel.Answer{semel.AnswerExecuted, semel.AnswerReplayed, semel.AnswerUnknown, semel.AnswerUnknown}
		if fmt.Sprint(answered) != fmt.Sprint(want) || failed.Load() == 0 || lost.Load() != 1 || panicked.Load() != 1 {
			t.Fatalf("answered %v, %d store failures, %d leases lost, %d panics", answered, failed.Load(), lost.Load(), panicked.Load())
		}
	})
}

func TestPiecesAreCounted(t *testing.T) {
	for size, want := range map[int64]int{1: 1, semel.PieceBytes: 1, semel.PieceBytes + 1: 2, 32 << 20: 128, math.MaxInt64: math.MaxInt64/semel.PieceBytes + 1} {
		p := semel.Pieces{Size: size}
		if got := p.Count(); got != want {
			t.Errorf("%d bytes make %d pieces; want %d", size, got, want)
		}
	}
}
