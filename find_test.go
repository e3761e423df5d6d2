package semel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

func TestAwait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		var e effects
		go func() { _, _ = g.Do(t.Context(), submit("k"), e.slow(5*time.Second)) }()
		synctest.Wait()
		start := time.Now()
		r, err := g.Await(t.Context(), submit("k").Identity, time.Second)
		if err != nil || r.State != semel.StateInProgress || time.Since(start) != time.Second {
			t.Fatalf("%v after %v, error %v", r.State, time.Since(start), err)
		}
		r, err = g.Await(t.Context(), submit("k").Identity, time.Minute)
		if err != nil || r.State != semel.StateCompleted || time.Since(start) != 5*time.Second {
			t.Fatalf("%v after %v, error %v", r.State, time.Since(start), err)
		}
		if _, err := g.Await(t.Context(), submit("none").Identity, time.Minute); !errors.Is(err, semel.ErrNotFound) {
			t.Fatal(err)
		}
	})
}

func TestFindIDKeepsScopesApart(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	var e effects
	ids := map[semel.Scope]string{}
	for _, s := range []semel.Scope{{Operation: "o"}, {Tenant: "t", Operation: "o"}, {Tenant: "t", Actor: "a", Operation: "o"}, {Actor: "a", Operation: "o"}} {
		out, err := g.Do(t.Context(), semel.Submit{Identity: semel.Identity{Scope: s, Key: "k"}}, e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		ids[s] = out.Record.ID
	}
	for asker := range ids {
		for owner, id := range ids {
			r, err := g.FindID(t.Context(), asker, id)
			if asker == owner && (err != nil || r.ID != id || r.Result.Codec == "") {
				t.Errorf("%+v does not see its own record: %v", asker, err)
			}
			if asker != owner && !errors.Is(err, semel.ErrNotFound) {
				t.Errorf("%+v sees the record of %+v: %v", asker, owner, err)
			}
		}
		if _, err := g.FindID(t.Context(), asker, ""); !errors.Is(err, semel.ErrNotFound) {
			t.Errorf("no id: %v", err)
		}
	}
}

// replacing is a store in which, between two calls, a record gives way to
// another of the same identity.
type replacing struct {
	*memory.Store
	replace func()
}

func (r *replacing) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	found, err := r.Store.List(ctx, f)
	r.replace()
	return found, err
}

// FindID must not return a record that replaced the one with that id.
func TestReplacedRecordIsNotFound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &replacing{Store: newStore(t), replace: func() {}}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		replace := func(c semel.Claim) {
			if err := c.Release(t.Context()); err != nil {
				t.Error(err)
			}
			out, err := g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, semel.AnswerExecuted)
		}
		c := stranded(t, s, submit("k"), time.Hour)
		s.replace = func() { replace(c) }
		if r, err := g.FindID(t.Context(), scope, c.RecordID()); !errors.Is(err, semel.ErrNotFound) {
			t.Errorf("asked for %s and found %s, %v", c.RecordID(), r.ID, err)
		}
		other := submit("other")
		c = stranded(t, s, other, time.Hour)
		go func() {
			time.Sleep(time.Second)
			if err := c.Release(t.Context()); err != nil {
				t.Error(err)
			}
			_, _ = g.Do(t.Context(), other, e.do)
		}()
		if r, err := g.Await(t.Context(), other.Identity, time.Minute); !errors.Is(err, semel.ErrNotFound) {
			t.Errorf("waited for %s and was given %s, %v", c.RecordID(), r.ID, err)
		}
	})
}
