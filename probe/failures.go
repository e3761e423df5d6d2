package probe

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/wire"
)

func (x *exp) lostUnread(ctx context.Context) error {
	return x.lost(ctx, wire.AfterRequest, "after the last byte of the request")
}

func (x *exp) lostBegun(ctx context.Context) error {
	return x.lost(ctx, wire.AfterFirstByte, "after the first byte of the answer")
}

// lost cuts the first attempt off and sends the request again.
func (x *exp) lost(ctx context.Context, at wire.CutPoint, where string) error {
	if err := x.control(ctx); err != nil {
		return err
	}
	for try := 1; ; try++ {
		v, err := x.draw(ctx)
		if err != nil {
			return err
		}
		w, err := x.watch(ctx, v)
		if err != nil {
			return err
		}
		req, err := x.render(v, plan.Change{})
		if err != nil {
			return err
		}
		// A reset may take from the server what it has not read yet.
		by := wire.ByReset
		if try > 1 {
			by = wire.ByClose
		}
		first, err := x.cut(ctx, "first", req, wire.Cut{At: at, By: by}, where)
		if err != nil {
			return err
		}
		if x.o.r.dry() {
			x.plan("duplicate", req, "", 1, "")
			return nil
		}
		if turnedAway(&first.x) {
			x.unclear("the first attempt did not get through: %s", answer(first))
			return nil
		}
		// What the first did is read before the retry, to tell whose it was.
		if err := w.settle(ctx, first.over(), 0); err != nil {
			return err
		}
		ran := w.since(w.before, false)
		second, waited, err := x.retry(ctx, first)
		if err != nil {
			return err
		}
		begun := at == wire.AfterFirstByte && len(first.x.Received) > 0
		seen := begun || more(ran.most, 0) || more(ran.outMost, 0) || second.replayed || waited
		again, err := x.settled(ctx, w, first, second, seen, "double-effect-lost-response")
		if err != nil || !again || try == maxWaits {
			if again && err == nil {
				x.unclear("the first attempt left no trace: whether it was processed at all is not known")
			}
			return err
		}
	}
}

// retry sends a request again for as long as the answer is that the first is in
// progress, or that it was not processed, within the plan's limit of settling.
// The pauses grow, so that it takes few sends. waited tells whether it was ever
// answered to be in progress.
func (x *exp) retry(ctx context.Context, first *sent) (s *sent, waited bool, err error) {
	limit := x.o.r.p.Timing.SettleLimit
	pause, start := limit/16, time.Now()
	for {
		if s, err = x.resend(ctx, "duplicate", first); err != nil {
			return nil, waited, err
		}
		progress := x.inProgress(s)
		if !progress && (!turnedAway(&s.x) || s.x.Delivery != wire.Answered) {
			return s, waited, nil
		}
		waited = waited || progress
		pause = max(pause, retryAfter(&s.x))
		left := limit - time.Since(start)
		if left <= 0 || x.o.r.send.Left() == 0 {
			return s, waited, nil
		}
		if err := sleep(ctx, min(pause, left)); err != nil {
			return nil, waited, err
		}
		pause *= 2
	}
}

// inProgress says whether an answer is that the request is still being
// processed, and that it is worth while to ask again.
func (x *exp) inProgress(s *sent) bool {
	if s.x.Response == nil || s.resource != "" && !accepted(&s.x) {
		return false
	}
	status := s.x.Response.Status
	told := slices.Contains(x.o.contract.InFlight, status) || status == http.StatusConflict || status == http.StatusTooEarly || status == http.StatusLocked
	return accepted(&s.x) || told && status >= 400 && (retryAfter(&s.x) > 0 || advice(&s.x) == "same-key") && advice(&s.x) != "after-resolution"
}

