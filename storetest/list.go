package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func listFilters(t testing.TB, h Harness, ctx context.Context) {
	lister := h.Store.(semel.Lister)
	var claims []semel.Claim
	for i, key := range []string{"f", "e", "d", "c", "b", "a"} { // the order of keys is not that of fences
		a := attempt(key)
		a.Identity.Tenant = fmt.Sprint("t", i%2)
		claims = append(claims, begin(t, ctx, h.Store, a))
	}
	complete(t, ctx, claims[1], result("done"))
	must(t, "Hold", claims[2].Hold(ctx, "lost contact"))
	h.advance(2 * lease)
	must(t, "Renew", claims[3].Renew(ctx))
	list := func(f semel.Filter) (keys string) {
		t.Helper()
		records, err := lister.List(ctx, f)
		must(t, "List", err)
		for _, r := range records {
			if len(r.Result.Body) > 0 || len(r.Result.Head) > 0 {
				t.Fatalf("a listing holds the result of %s", r.ID)
			}
			keys += r.Identity.Key
		}
		return keys
	}
	for _, c := range []struct {
		f    semel.Filter
		want string
	}{
		{semel.Filter{}, "fedcba"},
		{semel.Filter{Limit: 2}, "fe"},
		{semel.Filter{Limit: 2, After: claims[1].Fence()}, "dc"},
		{semel.Filter{State: semel.StateCompleted}, "e"},
		{semel.Filter{State: semel.StateUnknown}, "d"},
		{semel.Filter{State: semel.StateInProgress}, "fcba"},
		{semel.Filter{Lapsed: true}, "fba"},
		{semel.Filter{Tenant: "t1"}, "eca"},
		{semel.Filter{Tenant: "t1", State: semel.StateInProgress}, "ca"},
		{semel.Filter{ID: claims[4].RecordID()}, "b"},
		{semel.Filter{Key: "a"}, "a"},
		{semel.Filter{Operation: "nothing"}, ""},
		{semel.Filter{Actor: "a", Limit: 1}, "f"},
	} {
		if got := list(c.f); got != c.want {
			t.Fatalf("List %+v returned %q; want %q", c.f, got, c.want)
		}
	}
	h.advance(retention + time.Second)
	if got := list(semel.Filter{State: semel.StateCompleted}); got != "" {
		t.Fatalf("List returned expired %q", got)
	}
}

func listCauses(t testing.TB, h Harness, ctx context.Context) {
	lister := h.Store.(semel.Lister)
	list := func(f semel.Filter) (keys string, records []semel.Record) {
		t.Helper()
		records, err := lister.List(ctx, f)
		must(t, "List", err)
		for _, r := range records {
			keys += r.Identity.Key
		}
		return keys, records
	}
	// Begun one after the other, by the store's clock.
	claims := make(map[string]semel.Claim)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		claims[key] = begin(t, ctx, h.Store, attempt(key))
		h.advance(time.Second)
	}
	hold := func(key, cause string) { must(t, "Hold", claims[key].Hold(ctx, cause)) }
	hold("a", "the handler answered 502")
	hold("b", "the handler answered 504")
	hold("c", "THE HANDLER ANSWERED 502")
	hold("d", "the handler answered 502 at last")
	hold("e", "100%_*")
	hold("f", "")
	// Marked unknown, and then settled by the claim that still may.
	hold("g", "the handler answered 502")
	complete(t, ctx, claims["g"], result("late"))

	all, records := list(semel.Filter{})
	if all != "abcdefgh" {
		t.Fatalf("List returned %q", all)
	}
	third := records[2].BegunAt
	for _, c := range []struct {
		f    semel.Filter
		want string
	}{
		{semel.Filter{Cause: "the handler answered 502"}, "a"},
		{semel.Filter{Cause: "the handler answered"}, ""},
		{semel.Filter{Cause: "the handler answered*"}, "abd"},
		{semel.Filter{Cause: "the handler answered*", Limit: 2}, "ab"},
		{semel.Filter{Cause: "the handler answered*", After: claims["a"].Fence()}, "bd"},
		{semel.Filter{Cause: "handler*"}, ""},
		{semel.Filter{Cause: "*"}, "abcdef"},
		{semel.Filter{Cause: "100%_**"}, "e"},
		{semel.Filter{Cause: "1__*"}, ""},
		{semel.Filter{Cause: "%"}, ""},
		{semel.Filter{Cause: "*", State: semel.StateUnknown}, "abcdef"},
		{semel.Filter{Cause: "*", State: semel.StateInProgress}, ""},
		{semel.Filter{Cause: "*", State: semel.StateCompleted}, ""},
		{semel.Filter{BegunSince: third}, "cdefgh"},
		{semel.Filter{BegunSince: third.Add(time.Nanosecond)}, "defgh"},
		{semel.Filter{BegunUntil: third}, "ab"},
		{semel.Filter{BegunUntil: third.Add(time.Nanosecond)}, "abc"},
		{semel.Filter{BegunSince: third, BegunUntil: third}, ""},
		{semel.Filter{BegunSince: third, BegunUntil: third.Add(time.Minute), Cause: "the handler*"}, "d"},
		{semel.Filter{BegunSince: third, State: semel.StateInProgress}, "h"},
	} {
		if got, _ := list(c.f); got != c.want {
			t.Fatalf("List %+v returned %q; want %q", c.f, got, c.want)
		}
	}

	// A takeover begins anew, and the cause goes with the state.
	a := attempt("a")
	a.Takeover = claims["a"].Fence()
	begin(t, ctx, h.Store, a)
	if got, _ := list(semel.Filter{Cause: "the handler answered 502"}); got != "" {
		t.Fatalf("List by the cause of a record that was taken over returned %q", got)
	}
	if got, _ := list(semel.Filter{BegunSince: third, Key: "a"}); got != "a" {
		t.Fatalf("List by the time of a takeover returned %q", got)
	}
}
