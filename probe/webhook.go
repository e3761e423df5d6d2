package probe

import (
	"context"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// redelivered is what an event shows that is delivered again, and what others
// show that are stale or forged.
type redelivered struct {
	opening
	second  *attempt // as it was
	anew    *attempt // signed anew
	stale   *attempt // nil if the scheme signs no time
	forged  *attempt // nil if the plan does not say how to alter it
	staleBy time.Duration
}

// redelivery delivers an event again, as it was and signed anew, and delivers
// events that are stale or altered.
func (x *exp) redelivery(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &redelivered{opening: *o, staleBy: x.o.op.Signature.StaleBy}
	if err != nil || !o.sound(x.o) {
		f.w.conclude(1)
		return f, err
	}
	if f.second, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good()); err == nil {
		f.anew, err = x.signedAnew(ctx, f.w)
	}
	f.w.conclude(1)
	if err != nil {
		return f, err
	}
	if x.o.op.Signature.Scheme != "github" { // which signs no time
		if f.stale, err = x.stale(ctx); err != nil {
			return f, err
		}
	}
	if x.o.op.Altered != nil {
		f.forged, err = x.forged(ctx)
	}
	return f, err
}

func (x *exp) signedAnew(ctx context.Context, w *watch) (*attempt, error) {
	req, err := x.render(w.v, plan.Change{SignedAt: w.v.At().Add(time.Second)})
	if err != nil {
		return nil, err
	}
	s, err := x.send(ctx, "signed-anew", req, "")
	if err != nil {
		return nil, err
	}
	return x.look(ctx, w, s)
}

// stale delivers an event of its own that was signed long ago.
func (x *exp) stale(ctx context.Context) (*attempt, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	req, err := x.render(w.v, plan.Change{SignedAt: w.v.At().Add(-x.o.op.Signature.StaleBy)})
	if err != nil {
		return nil, err
	}
	a, err := x.single(ctx, w, evidence.RoleStale, req)
	w.conclude(0)
	return a, err
}

// forged delivers an event of its own that was altered after it was signed.
func (x *exp) forged(ctx context.Context) (*attempt, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	req, err := x.render(w.v, plan.Change{})
	if err != nil {
		return nil, err
	}
	other, err := x.render(w.v, plan.Change{Altered: true})
	if err != nil {
		return nil, err
	}
	req.Body = other.Body // under the signature of the one that was not altered
	a, err := x.single(ctx, w, evidence.RoleForged, req)
	w.conclude(0)
	return a, err
}
