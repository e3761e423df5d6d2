package probe

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// rewritten holds what was seen of a request that means the same in other
// bytes.
type rewritten struct {
	opening
	second *attempt
}

// sameMeaning sends a request, and the same JSON in another form under the same
// key.
func (x *exp) sameMeaning(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &rewritten{opening: *o}
	defer func() { f.w.conclude(1) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	req, err := x.render(f.w.v, plan.Change{Rewritten: true})
	if err != nil {
		return f, err
	}
	s, err := x.send(ctx, evidence.RoleRewritten, req, "")
	if err != nil {
		return f, err
	}
	f.second, err = x.lookFor(ctx, f.w, s, 1)
	return f, err
}

func (f *rewritten) judge(j *judgement) {
	if !j.begun(&f.opening) || f.second == nil {
		return
	}
	first, second := f.good().sent, f.second.sent
	d := j.inside(f.second.total, 1, first, second)
	j.e.Second = j.o.compare(first, second)
	switch {
	case d.exceeds(1) && j.o.facts.protects() == no:
		j.unclear("the request in other bytes took effect, as the same bytes do when they are sent again: this shows nothing about how they are written")
	case d.exceeds(1):
		j.broken("the same request in other bytes took effect as well: %s", count(cmp.Or(d.number(), d.outMost)))
		j.find(evidence.FindingSameMeaningExecuted, "", evidence.Established, first, second)
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case !second.processed():
		j.unclear("the request in other bytes was not processed: %s", response(second))
	case success(&second.x) && otherResource(first, second):
		j.broken("the same request in other bytes was answered with %s and a resource of its own%s", response(second), d.without())
		j.find(evidence.FindingSameMeaningExecuted, "", evidence.Inferred, first, second)
	case !d.told():
		j.unclear("the request in other bytes was answered with %s; no reader sees the state", response(second))
	case success(&second.x):
		j.holds("1 effect; white space and the order of members do not matter: the request in other bytes %s%s", answered(second), f.told())
	case second.serverError():
		j.broken("the same request in other bytes was answered with %s", response(second))
		j.error5xx(first, second)
	case j.o.op.Key == nil, names(second.x.Response, first.resource) && first.resource != "":
		j.holds("1 effect; the request in other bytes was refused as a duplicate is, with %s", response(second))
	case slices.Contains(j.o.contract.Mismatch, second.x.Response.Status):
		j.holds("1 effect; the request in other bytes was refused as a different request, with %s: bytes are compared, and a client that serialises its JSON again for a retry is refused", response(second))
	default:
		j.holds("1 effect; the request in other bytes was refused with %s, which is not the contract's response to another request, %v", response(second), j.o.contract.Mismatch)
	}
}

// told says what marks the response to the other bytes as that to a duplicate,
// if anything does.
func (f *rewritten) told() string {
	first, second := f.good().sent, f.second.sent
	switch {
	case second.replayed:
		return ", marked as a replay"
	case first.resource != "" && second.resource == first.resource:
		return ", and names the first's resource"
	}
	return ""
}

// corrections holds what was seen of a request that was refused as invalid and
// sent again, corrected, under its key.
type corrections struct {
	control       *opening
	first, second *attempt
}

func (x *exp) corrected(ctx context.Context) (shown, error) {
	f := &corrections{}
	var err error
	if f.control, err = x.control(ctx); err != nil || !f.control.sound(x.o) {
		return f, err
	}
	w, err := x.fresh(ctx)
	if err != nil {
		return f, err
	}
	defer func() { w.conclude(1) }()
	req, err := x.render(w.v, plan.Change{Invalid: true})
	if err != nil {
		return f, err
	}
	s, err := x.send(ctx, "invalid", req, "")
	if err != nil {
		return f, err
	}
	if f.first, err = x.lookFor(ctx, w, s, 0); err != nil || !x.o.r.dry() && !f.refused() {
		return f, err
	}
	if req, err = x.render(w.v, plan.Change{}); err != nil {
		return f, err
	}
	if s, err = x.send(ctx, evidence.RoleCorrected, req, ""); err != nil {
		return f, err
	}
	f.second, err = x.look(ctx, w, s)
	return f, err
}

// refused reports whether the invalid request was refused as such, without an
// effect.
func (f *corrections) refused() bool {
	r := f.first.x.Response
	return r != nil && f.first.processed() && r.Status/100 == 4 && f.first.settled && !f.first.total.exceeds(0)
}

func (f *corrections) judge(j *judgement) {
	if !j.begun(f.control) || f.first == nil {
		return
	}
	first := f.first.sent
	switch {
	case f.first.total.exceeds(0) && first.processed() && first.x.Response.Status/100 == 4:
		j.broken("the invalid request was refused with %s, and took effect", response(first))
		j.find(evidence.FindingRefusalExecuted, "", evidence.Established, first)
		return
	case !f.first.settled:
		j.unclear("%s", f.first.why)
		return
	case !f.refused():
		j.unclear("the invalid request was not refused as one: %s", response(first))
		return
	case f.second == nil:
		return
	}
	second, d := f.second.sent, f.second.total
	j.e.Second = j.o.compare(first, second)
	known := &j.o.facts
	switch {
	case d.exceeds(1):
		j.effects(d, 1, evidence.FindingDoubleEffectSequential, first, second)
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case !second.processed():
		j.unclear("the corrected request was not processed: %s", response(second))
	case !d.told():
		j.unclear("after %s, the corrected request was answered with %s; no reader sees the state", response(first), response(second))
	case success(&second.x) && is(d.number(), 0) && !second.done():
		j.unclear("the corrected request was accepted with %s, and no effect was seen", response(second))
	case success(&second.x) && is(d.number(), 0):
		known.unsafeRetry = true
		j.broken("the corrected request was answered with %s and had no effect", response(second))
		j.find(evidence.FindingLostEffect, "", evidence.Established, first, second)
	case success(&second.x):
		j.holds("after %s, the corrected request under the same key took effect, once", response(first))
	case is(d.number(), 1):
		j.broken("the corrected request was refused with %s, and took effect", response(second))
		j.find(evidence.FindingRefusalExecuted, "", evidence.Established, first, second)
	case second.serverError():
		j.broken("after %s, the corrected request was answered with %s", response(first), response(second))
		j.find(evidence.FindingBadKeyServerError, "", evidence.Established, first, second)
	case slices.Contains(j.o.contract.Mismatch, second.x.Response.Status) && !j.e.Second.Body:
		j.holds("after %s, the corrected request under the same key was refused as a different request, with %s: a correction needs a new key", response(first), response(second))
	case j.e.Second.Status && j.e.Second.Body:
		j.broken("the corrected request was answered with what the invalid one had got, %s, without being looked at", response(second))
		j.find(evidence.FindingRefusalSticks, "", evidence.Established, first, second)
	case j.o.inProgress(second):
		j.broken("after %s, the key is answered as in progress: %s", response(first), response(second))
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first, second)
	default:
		j.holds("after %s, the corrected request under the same key was refused with %s", response(first), response(second))
	}
}

