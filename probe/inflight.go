package probe

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// races holds what was seen of a request that was sent several times at once.
type races struct {
	control *opening // nil if effects had been seen before
	width   int
	trials  []*trial
	why     string // there are no more of them
}

// trial is one race.
type trial struct {
	all      []*sent
	released bool
	reason   string // they were not
	signs    []*sign
	protocol string
	spread   time.Duration
	end      *attempt // the state after all of them
}

func (x *exp) race(ctx context.Context) (shown, error) {
	f := &races{width: x.o.r.p.Race.Width}
	var err error
	if f.control, err = x.control(ctx); err != nil || !f.control.sound(x.o) {
		return f, err
	}
	trials := x.o.r.p.Race.Trials
	if x.o.r.dry() {
		v, err := x.drawTimes(ctx, trials)
		if err != nil {
			return f, err
		}
		req, err := x.render(v, plan.Change{})
		if err == nil {
			x.plan(evidence.RoleRace, req, "", f.width*trials, fmt.Sprintf("%d at once, %s", f.width, times(trials, "trial")))
		}
		return f, err
	}
	for range trials {
		if takes := f.width + x.o.stepsEach(); x.o.r.send.Left() < takes {
			f.why = fmt.Sprintf("the budget has %s left, and a race takes %d", times(x.o.r.send.Left(), "send"), takes)
			break
		}
		t, err := x.trial(ctx, f.width)
		if err != nil {
			return f, err
		}
		f.trials = append(f.trials, t)
	}
	return f, nil
}

func (x *exp) trial(ctx context.Context, width int) (*trial, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	req, err := x.render(w.v, plan.Change{})
	if err != nil {
		return nil, err
	}
	signs, err := x.signs(ctx, w)
	if err != nil {
		return nil, err
	}
	t, err := x.release(ctx, w, evidence.RoleRace, slices.Repeat([]wire.Request{req}, width))
	if err == nil {
		t.signs, err = signs, x.found(ctx, signs, t.all...)
	}
	return t, err
}

// release sends requests with the values of a watch at once.
func (x *exp) release(ctx context.Context, w *watch, role evidence.Role, all []wire.Request) (*trial, error) {
	got, err := x.o.r.send.SendRace(as(ctx, ""), all, nil)
	if err != nil {
		return nil, err
	}
	t := &trial{released: got.Released, protocol: got.Exchanges[0].Protocol.String(), spread: got.Spread}
	for i := range got.Exchanges {
		t.all = append(t.all, x.sent(got.Exchanges[i], role, ""))
	}
	if err := ctxErr(ctx); err != nil {
		return nil, err
	}
	if !got.Released {
		t.reason = fmt.Sprintf("the requests could not be released together: %v", got.Err)
	}
	t.end, err = x.lookAt(ctx, w, t.all...)
	w.conclude(1)
	return t, err
}

// lookAt waits until the state is stable after several requests with one key.
// The first of them that names a resource, or was done, stands for all.
func (x *exp) lookAt(ctx context.Context, w *watch, all ...*sent) (*attempt, error) {
	var last, done *sent
	for _, s := range all {
		if w.resource == "" && s.processed() {
			w.resource = s.resource
		}
		if last == nil || s.over().After(last.over()) {
			last = s
		}
		if accepted(&s.x) && (done == nil || !done.done()) && x.o.facts.async {
			// One that is done is enough: they are one request.
			if err := x.follow(ctx, w, s); err != nil {
				return nil, err
			}
		}
		if success(&s.x) && (done == nil || s.done()) {
			done = s
		}
	}
	want := int64(0)
	if done != nil && done.done() || done != nil && x.o.facts.async && done.fate == fateUntold {
		want = 1
	}
	for _, s := range all {
		w.promise(s)
	}
	if err := w.settle(ctx, last.over(), want); err != nil {
		return nil, err
	}
	total := w.since(w.before)
	return &attempt{sent: cmp.Or(done, last), total: total, own: total, settled: w.settled, why: w.why}, nil
}

// inFlight is how many of the requests were under way at one moment: their last
// byte was out, and no byte of the response had come. A response may be read
// before it is known that the last byte is out; such a request was under way in
// the moment before its response.
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

