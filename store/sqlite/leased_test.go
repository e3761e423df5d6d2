package sqlite

import (
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// A claim without a token, as who makes its attempt by hand may have, is no less
// lost when its record has moved on.
func TestClaimsWithoutATokenAreFenced(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	a := attempt("k")
	a.Token = semel.Token{}
	old := mustBegin(t, s, a)
	pass(t, s, 2*time.Minute)
	a.Takeover = old.Fence()
	a.Token = semel.Token{1}
	over := mustBegin(t, s, a)
	pass(t, s, 2*time.Minute)
	a.Takeover = over.Fence()
	a.Token = semel.Token{}
	mustBegin(t, s, a)
	for name, call := range map[string]func() error{
		"Complete": func() error { _, err := old.Complete(t.Context(), semel.Result{}); return err },
		"Renew":    func() error { return old.Renew(t.Context()) },
		"Hold":     func() error { return old.Hold(t.Context(), "") },
		"Release":  func() error { return old.Release(t.Context()) },
	} {
		if err := call(); !errors.Is(err, semel.ErrLostClaim) {
			t.Errorf("%s by the claim of another fence: %v", name, err)
		}
	}
}

// A record that is over at once may be replaced in the very commit that completed
// it: its entry is in the trail all the same, ahead of what comes later.
func TestReplacedInItsOwnCommit(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	first, second := attempt("k"), attempt("k")
	first.Retention = 0
	c := mustBegin(t, s, first).(*claim)
	if _, err := write(t.Context(), s, 0, func(t *tx) (none, error) {
		if _, err := c.complete(t, semel.Result{Label: "first"}, nil); err != nil {
			return none{}, err
		}
		again, err := t.begin(&second, s.digest(second.Identity))
		if err == nil {
			_, err = again.complete(t, semel.Result{Label: "second"}, nil)
		}
		return none{}, err
	}); err != nil {
		t.Fatal(err)
	}
	entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: "k"})
	if err != nil || len(entries) != 2 || entries[0].Label != "first" || entries[1].Label != "second" ||
		entries[0].Seq != 1 || entries[1].Seq != 2 || entries[0].RecordID == entries[1].RecordID {
		t.Errorf("the trail of a record that was replaced in its own commit: %+v, %v", entries, err)
	}
}