// settled judges a retry after an attempt whose answer never came. It returns
// true if nothing was shown, because the attempt left no trace.
func (x *exp) settled(ctx context.Context, w *watch, first, second *sent, seen bool, id string) (again bool, err error) {
	want := int64(0)
	if success(&second.x) && !accepted(&second.x) {
		want = 1
	}
	w.resource = cmp.Or(first.resource, second.resource)
	if err := w.settle(ctx, second.over(), want); err != nil {
		return false, err
	}
	w.conclude(1)
	f := &x.o.facts
	d := w.since(w.before, false)
	if !x.effects(w, d, id, first, second) {
		if more(d.most, 1) || more(d.outMost, 1) {
			f.retry = append(f.retry, "unsafe_retry")
		}
		return false, nil
	}
	most := d.most
	if !d.state {
		most = d.outMost
	}
	switch {
	case second.x.Response == nil || turnedAway(&second.x):
		x.unclear("the retry was not processed: %s", answer(second))
	case !d.state && !d.outside:
		x.unclear("no reader sees the state: the retry's answer, %s, says nothing about effects", answer(second))
	case is(most, 0) && want == 1:
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the retry was answered with %s, and there is no effect", answer(second))
		x.find("lost-effect", "", evidence.Established, first, second)
	case x.inProgress(second):
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the key is still answered as in progress (%s) after %v, with %s", answer(second), x.o.r.p.Timing.SettleLimit, count(most))
		x.find("failure-blocks-key", "", evidence.Inferred, first, second)
	case advice(&second.x) == "after-resolution":
		f.retry = append(f.retry, "safe_stop")
		x.holds("%s; the retry is told that the outcome is not known, and to wait for it", count(most))
	case second.x.Response.Status >= 500:
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the retry was answered with %s, with %s", answer(second), count(most))
		x.error5xx(first, second)
	case is(most, 0):
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the retry was refused with %s, and there is no effect", answer(second))
		x.find("failure-blocks-key", "", evidence.Inferred, first, second)
	case !seen:
		return true, nil
	default:
		f.retry = append(f.retry, "safe_stop")
		x.holds("1 effect; the retry was answered with %s", answer(second))
	}
	return false, nil
}

// failedFirst makes the first attempt fail and sends the request again. How it
// is made to fail is the caller's to say, or the operation's whose only
// experiment this is: its request is one that fails at first. Otherwise the
// attempt is cut off before its last byte.
func (x *exp) failedFirst(ctx context.Context) error {
	hook := x.o.r.o.FailFirst
	fails := len(x.o.op.Experiments) == 1 && x.o.op.Experiments[0] == plan.FailedFirst
	if !fails {
		if err := x.control(ctx); err != nil {
			return err
		}
	}
	v, err := x.draw(ctx)
	if err != nil {
		return err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	req, err := x.render(v, plan.Change{})
	if err != nil {
		return err
	}
	if hook == nil && !fails {
		return x.brokenOff(ctx, w, req)
	}
	var first *sent
	if hook != nil && !x.o.r.dry() {
		if err := hook(ctx, true); err != nil {
			return err
		}
		first, err = x.send(ctx, "first", req, "")
		if off := hook(context.WithoutCancel(ctx), false); off != nil {
			x.unclear("the target could not be made to work again: %v", off)
			return cmp.Or(err, errStop)
		}
	} else {
		first, err = x.send(ctx, "first", req, "")
	}
	if err != nil {
		return err
	}
	if x.o.r.dry() {
		x.plan("duplicate", req, "", 1, "")
		return nil
	}
	if success(&first.x) || turnedAway(&first.x) || first.x.Response == nil {
		x.unclear("the first attempt did not fail with an answer: %s", answer(first))
		return nil
	}
	if err := w.settle(ctx, first.over(), 0); err != nil {
		return err
	}
	ran := w.since(w.before, true)
	second, _, err := x.retry(ctx, first)
	if err != nil {
		return err
	}
	want := int64(0)
	if success(&second.x) {
		want = 1
	}
	w.resource = second.resource
	if err := w.settle(ctx, second.over(), want); err != nil {
		return err
	}
	w.conclude(1)
	if want == 1 && !x.o.sighted() {
		x.o.learnAny(w)
	}
	x.e.Second = x.o.compare(first, second)
	f := &x.o.facts
	d := w.since(w.before, true)
	records := x.o.contract.RecordsErrors != nil && *x.o.contract.RecordsErrors
	changed := success(&second.x) || x.e.Second.Class == evidence.DifferentResult || first.x.Response.Status != second.x.Response.Status
	switch {
	case more(d.most, 1), more(d.outMost, 1):
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the first attempt was answered with %s and had %s; the retry had another", answer(first), count(ran.most))
		x.find(x.doubled("double-effect-sequential"), "", evidence.Established, first, second)
		x.find("failure-not-repeatable", "", evidence.Established, first, second)
	case !w.settled:
		x.unclear("%s", w.why)
	case second.x.Response == nil || turnedAway(&second.x):
		x.unclear("the retry was not processed: %s", answer(second))
	case !x.o.sighted():
		x.unclear("no reader has seen an effect; the first was answered with %s, the retry with %s", answer(first), answer(second))
	case success(&second.x) && is(d.most, 0):
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the retry was answered with %s, and there is no effect", answer(second))
		x.find("lost-effect", "", evidence.Established, first, second)
	case x.inProgress(second):
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("after a failure, %s, the key is still answered as in progress (%s) after %v", answer(first), answer(second), x.o.r.p.Timing.SettleLimit)
		x.find("failure-blocks-key", "", evidence.Inferred, first, second)
	case changed && records:
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("the first attempt failed with %s, which the contract says is recorded; the retry got %s", answer(first), answer(second))
		x.find("failure-not-repeatable", "", evidence.Established, first, second)
	case is(ran.most, 1) && !success(&second.x):
		x.holds("the first attempt was answered with %s and had its effect; the retry got %s and had none", answer(first), answer(second))
		f.retry = append(f.retry, "safe_stop")
	default:
		f.retry = append(f.retry, "safe_stop")
		x.holds("the first attempt failed with %s, the retry got %s: %s in all", answer(first), answer(second), count(d.most))
	}
	return nil
}

// learnAny takes readers for seeing that saw exactly one effect.
func (o *operation) learnAny(w *watch) {
	for i, rd := range o.readers {
		if w.before[i].err == nil && w.after[i].err == nil && is(rd.effects(w.before[i], w.after[i]), 1) {
			rd.seen = true
			o.facts.control = o.facts.control || !rd.outside
		}
	}
}

// brokenOff cuts the first attempt off before its last byte: it must have no
// effect, and must not use the key up.
func (x *exp) brokenOff(ctx context.Context, w *watch, req wire.Request) error {
	first, err := x.cut(ctx, "first", req, wire.Cut{At: wire.BeforeLastByte, By: wire.ByReset}, "before the last byte of the request")
	if err != nil {
		return err
	}
	if x.o.r.dry() {
		x.plan("duplicate", req, "", 1, "")
		return nil
	}
	if err := w.settle(ctx, first.over(), 0); err != nil {
		return err
	}
	if d := w.since(w.before, false); more(d.most, 0) {
		w.conclude(0)
		x.unclear("a request that was cut off before its last byte had %s", count(d.most))
		return nil
	}
	second, _, err := x.retry(ctx, first)
	if err != nil {
		return err
	}
	_, err = x.settled(ctx, w, first, second, true, "double-effect-lost-response")
	return err
}

// redelivery delivers an event again, as it was and signed anew, and delivers
// events that are stale or altered.
func (x *exp) redelivery(ctx context.Context) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	if _, err := x.resend(ctx, "duplicate", first); err != nil {
		return err
	}
	anew, err := x.render(w.v, plan.Change{SignedAt: w.v.At().Add(time.Second)})
	if err != nil {
		return err
	}
	second, err := x.send(ctx, "signed-anew", anew, "")
	if err != nil {
		return err
	}
	if err := x.repeated(ctx, w, first, second, "double-effect-sequential"); err != nil {
		return err
	}
	if err := x.stale(ctx); err != nil {
		return err
	}
	return x.forged(ctx)
}