// meanwhile holds what was seen of retries that were sent while the first was
// running.
type meanwhile struct {
	control *opening
	first   *sent
	retries []*sent // in their order; the last one last
	end     *attempt
	takes   time.Duration
	// together: the first and its one retry were released at once.
	together bool
}

// running reports whether a retry was under way while the first was.
func (f *meanwhile) running() bool {
	return slices.ContainsFunc(f.retries, func(s *sent) bool { return inFlight([]*sent{f.first, s}) == 2 })
}

func (x *exp) inFlight(ctx context.Context) (shown, error) {
	f := &meanwhile{}
	var err error
	if f.control, err = x.control(ctx); err != nil || !f.control.sound(x.o) {
		return f, err
	}
	for try := 1; ; try++ {
		w, err := x.fresh(ctx)
		if err != nil {
			return f, err
		}
		req, err := x.render(w.v, plan.Change{})
		if err != nil {
			return f, err
		}
		if x.o.r.dry() {
			x.plan(evidence.RoleFirst, req, "", 1, "")
			x.plan(evidence.RoleDuplicate, req, "", 1, "while the first is running")
			return f, nil
		}
		f.takes, f.together, f.end = x.o.takes, x.o.takes < slowEnough, nil
		if f.first, f.retries, err = x.pair(ctx, req); err != nil {
			return f, err
		}
		f.end, err = x.lookAt(ctx, w, append([]*sent{f.first}, f.retries...)...)
		w.conclude(1)
		if err != nil {
			return f, err
		}
		second := f.retries[len(f.retries)-1]
		again := success(&f.first.x) && !f.running() && second.processed() && !f.end.total.exceeds(1) && f.end.settled
		if !again || try == maxWaits {
			return f, nil
		}
	}
}

// pair sends a request, and again while the first is running: up to three
// times, as long as it is told to wait. Of two that were released together, the
// one that was executed counts as the first.
func (x *exp) pair(ctx context.Context, req wire.Request) (first *sent, retries []*sent, err error) {
	if x.o.takes < slowEnough {
		got, err := x.o.r.send.SendRace(as(ctx, ""), []wire.Request{req, req}, nil)
		if err != nil {
			return nil, nil, err
		}
		a, b := x.sent(got.Exchanges[0], evidence.RoleFirst, ""), x.sent(got.Exchanges[1], evidence.RoleDuplicate, "")
		if !success(&a.x) && success(&b.x) || a.replayed && !b.replayed || accepted(&a.x) && success(&b.x) && !accepted(&b.x) {
			a, b = b, a
			all := x.e.Sends[len(x.e.Sends)-2:]
			all[0].Role, all[1].Role = all[1].Role, all[0].Role
		}
		return a, []*sent{b}, ctxErr(ctx)
	}
	if _, err := x.o.r.send.ready(as(ctx, "")); err != nil {
		return nil, nil, err
	}
	type result struct {
		x   wire.Exchange
		err error
	}
	done := make(chan result, 1)
	start := time.Now()
	go func() {
		got, err := x.o.r.send.only(as(ctx, ""), req)
		done <- result{got, err}
	}()
	var one result
	over := false
	// At a third of its time, at two thirds and near its end: a claim may lapse
	// before the work is done.
	for _, part := range []time.Duration{33, 66, 90} {
		if err = sleep(ctx, time.Until(start.Add(x.o.takes*part/100))); err != nil {
			break
		}
		if len(retries) > 0 {
			select {
			case one = <-done:
				over = true
			default:
			}
		}
		if over || x.o.r.send.Left() == 0 && len(retries) > 0 {
			break
		}
		var later wire.Exchange
		if later, err = x.o.r.send.only(as(ctx, ""), req); err != nil {
			break
		}
		s := x.sent(later, evidence.RoleDuplicate, "")
		retries = append(retries, s)
		if !s.processed() || success(&s.x) && !accepted(&s.x) || s.serverError() {
			break
		}
	}
	if !over {
		one = <-done
	}
	// Whatever was sent is written down, even if the other was not.
	if one.err == nil {
		first = x.sent(one.x, evidence.RoleFirst, "")
	}
	return first, retries, cmp.Or(one.err, err, ctxErr(ctx))
}
