package semel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

// Each bound is answered before any look in the store, and is free again when
// an execution has ended.
func TestExecutionsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		config   semel.Config
		detached bool
	}{
		"MaxExecutions":       {config: semel.Config{MaxExecutions: 3, MaxTenantExecutions: 9}},
		"MaxTenantExecutions": {config: semel.Config{MaxTenantExecutions: 3}},
		"MaxDetached":         {config: semel.Config{MaxDetached: 3}, detached: true},
	} {
		bubble(t, func(t *testing.T) {
			var calls atomic.Int64
			c.config.Store = &faulty{Store: newStore(t), before: func(string) error { calls.Add(1); return nil }}
			g, err := semel.New(c.config)
			if err != nil {
				t.Fatal(err)
			}
			var e effects
			goOn := make(chan struct{})
			var wg sync.WaitGroup
			do := func(s semel.Submit) {
				s.Detached = c.detached
				out, err := g.Do(t.Context(), s, func(ctx context.Context) (semel.Result, error) {
					<-goOn
					return e.do(ctx)
				})
				wantAnswer(t, out, err, semel.AnswerExecuted)
			}
			for i := range 3 {
				wg.Go(func() { do(submit(fmt.Sprint("k", i))) })
			}
			synctest.Wait()
			before := calls.Load()
			over := submit("over")
			over.Detached = c.detached
			out, err := g.Do(t.Context(), over, e.do)
			wantAnswer(t, out, err, semel.AnswerUnavailable)
			busy, ok := errors.AsType[*semel.BusyError](err)
			if !ok || busy.Bound != name || busy.Limit != 3 || out.Claimed {
				t.Fatalf("%s: told %v", name, err)
			}
			if ee, _ := errors.AsType[*semel.Error](err); ee.Retry() != semel.RetrySameKey || ee.RetryAfter <= 0 {
				t.Fatalf("%s: advice %v after %v", name, ee.Retry(), ee.RetryAfter)
			}
			if calls.Load() != before {
				t.Fatalf("%s: the store was asked", name)
			}
			if name == "MaxTenantExecutions" {
				// One tenant's bound is not another's, nor that of who has none.
				for _, tenant := range []string{"other", ""} {
					s := submit("other")
					s.Identity.Tenant = tenant
					wg.Go(func() { do(s) })
				}
			}
			close(goOn)
			wg.Wait()
			out, err = g.Do(t.Context(), over, e.do)
			wantAnswer(t, out, err, semel.AnswerExecuted)
			if err := g.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		sibling, err := g.With(semel.Policy{Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		goOn := make(chan struct{})
		done := make(chan error, 1)
		var e effects
		go func() {
			_, err := sibling.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
				<-goOn
				return e.do(ctx)
			})
			done <- err
		}()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Drain(short); err == nil || !strings.Contains(err.Error(), "1 execution") {
			t.Fatalf("Drain with work under way: %v", err)
		}
		out, err := g.Do(t.Context(), submit("new"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if !errors.Is(err, semel.ErrDraining) || !errors.Is(err, semel.ErrUnavailable) {
			t.Fatalf("told %v", err)
		}
		close(goOn)
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		e.want(t, 1)
		ended, end := context.WithCancel(t.Context())
		end()
		for range 100 {
			if err := g.Drain(ended); err != nil {
				t.Fatalf("an idle guard: %v", err)
			}
		}
	})
}

func TestOnDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		called := make(chan struct{})
		g.OnDrain(func() { close(called) })
		stop := g.OnDrain(func() { t.Error("called although it was taken back") })
		if !stop() {
			t.Error("taking it back came too late")
		}
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-called
	})
}
