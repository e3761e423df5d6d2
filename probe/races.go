package probe

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/wire"
)

// control makes sure that the effect of a fresh request has been seen by now.
func (x *exp) control(ctx context.Context) error {
	if x.o.facts.controls > 0 {
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
	if _, err = x.firstOf(ctx, w, plan.Change{}, "control"); err != nil {
		return err
	}
	w.conclude(1)
	return nil
}

// sighted says whether some reader can tell effects.
func (o *operation) sighted() bool {
	return slices.ContainsFunc(o.readers, func(rd *reader) bool { return rd.seen })
}

func (x *exp) race(ctx context.Context) error {
	if err := x.control(ctx); err != nil {
		return err
	}
	width, trials := x.o.r.p.Race.Width, x.o.r.p.Race.Trials
	if x.o.r.dry() {
		v, err := x.drawTimes(ctx, trials)
		if err != nil {
			return err
		}
		req, err := x.render(v, plan.Change{})
		if err == nil {
			x.plan("race", req, "", width*trials, fmt.Sprintf("%d at once, %s", width, times(trials, "trial")))
		}
		return err
	}
	r := &evidence.Race{Width: width, Bound: 1}
	x.e.Race = r
	var why string
	for range trials {
		if takes := width + x.o.stepsEach(); x.o.r.send.Left() < takes {
			why = fmt.Sprintf("the budget has %s left, and a race takes %d", times(x.o.r.send.Left(), "send"), takes)
			break
		}
		reason, err := x.trial(ctx, r)
		if err != nil {
			return err
		}
		why = cmp.Or(reason, why)
	}
	r.Bound = evidence.RateBound(r.Doubled, r.Overlapped)
	x.o.facts.race = r
	switch {
	case r.Doubled > 0:
		x.broken("more than one effect in %d of %s", r.Doubled, times(r.Trials, "trial"))
	case r.Lost > 0:
		x.broken("success without an effect in %d of %s", r.Lost, times(r.Trials, "trial"))
	case r.Overlapped == 0:
		x.unclear("no two requests were shown to be processed at the same time: %s", cmp.Or(why, "their answers came one after the other"))
	case !x.o.sighted():
		x.unclear("no reader sees the state: answers alone say nothing about effects")
	case len(x.bad) == 0 && len(x.open) == 0:
		x.holds("1 effect in each of %s of %d at once in which they overlapped; that leaves open a rate of doubles below %.1f %%", times(r.Overlapped, "trial"), width, r.Bound*100)
	}
	return nil
}

// trial is one race. reason says why it shows nothing.
func (x *exp) trial(ctx context.Context, r *evidence.Race) (reason string, err error) {
	v, err := x.draw(ctx)
	if err != nil {
		return "", err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return "", err
	}
	req, err := x.render(v, plan.Change{})
	if err != nil {
		return "", err
	}
	got, err := x.o.r.send.SendRace(as(ctx, ""), slices.Repeat([]wire.Request{req}, r.Width), nil)
	if err != nil {
		return "", err
	}
	all := make([]*sent, len(got.Exchanges))
	for i := range got.Exchanges {
		all[i] = x.sent(got.Exchanges[i], "race", "")
	}
	if err := ctxErr(ctx); err != nil {
		return "", err
	}
	r.Trials++
	if !got.Released {
		reason = fmt.Sprintf("the requests could not be released together: %v", got.Err)
		if !slices.ContainsFunc(all, func(s *sent) bool { return s.x.Response != nil }) {
			return reason, nil
		}
		// Answered before they were whole: what they did counts all the same.
	}
	r.Protocol, r.SpreadUS = got.Exchanges[0].Protocol.String(), max(r.SpreadUS, got.Spread.Microseconds())
	var end time.Time
	var processed, done, failed []*sent
	for _, s := range all {
		if s.over().After(end) {
			end = s.over()
		}
		if s.x.Response == nil || turnedAway(&s.x) {
			if s.x.Response != nil && s.x.Response.Status == http.StatusTooManyRequests {
				x.o.facts.limited = true
			}
			continue
		}
		processed = append(processed, s)
		switch {
		case success(&s.x):
			done = append(done, s)
		case s.x.Response.Status >= 500:
			failed = append(failed, s)
		}
		if w.resource == "" {
			w.resource = s.resource
		}
	}
	r.Delivered += len(processed)
	overlapped := got.Released && inFlight(processed) >= 2
	if overlapped {
		r.Overlapped++
	}
	promised := slices.ContainsFunc(done, func(s *sent) bool { return !accepted(&s.x) })
	want := int64(0)
	if promised {
		want = 1
	}
	if err := w.settle(ctx, end, want); err != nil {
		return "", err
	}
	w.conclude(1)
	d := w.since(w.before, false)
	id := "double-effect-race"
	if !overlapped {
		id = "double-effect-sequential"
	}
	if more(d.most, 1) {
		r.Doubled++
	}
	if !x.effects(w, d, id, processed...) {
		return "", nil
	}
	if !d.state && !d.outside {
		var ids []string
		for _, s := range done {
			if s.resource != "" && !slices.Contains(ids, s.resource) {
				ids = append(ids, s.resource)
			}
		}
		if len(ids) > 1 && overlapped {
			r.Doubled++
			x.find("double-effect-race", "", evidence.Inferred, processed...)
		}
		return "", nil
	}
	switch {
	case promised && (less(d.least, 1) || !d.state && less(d.outLeast, 1)):
		r.Lost++
		x.find("lost-effect", "", evidence.Established, processed...)
		return "", nil
	case len(done) == 0 && is(d.most, 0):
		if overlapped {
			r.Overlapped-- // nothing ran
		}
		return fmt.Sprintf("none of %d requests succeeded", len(all)), nil
	case !overlapped:
		return cmp.Or(reason, fmt.Sprintf("%d of %d requests were processed", len(processed), len(all))), nil
	}
	if len(failed) > 0 && len(done) > 0 {
		x.broken("1 effect, and %s of a race answered with a server error", times(len(failed), "request"))
		x.error5xx(failed...)
	}
	var first *sent
	for _, s := range done {
		if s.resource == "" || accepted(&s.x) {
			continue
		}
		if first == nil {
			first = s
		} else if s.resource != first.resource {
			x.broken("1 effect, and answers that name different resources")
			x.find("replay-differs", "", evidence.Established, first, s)
			break
		}
	}
	return "", nil
}

// inFlight is how many of the requests were under way at one moment: their last
// byte was out, and no byte of the answer had come. An answer may be read before
// it is known that the last byte is out; such a request was under way in the
// moment before its answer.
func inFlight(all []*sent) (most int) {
	for _, a := range all {
		out, in := a.x.Timing.LastWrite, a.x.Timing.FirstByte
		if out.IsZero() {
			continue
		}
		at := out
		if !in.IsZero() && in.Before(out) {
			at = in
		}
		n := 1
		for _, b := range all {
			out, in := b.x.Timing.LastWrite, b.x.Timing.FirstByte
			if b != a && !out.IsZero() && !in.IsZero() && !out.After(at) && in.After(at) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// slowEnough is how long an operation has to take for a retry to be sent while
// it is certainly running; of faster ones two are released together.
const slowEnough = 20 * time.Millisecond

func (x *exp) inFlight(ctx context.Context) error {
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
		if x.o.r.dry() {
			x.plan("first", req, "", 1, "")
			x.plan("duplicate", req, "", 1, "while the first is running")
			return nil
		}
		first, second, err := x.pair(ctx, req)
		if err != nil {
			return err
		}
		end := first.over()
		if second.over().After(end) {
			end = second.over()
		}
		w.resource = cmp.Or(first.resource, second.resource)
		want := int64(0)
		if success(&first.x) && !accepted(&first.x) {
			want = 1
		}
		if err := w.settle(ctx, end, want); err != nil {
			return err
		}
		w.conclude(1)
		d := w.since(w.before, false)
		running := inFlight([]*sent{first, second}) == 2
		id := "in-flight-executed"
		if !running {
			id = "double-effect-sequential"
		}
		if !x.effects(w, d, id, first, second) {
			if more(d.most, 1) && running {
				x.o.facts.inFlight = "no"
			}
			return nil
		}
		switch {
		case !success(&first.x):
			x.unclear("the first request did not succeed: %s", answer(first))
			return nil
		case turnedAway(&second.x):
			if second.x.Response != nil && second.x.Response.Status == http.StatusTooManyRequests {
				x.o.facts.limited = true
			}
			x.unclear("the retry was not processed: %s", answer(second))
			return nil
		case second.x.Response == nil:
			x.unclear("the retry has no answer: %s", answer(second))
			return nil
		case !running && try == maxWaits:
			x.unclear("the first was never seen running when the retry was out: it took %v", x.o.takes.Round(time.Microsecond))
			return nil
		case !running:
			continue
		case !d.state && !d.outside:
			x.byIDs("in-flight-executed", first, second)
			return nil
		case is(d.most, 0):
			x.broken("the first was answered with %s and had no effect", answer(first))
			x.find("lost-effect", "", evidence.Established, first, second)
			return nil
		}
		x.meanwhile(first, second)
		return nil
	}
}

// pair sends a request, and again while the first is running. Of two that were
// released together, the one that was executed counts as the first.
func (x *exp) pair(ctx context.Context, req wire.Request) (first, second *sent, err error) {
	if x.o.takes < slowEnough {
		got, err := x.o.r.send.SendRace(as(ctx, ""), []wire.Request{req, req}, nil)
		if err != nil {
			return nil, nil, err
		}
		a, b := x.sent(got.Exchanges[0], "first", ""), x.sent(got.Exchanges[1], "duplicate", "")
		if !success(&a.x) && success(&b.x) || a.replayed && !b.replayed || accepted(&a.x) && success(&b.x) && !accepted(&b.x) {
			a, b = b, a
		}
		return a, b, ctxErr(ctx)
	}
	type result struct {
		x   wire.Exchange
		err error
	}
	done := make(chan result, 1)
	go func() {
		got, err := x.o.r.send.Send(as(ctx, ""), req)
		done <- result{got, err}
	}()
	early := sleep(ctx, x.o.takes/3)
	var later result
	if early == nil {
		later.x, later.err = x.o.r.send.Send(as(ctx, ""), req)
	}
	one := <-done
	// Whatever was sent is written down, also if the other was not.
	if one.err == nil {
		first = x.sent(one.x, "first", "")
	}
	if early == nil && later.err == nil {
		second = x.sent(later.x, "duplicate", "")
	}
	return first, second, cmp.Or(one.err, early, later.err, ctxErr(ctx))
}

// meanwhile judges the answer to a duplicate of a running request.
func (x *exp) meanwhile(first, second *sent) {
	f, c := &x.o.facts, x.o.contract
	x.e.Second = x.o.compare(first, second)
	status, s := second.x.Response.Status, x.e.Second
	invites := advice(&second.x) == "new-key" || advice(&second.x) == "no"
	told := slices.Contains(c.InFlight, status) || status == http.StatusConflict || status == http.StatusTooEarly || status == http.StatusLocked || status == http.StatusAccepted
	switch {
	case s.Class == evidence.RefusedWithReference,
		success(&second.x) && !accepted(&second.x) && s.Class == evidence.SameResult:
		f.inFlight = "yes"
		x.holds("1 effect; the retry during the first waited and got %s", map[bool]string{true: "its result", false: "a reference to its result"}[s.Class == evidence.SameResult])
	case told && !invites:
		f.inFlight = "yes"
		x.holds("1 effect; the retry during the first was told that it is in progress: %d", status)
	case success(&second.x):
		f.inFlight = "no"
		x.broken("1 effect, and the retry during the first got another result: %s", answer(second))
		x.find("replay-differs", "", evidence.Established, first, second)
	case status >= 500:
		f.inFlight = "no"
		x.broken("1 effect, and the retry during the first got %s", answer(second))
		x.error5xx(first, second)
	default:
		f.inFlight = "no"
		f.retry = append(f.retry, "unsafe_retry")
		x.broken("1 effect, and the retry during the first got %d%s, which reads as final", status, map[bool]string{true: " with the advice to take a new key or none"}[invites])
		x.find("in-flight-error-invites-new-key", "", evidence.Inferred, first, second)
	}
}

// error5xx is a finding of duplicates that were answered with a server error,
// the last of the given ones at least. One alone may be chance.
func (x *exp) error5xx(sends ...*sent) {
	f := &x.o.facts
	for _, s := range sends {
		if s.x.Response != nil && s.x.Response.Status >= 500 {
			f.errors5xx++
		}
	}
	basis := evidence.Inferred
	if f.errors5xx > 1 {
		basis = evidence.Established
	}
	x.find("unstable-5xx-on-duplicate", "", basis, sends...)
}
