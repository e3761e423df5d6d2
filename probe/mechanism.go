package probe

import (
	"context"
	"errors"
	"math/big"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// sign is a sign, named by the plan, of what decides between duplicates.
type sign struct {
	plan.Sign
	before *big.Rat // of a log; nil if it cannot be read
	found  string   // where it was found; empty if it was not
}

// signs begins to look for the signs that the plan names, in what duplicates of
// a request leave behind.
func (x *exp) signs(ctx context.Context, w *watch) (list []*sign, err error) {
	if x.o.r.dry() || len(x.o.op.Atomicity) == 0 {
		return nil, nil
	}
	all, err := x.o.r.r.Signs(w.v, w.resource)
	if errors.Is(err, plan.ErrNoResource) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		s := &sign{Sign: all[i]}
		if s.Reading != nil && s.Reading.Reader.Log != nil {
			now, err := x.o.r.ask(ctx, s.Reading)
			if over(ctx, err) {
				return nil, err
			}
			s.before = now.number
		}
		list = append(list, s)
	}
	return list, nil
}

// found looks for signs again, now that duplicates were answered.
func (x *exp) found(ctx context.Context, list []*sign, duplicates ...*sent) error {
	for _, s := range list {
		if s.Answer != nil {
			if slices.ContainsFunc(duplicates, func(d *sent) bool { return d.x.Response != nil && s.Answer.Match(d.x.Response.Body) }) {
				s.found = "a response"
			}
			continue
		}
		now, err := x.o.r.ask(ctx, s.Reading)
		if over(ctx, err) {
			return err
		}
		switch {
		case err != nil || now.number == nil:
		case s.Reading.Reader.SQL != nil && now.number.Sign() > 0:
			s.found = "a query of the database"
		case s.before != nil && now.number.Cmp(s.before) > 0:
			s.found = "the log"
		}
	}
	return nil
}

// mechanisms keeps the signs that were found beside requests that had one effect.
func (j *judgement) mechanisms(list []*sign, end *attempt) {
	if end == nil || !end.settled || !end.total.told() || !is(end.total.number(), 1) {
		return
	}
	for _, s := range list {
		if s.found == "" {
			continue
		}
		f := &j.o.facts
		if f.signs == nil {
			f.signs = map[string][]string{}
		}
		if how := s.found + " after " + j.e.Name; !slices.Contains(f.signs[s.Is], how) {
			f.signs[s.Is] = append(f.signs[s.Is], how)
		}
	}
}

var mechanismNames = map[string]string{
	"db_unique": "a unique constraint", "tx_lock": "a lock of a transaction", "optimistic": "a version that is compared",
}

// atomicity infers what decides between duplicates, if the plan's signs are of
// one kind. Without a race that converged nothing shows that it does decide.
func (o *operation) atomicity() {
	v, signs := &o.ev.Verdict, o.facts.signs
	if v.Atomicity != "unknown" || v.RaceBehavior != "safe_converge" || len(signs) != 1 {
		return
	}
	for is := range signs {
		v.Atomicity = is
	}
}

// tellAtomicity states which signs were found, and that they are inferred.
func (o *operation) tellAtomicity() (text string, basis evidence.Basis) {
	v, signs := &o.ev.Verdict, o.facts.signs
	switch {
	case mechanismNames[v.Atomicity] != "":
		return "The sign that the plan names for " + mechanismNames[v.Atomicity] + " was found: " + strings.Join(signs[v.Atomicity], ", ") + ". That it decides between requests at the same time is inferred.", evidence.Inferred
	case v.Atomicity != "unknown":
		return "Requests that ran at the same time took effect more than once: what decides between them, if anything does, did not hold.", evidence.Inferred
	case len(signs) > 1:
		return "The plan's signs of several mechanisms were found: it cannot be told which of them decides.", evidence.Unknowable
	case len(signs) == 1:
		return "A sign that the plan names was found, but no race was seen to converge, so it is not shown that it decides.", evidence.Unknowable
	case len(o.op.Atomicity) > 0:
		return "None of the signs that the plan names for what keeps effect and record together was found.", evidence.Unknowable
	}
	return "What keeps effect and record together cannot be seen from outside.", evidence.Unknowable
}
