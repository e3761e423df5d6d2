package probe

import (
	"context"
	"slices"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// elsewhere holds what was seen of a duplicate sent to another instance.
type elsewhere struct {
	opening
	ground *again
	second *attempt
	race   *trial // one request to each of two instances at once; nil if not made
	why    string // it was not
}

// otherInstance sends a duplicate to another instance of the service, and then,
// of another request, one to each at once.
func (x *exp) otherInstance(ctx context.Context) (shown, error) {
	f := &elsewhere{}
	var err error
	if f.ground, err = x.ground(ctx); err != nil || !f.ground.protected(x.o) {
		return f, err
	}
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return f, err
	}
	f.opening = *o
	if err != nil || !o.sound(x.o) {
		f.w.conclude(1)
		return f, err
	}
	req, err := x.render(f.w.v, plan.Change{Instance: true})
	if err != nil {
		return f, err
	}
	s, err := x.send(ctx, evidence.RoleOtherInstance, req, "")
	if err != nil {
		return f, err
	}
	f.second, err = x.look(ctx, f.w, s)
	f.w.conclude(1)
	switch {
	case err != nil:
		return f, err
	case x.o.r.production():
		f.why = "two at once are refused in production"
		return f, nil
	case req.Protocol == wire.HTTP2:
		f.why = "two at once go to two instances over HTTP/1.1 only"
		return f, nil
	case !x.o.r.dry() && (f.second.total.exceeds(1) || !f.second.processed() || x.o.r.send.Left() < 2+x.o.stepsEach()):
		return f, nil
	}
	f.race, err = x.bothInstances(ctx)
	return f, err
}

// bothInstances releases a request to each of two instances.
func (x *exp) bothInstances(ctx context.Context) (*trial, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	var pair []wire.Request
	for _, c := range []plan.Change{{}, {Instance: true}} {
		req, err := x.render(w.v, c)
		if err != nil {
			return nil, err
		}
		req.Protocol = wire.HTTP1
		if x.o.r.dry() {
			x.plan(evidence.RoleRace, req, "", 1, "two at once, to two instances")
		}
		pair = append(pair, req)
	}
	if x.o.r.dry() {
		return nil, nil
	}
	return x.release(ctx, w, evidence.RoleRace, pair)
}

func (f *elsewhere) judge(j *judgement) {
	if !j.grounded(f.ground) {
		if j.o.facts.protects() == no {
			j.void("no instance recognises a duplicate, so what another one does shows nothing")
		}
		return
	}
	if f.w == nil || !j.opened(&f.opening) || f.second == nil {
		return
	}
	first, second, d := f.good().sent, f.second.sent, f.second.total
	j.e.Second = j.o.compare(first, second)
	known := &j.o.facts
	if !j.effects(d, 1, evidence.FindingInstanceDoubles, first, second) {
		known.unsafeRetry = true
		return
	}
	switch s := j.e.Second; {
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case !second.processed():
		j.unclear("the other instance did not process the duplicate: %s", response(second))
	case !d.told() && success(&second.x) && otherResource(first, second):
		j.broken("the other instance answered with another resource (%s, then %s); no reader tells how many there are", first.resource, second.resource)
		j.find(evidence.FindingInstanceDoubles, "", evidence.Inferred, first, second)
	case !d.told():
		j.unclear("no reader sees the state: what the other instance answered, %s, says nothing about effects", response(second))
	case s.Class == evidence.SameResult, s.Class == evidence.RefusedWithReference, second.replayed:
		j.holds("1 effect; the other instance knows the request, and answered with %s", response(second))
	case second.serverError():
		j.broken("1 effect, and the other instance answered the duplicate with %s", response(second))
		j.error5xx(first, second)
	case s.Class == evidence.Refused && slices.Contains([]int{401, 403, 404, 405, 421}, second.x.Response.Status):
		j.unclear("the other instance refused the duplicate with %s: whether it serves this operation was not shown", response(second))
	default:
		j.holds("1 effect; the other instance answered the duplicate with %s", response(second))
	}
	t := f.race
	if t == nil || t.end == nil {
		if f.why != "" {
			j.holds("%s", f.why)
		}
		return
	}
	overlapped := t.released && inFlight(t.all) >= 2
	switch d := t.end.total; {
	case d.exceeds(1):
		known.unsafeRetry = true
		j.effects(d, 1, evidence.FindingInstanceDoubles, t.all...)
	case !t.end.settled:
		j.unclear("%s", t.end.why)
	case !overlapped:
		j.unclear("it was not shown that the two requests to two instances were under way together")
	case !slices.ContainsFunc(t.all, func(s *sent) bool { return success(&s.x) }):
		j.unclear("of two requests at once to two instances none succeeded: %s and %s", response(t.all[0]), response(t.all[1]))
	case d.told():
		j.holds("1 effect of two requests at once, one to each instance (%s and %s)", response(t.all[0]), response(t.all[1]))
	}
}