// mixed holds what was seen of a request and its alteration that were sent at
// once under one key.
type mixed struct {
	control *opening
	width   int
	trials  []*trial
	why     string
}

func (x *exp) raceAltered(ctx context.Context) (shown, error) {
	f := &mixed{width: x.o.r.p.Race.Width}
	var err error
	if f.control, err = x.control(ctx); err != nil || !f.control.sound(x.o) {
		return f, err
	}
	trials := x.o.r.p.Race.Trials
	for range trials {
		if takes := f.width + x.o.stepsEach(); !x.o.r.dry() && x.o.r.send.Left() < takes {
			f.why = fmt.Sprintf("the budget has %s left, and a race takes %d", times(x.o.r.send.Left(), "send"), takes)
			break
		}
		w, err := x.freshTimes(ctx, map[bool]int{true: trials, false: 1}[x.o.r.dry()])
		if err != nil {
			return f, err
		}
		one, err := x.render(w.v, plan.Change{})
		if err != nil {
			return f, err
		}
		other, err := x.render(w.v, plan.Change{Altered: true})
		if err != nil {
			return f, err
		}
		if x.o.r.dry() {
			note := fmt.Sprintf("%d at once, %s", f.width, times(trials, "trial"))
			x.plan(evidence.RoleRace, one, "", (f.width+1)/2*trials, note)
			x.plan("race-altered", other, "", f.width/2*trials, note)
			return f, nil
		}
		var all []wire.Request
		for i := range f.width {
			all = append(all, []wire.Request{one, other}[i%2])
		}
		t, err := x.release(ctx, w, evidence.RoleRace, all)
		if err != nil {
			return f, err
		}
		f.trials = append(f.trials, t)
	}
	return f, nil
}

func (f *mixed) judge(j *judgement) {
	if !j.begun(f.control) || f.control != nil && f.control.first == nil {
		return
	}
	shown, doubled, other, why := 0, 0, 0, f.why
	for _, t := range f.trials {
		d := j.inside(t.end.total, 1, t.all...)
		overlapped := t.released && inFlight(t.all) >= 2
		var done []*sent
		for _, s := range t.all {
			if success(&s.x) {
				done = append(done, s)
			}
		}
		// Requests of one kind may double as well: that is the race's finding.
		kinds := 0
		for i := range 2 {
			if slices.ContainsFunc(done, func(s *sent) bool { return slices.Index(t.all, s)%2 == i && !s.replayed }) {
				kinds++
			}
		}
		switch {
		case d.exceeds(1):
			doubled++
			id, basis := evidence.FindingMismatchExecuted, evidence.Established
			if kinds < 2 {
				id = evidence.FindingDoubleEffectRace
			}
			j.find(id, "", basis, done...)
		case !t.end.settled:
			why = t.end.why
		case !overlapped:
			why = cmp.Or(t.reason, "no two of them were shown to be under way at the same time")
		case !d.told():
			why = j.state(d) + ": responses alone say nothing about effects"
		case len(done) == 0:
			why = fmt.Sprintf("none of %d requests succeeded", len(t.all))
		case is(d.number(), 0) && slices.ContainsFunc(done, (*sent).done):
			other++
			j.broken("a request was answered with success, and there is no effect")
			j.find(evidence.FindingLostEffect, "", evidence.Established, done...)
		case kinds == 2 && j.o.inPlace():
			why = "both the request and its alteration were answered with success, and one may have changed what the other made"
		case kinds == 2 && slices.ContainsFunc(done, func(s *sent) bool { return !accepted(&s.x) }):
			other++
			j.broken("1 effect, and both the request and its alteration were answered with success")
			j.find(evidence.FindingMismatchReplayedAsSame, "", evidence.Established, done...)
		default:
			shown++
		}
	}
	switch {
	case doubled > 0:
		j.broken("a request and its alteration, sent at once under one key, had more than one effect in %d of %s", doubled, times(len(f.trials), "trial"))
	case other > 0:
	case shown == 0:
		j.unclear("no trial shows anything: %s", cmp.Or(why, "none was made"))
	default:
		j.holds("1 effect of a request and its alteration under one key in %s in which they overlapped; the other one was refused", each(shown, "trial"))
	}
}