// stale delivers an event of its own that was signed long ago.
func (x *exp) stale(ctx context.Context) error {
	s := x.o.op.Signature
	if s.Scheme == "github" {
		return nil // which signs no time
	}
	v, err := x.draw(ctx)
	if err != nil {
		return err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	req, err := x.render(v, plan.Change{SignedAt: v.At().Add(-s.StaleBy)})
	if err != nil {
		return err
	}
	got, err := x.send(ctx, "stale", req, "")
	if err != nil || x.o.r.dry() {
		return err
	}
	return x.keyless(ctx, w, got, func(d delta) {
		switch {
		case more(d.most, 0), more(d.outMost, 0):
			x.broken("an event that was signed %v ago was answered with %s and took effect", s.StaleBy, answer(got))
			x.find("webhook-stale-accepted", "", evidence.Established, got)
		case success(&got.x) && !d.state && !d.outside:
			x.unclear("an event that was signed %v ago was answered with %s, and no reader sees the state", s.StaleBy, answer(got))
		default:
			x.holds("an event that was signed %v ago was answered with %s%s", s.StaleBy, answer(got), d.without())
		}
	})
}

// forged delivers an event of its own that was altered after it was signed.
func (x *exp) forged(ctx context.Context) error {
	if x.o.op.Altered == nil {
		return nil
	}
	v, err := x.draw(ctx)
	if err != nil {
		return err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	req, err := x.render(v, plan.Change{})
	if err != nil {
		return err
	}
	other, err := x.render(v, plan.Change{Altered: true})
	if err != nil {
		return err
	}
	req.Body = other.Body // under the signature of the one that was not altered
	got, err := x.send(ctx, "forged", req, "")
	if err != nil || x.o.r.dry() {
		return err
	}
	return x.keyless(ctx, w, got, func(d delta) {
		switch {
		case more(d.most, 0), more(d.outMost, 0):
			x.broken("an event that was altered after it was signed was answered with %s and took effect", answer(got))
			x.find("webhook-altered-accepted", "", evidence.Established, got)
		case success(&got.x):
			x.broken("an event that was altered after it was signed was answered with %s, and no effect was seen", answer(got))
			x.find("webhook-altered-accepted", evidence.P1, evidence.Inferred, got)
		default:
			x.holds("an event that was altered after it was signed was refused with %s", answer(got))
		}
	})
}