// crossed holds what was seen of another operation sent under a used key.
type crossed struct {
	control *opening // of the other operation, under a key of its own
	other   *operation
	opening
	again  *attempt
	second *attempt // of the other operation, under the used key
}

// otherOperation sends another operation under a key that was used.
func (x *exp) otherOperation(ctx context.Context) (shown, error) {
	op, err := x.o.r.p.Operation(x.o.op.OtherOperation)
	if err != nil {
		return nil, err
	}
	f := &crossed{other: x.o.r.newOperation(op)}
	// The other operation has readers and steps of its own. What it sends is
	// evidence of this experiment.
	y := &exp{o: f.other, kind: x.kind, e: evidence.Experiment{Started: x.e.Started}}
	within := func(do func() error) error {
		x.o.r.now = y
		err := y.prepare(ctx)
		if err == nil {
			err = do()
		}
		x.o.r.now = x
		x.e.Sends = append(x.e.Sends, y.e.Sends...)
		x.e.Before, x.e.After, x.e.Changes = append(x.e.Before, y.e.Before...), append(x.e.After, y.e.After...), append(x.e.Changes, y.e.Changes...)
		y.e.Sends, y.e.Before, y.e.After, y.e.Changes = nil, nil, nil, nil
		return err
	}
	err = within(func() (err error) {
		f.control, err = y.open(ctx, evidence.RoleControl)
		if f.control != nil {
			f.control.w.conclude(1)
		}
		return err
	})
	if err != nil || !f.control.sound(f.other) {
		return f, err
	}
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return f, err
	}
	f.opening = *o
	defer func() { f.w.conclude(1) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	// Without a replay for the operation itself, the other's response says nothing.
	if f.again, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good()); err != nil {
		return f, err
	}
	if !x.o.r.dry() && !f.replayed(x.o) {
		return f, nil
	}
	return f, within(func() error {
		v, err := y.draw(ctx)
		if err != nil {
			return err
		}
		w, err := y.watch(ctx, x.o.r.r.WithKey(v, f.w.v))
		if err != nil {
			return err
		}
		req, err := y.render(w.v, plan.Change{})
		if err != nil {
			return err
		}
		s, err := y.send(ctx, "other-operation", req, "")
		if err != nil {
			return err
		}
		// Nothing has to come: whether it does is the question.
		want := int64(0)
		if success(&s.x) && !s.replayed && s.resource != f.good().resource {
			want = 1
		}
		f.second, err = y.lookFor(ctx, w, s, want)
		w.conclude(1)
		return err
	})
}

func (f *crossed) replayed(o *operation) bool {
	return (&scoped{opening: f.opening, again: f.again}).replayed(o)
}

func (f *crossed) judge(j *judgement) {
	other := &judgement{o: f.other, e: &evidence.Experiment{}}
	if f.control == nil || !other.opened(f.control) {
		_, why := other.outcome()
		j.unclear("%s by itself shows nothing to compare with: %s", f.other.op.Name, why)
		return
	}
	if f.w == nil || !j.opened(&f.opening) || f.again == nil {
		return
	}
	known := &j.o.facts
	if !f.replayed(j.o) {
		j.unclear("no replay was shown for %s itself (%s; %s), so the response to another operation says nothing about scope", j.o.op.Name, response(f.again.sent), j.state(f.again.total))
		return
	}
	if f.second == nil {
		return
	}
	name, first, second, d := f.other.op.Name, f.good().sent, f.second.sent, f.second.total
	status := 0
	if second.x.Response != nil {
		status = second.x.Response.Status
	}
	answered := success(&second.x) && (second.replayed || first.resource != "" && second.resource == first.resource)
	switch {
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case is(d.number(), 1):
		known.operationApart = yes
		j.holds("%s under the used key took effect of its own", name)
	case !second.processed():
		j.unclear("%s under the used key was not processed: %s", name, response(second))
	case answered, success(&second.x) && d.told() && is(d.number(), 0) && !accepted(&second.x):
		known.operationApart = no
		basis := evidence.Established
		if !d.told() {
			basis = evidence.Inferred
		}
		j.broken("%s under the key of %s was answered with %s, and %s", name, j.o.op.Name, response(second),
			map[bool]string{true: "had no effect", false: "the first operation's result"}[d.told()])
		j.find(evidence.FindingKeyNotScopedOperation, "", basis, first, f.again.sent, second)
	case status == 409 || status == 422 || slices.Contains(f.other.contract.Mismatch, status):
		known.operationApart = no
		j.holds("%s under the used key was refused with %s%s: keys count across operations, and a client has to draw a new one for each", name, response(second), d.without())
	default:
		j.unclear("the response to %s, %s, does not tell whether it is that of the key", name, response(second))
	}
}
