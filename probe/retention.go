package probe

import (
	"context"
	"fmt"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

// searchSteps is how many waiting times a search for the retention tries, each
// twice the one before.
const searchSteps = 7

// forgetting holds what was seen of duplicates sent after longer and longer
// times.
type forgetting struct {
	ground *again
	tries  []*wait
	why    string
}

// wait is a request and its duplicate after a time.
type wait struct {
	opening
	after  time.Duration
	second *attempt
}

// retentionSearch sends several requests, and the duplicate of each after its
// own time, until one has an effect.
func (x *exp) retentionSearch(ctx context.Context) (shown, error) {
	f := &forgetting{}
	var err error
	if f.ground, err = x.ground(ctx); err != nil || !f.ground.protected(x.o) || x.o.facts.protects() == no {
		return f, err
	}
	limit := x.o.r.p.Target.RetentionSearch
	for i := range searchSteps {
		after := limit >> (searchSteps - 1 - i)
		if !x.o.r.dry() && x.o.r.send.Left() < 2+x.o.stepsEach()+len(f.tries) {
			f.why = fmt.Sprintf("the budget has %s left", times(x.o.r.send.Left(), "send"))
			break
		}
		o, err := x.open(ctx, evidence.RoleFirst)
		if o == nil {
			return f, err
		}
		if err != nil || !o.sound(x.o) {
			f.tries = append(f.tries, &wait{opening: *o})
			return f, err
		}
		f.tries = append(f.tries, &wait{opening: *o, after: after})
	}
	for _, t := range f.tries {
		if !x.o.r.dry() {
			if err := sleep(ctx, time.Until(t.good().over().Add(t.after))); err != nil {
				return f, err
			}
			// Effects of the others in the meantime are not this duplicate's.
			if err := t.w.settle(ctx, time.Now(), 0); err != nil {
				return f, err
			}
			t.w.rebase()
			t.after = time.Since(t.good().over())
		}
		s, err := x.resend(ctx, evidence.RoleDuplicate, t.good().sent)
		if err != nil {
			return f, err
		}
		if t.second, err = x.lookFor(ctx, t.w, s, 0); err != nil {
			return f, err
		}
		t.w.conclude(0)
		if !x.o.r.dry() && t.second.total.exceeds(0) {
			break
		}
	}
	return f, nil
}

func (f *forgetting) judge(j *judgement) {
	if !j.grounded(f.ground) {
		if j.o.facts.protects() == no {
			j.void("no duplicate is recognised, so nothing can be forgotten")
		}
		return
	}
	if f.why != "" {
		j.holds("%s: longer times were not tried", f.why)
	}
	known := time.Duration(0)
	for _, t := range f.tries {
		if !j.opened(&t.opening) || t.second == nil {
			return
		}
		first, second, d := t.good().sent, t.second.sent, t.second.total
		j.e.Second = j.o.compare(first, second)
		after := t.after.Round(time.Millisecond)
		switch {
		case d.exceeds(0):
			told := j.o.r.p.Target.Retention
			j.broken("a duplicate after %v had %s; one after %v had none", after, count(d.number()), known)
			p := evidence.Priority("")
			if told > 0 && t.after < told {
				p = evidence.P0
				j.broken("keys are said to be kept for %v", told)
			}
			j.find(evidence.FindingKeyForgotten, p, evidence.Established, first, second)
			return
		case !t.second.settled:
			j.unclear("%s", t.second.why)
			return
		case !second.processed():
			j.unclear("the duplicate after %v was not processed: %s", after, response(second))
			return
		case !d.told():
			j.unclear("the duplicate after %v was answered with %s; no reader sees the state", after, response(second))
			return
		}
		known = after
	}
	if known > 0 {
		j.holds("a duplicate after %v still had no effect of its own; longer times were not tried", known)
	}
}
