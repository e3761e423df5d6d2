package probe

import (
	"cmp"
	"context"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// lost holds what was seen of the retry of a request whose connection was cut.
type lost struct {
	control *opening
	tries   []*lostTry
}

// lostTry is one attempt that was cut off, and its retry.
type lostTry struct {
	first  *sent
	ran    delta // what the first did before the retry
	looked bool  // the state was stable by then
	second *attempt
	begun  bool     // a part of the first's response came
	whole  bool     // the first was answered before it could be cut off
	beside *attempt // a fresh request, if the retry was refused without an effect
}

// traced reports whether something shows that the first was processed.
func (t *lostTry) traced() bool {
	return t.begun || t.ran.exceeds(0) || t.second.replayed || t.second.waited
}

func (x *exp) lostUnread(ctx context.Context) (shown, error) {
	return x.lose(ctx, wire.AfterRequest, "after the last byte of the request")
}

func (x *exp) lostBegun(ctx context.Context) (shown, error) {
	return x.lose(ctx, wire.AfterFirstByte, "after the first byte of the response")
}

// lose cuts the first attempt off and sends the request again.
func (x *exp) lose(ctx context.Context, at wire.CutPoint, where string) (shown, error) {
	f := &lost{}
	var err error
	if f.control, err = x.control(ctx); err != nil || !f.control.sound(x.o) {
		return f, err
	}
	for try := 1; ; try++ {
		// A reset may discard what the server has not read yet.
		by := wire.ByReset
		if try > 1 {
			by = wire.ByClose
		}
		t, err := x.cutOff(ctx, wire.Cut{At: at, By: by}, where, try > 1)
		if t == nil || err != nil || x.o.r.dry() {
			return f, err
		}
		f.tries = append(f.tries, t)
		// One that left no trace may never have been processed.
		d := t.second
		blank := t.whole || d != nil && d.settled && d.total.told() && !d.total.exceeds(1) && is(d.total.number(), 1) && d.processed() && d.x.Response.Status < 500 && !t.traced()
		if !blank || try == maxWaits || t.whole && t.second != nil {
			return f, nil
		}
	}
}

// cutOff sends a request that is cut off, and sends it again. One that was
// answered before it could be cut off is sent again only if it is the last attempt at this.
func (x *exp) cutOff(ctx context.Context, cut wire.Cut, where string, last bool) (*lostTry, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	req, err := x.render(w.v, plan.Change{})
	if err != nil {
		return nil, err
	}
	t := &lostTry{}
	if t.first, err = x.cut(ctx, evidence.RoleFirst, req, cut, where); err != nil {
		return nil, err
	}
	t.whole = t.first.x.Response != nil && !t.first.x.Cut && cut.At != wire.BeforeLastByte
	if x.o.r.dry() {
		x.plan(evidence.RoleDuplicate, req, "", 1, "")
		return t, nil
	}
	t.begun = cut.At == wire.AfterFirstByte && len(t.first.x.Received) > 0
	if turnedAway(&t.first.x) && cut.At != wire.BeforeLastByte {
		return t, nil
	}
	if t.whole && !last {
		// Its effect must not be in the next one's readings.
		_, err = x.look(ctx, w, t.first)
		w.conclude(1)
		return t, err
	}
	// What the first did is read before the retry, to tell whose it was.
	if err := w.settle(ctx, t.first.over(), 0); err != nil {
		return t, err
	}
	t.ran, t.looked = w.since(w.before), w.settled
	if cut.At == wire.BeforeLastByte && t.ran.exceeds(0) {
		w.conclude(0)
		return t, nil
	}
	t.second, err = x.retry(ctx, w, &attempt{sent: t.first})
	w.conclude(1)
	if err == nil && refused(t.second) {
		t.beside, err = x.beside(ctx)
	}
	return t, err
}

// retry sends a request again for as long as the response is that the first is
// in progress, or that it was not processed, within the plan's limit of
// settling. The pauses grow, so few sends are needed. Then it looks at the
// state.
func (x *exp) retry(ctx context.Context, w *watch, first *attempt) (a *attempt, err error) {
	limit := x.o.r.p.Timing.SettleLimit
	pause, start := limit/16, time.Now()
	waited := false
	var s *sent
	for {
		if s, err = x.resend(ctx, evidence.RoleDuplicate, first.sent); err != nil {
			return nil, err
		}
		progress := x.o.inProgress(s)
		if !progress && (!turnedAway(&s.x) || s.x.Delivery != wire.Answered) {
			break
		}
		waited = waited || progress
		pause = max(pause, retryAfter(&s.x))
		left := limit - time.Since(start)
		if left <= 0 || x.o.r.send.Left() == 0 {
			break
		}
		if err := sleep(ctx, min(pause, left)); err != nil {
			return nil, err
		}
		pause *= 2
	}
	w.resource = cmp.Or(w.resource, first.resource, s.resource)
	want := int64(0)
	if success(&s.x) && (!accepted(&s.x) || x.o.facts.async) {
		want = 1
	}
	a, err = x.lookFor(ctx, w, s, want)
	if a != nil {
		a.waited = waited
	}
	return a, err
}

// failed holds what was seen of the retry of a request that failed at first.
type failed struct {
	control *opening
	off     *lostTry // it was cut off before its last byte
	first   *attempt
	second  *attempt
	beside  *attempt // a fresh request, if the retry was refused without an effect
	why     string
}

// failedFirst makes the first attempt fail and sends the request again. The
// caller says how it is made to fail, or the plan does with an operation that
// has only this experiment: its request fails at first. Otherwise the attempt
// is cut off before its last byte.
func (x *exp) failedFirst(ctx context.Context) (shown, error) {
	hook := x.o.r.o.FailFirst
	fails := len(x.o.op.Experiments) == 1 && x.o.op.Experiments[0] == plan.FailedFirst
	f := &failed{}
	var err error
	if !fails {
		if f.control, err = x.control(ctx); err != nil || !f.control.sound(x.o) {
			return f, err
		}
	}
	if hook == nil && !fails {
		f.off, err = x.cutOff(ctx, wire.Cut{At: wire.BeforeLastByte, By: wire.ByReset}, "before the last byte of the request", true)
		return f, err
	}
	w, err := x.fresh(ctx)
	if err != nil {
		return f, err
	}
	req, err := x.render(w.v, plan.Change{})
	if err != nil {
		return f, err
	}
	var s *sent
	if hook != nil && !x.o.r.dry() {
		if err := hook(ctx, true); err != nil {
			return f, err
		}
		if s, err = x.send(ctx, evidence.RoleFirst, req, ""); err == nil && accepted(&s.x) {
			err = x.follow(ctx, w, s) // what it is made of comes later
		}
		if off := hook(context.WithoutCancel(ctx), false); off != nil {
			f.why = "the target could not be made to work again: " + off.Error()
			return f, err
		}
	} else {
		s, err = x.send(ctx, evidence.RoleFirst, req, "")
	}
	if err != nil {
		return f, err
	}
	f.first = &attempt{sent: s}
	if x.o.r.dry() {
		x.plan(evidence.RoleDuplicate, req, "", 1, "")
		return f, nil
	}
	if s.done() || turnedAway(&s.x) || s.x.Response == nil {
		return f, nil
	}
	if f.first, err = x.lookFor(ctx, w, s, 0); err != nil || success(&s.x) && s.fate != fateFailed {
		return f, err
	}
	x.o.learn(w, f.first)
	f.second, err = x.retry(ctx, w, f.first)
	w.conclude(1)
	if err != nil {
		return f, err
	}
	x.o.learn(w, f.second)
	f.first.refresh(w)
	if refused(f.second) {
		f.beside, err = x.beside(ctx)
	}
	return f, err
}
