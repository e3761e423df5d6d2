package probe

import (
	"cmp"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

func (f *races) judge(j *judgement) {
	if !j.begun(f.control) || f.control != nil && f.control.first == nil {
		return
	}
	r := &evidence.Race{Width: f.width, Bound: 1}
	j.e.Race = r
	why := f.why
	for _, t := range f.trials {
		why = cmp.Or(j.trial(t, r), why)
		j.mechanisms(t.signs, t.end)
	}
	f.sum(j)
	r.Bound = evidence.RateBound(r.Doubled, r.Overlapped)
	j.o.facts.race = r
	switch {
	case r.Doubled > 0:
		j.broken("more than one effect in %d of %s", r.Doubled, times(r.Trials, "trial"))
	case r.Lost > 0:
		j.broken("success without an effect in %d of %s", r.Lost, times(r.Trials, "trial"))
	case r.Overlapped == 0:
		j.unclear("no trial shows anything: %s", cmp.Or(why, "the responses came one after the other"))
	case len(j.bad) == 0 && len(j.open) == 0:
		j.holds("1 effect in %s of %d requests at once in which they overlapped; that leaves open a rate of doubles of up to %s", each(r.Overlapped, "trial"), f.width, evidence.Percent(r.Bound))
	}
}

// sum says in one phrase how many effects the trials had, if they differ.
func (f *races) sum(j *judgement) {
	var low, high *trial
	for _, t := range f.trials {
		d := t.end.total
		switch {
		case !more(d.most, 1) || d.apart(1):
			continue
		case low != nil && low.end.total.by != d.by:
			return
		}
		if low == nil || d.most.Cmp(low.end.total.most) < 0 {
			low = t
		}
		if high == nil || d.most.Cmp(high.end.total.most) > 0 {
			high = t
		}
	}
	if low == nil || low.end.total.most.Cmp(high.end.total.most) == 0 {
		return
	}
	by := low.end.total.by
	all := []string{excess(low.end.total.most.RatString()+" to "+count(high.end.total.most), by, 1)}
	one := func(s string) bool {
		return slices.ContainsFunc(f.trials, func(t *trial) bool { return s == excess(count(t.end.total.most), by, 1) })
	}
	j.bad = append(all, slices.DeleteFunc(j.bad, one)...)
}

// each returns "each of" for n of something, or "the one" for a single one.
func each(n int, what string) string {
	if n == 1 {
		return "the one " + what
	}
	return "each of " + times(n, what)
}

// trial judges one race. A trial counts as one in which requests overlapped if
// at least two of those that were under way together could have had the effect,
// one succeeded, and a reader that sees effects was read. why says why it shows
// nothing.
func (j *judgement) trial(t *trial, r *evidence.Race) (why string) {
	r.Trials++
	r.Protocol, r.SpreadUS = t.protocol, max(r.SpreadUS, t.spread.Microseconds())
	var processed, able, done, errors []*sent
	for _, s := range t.all {
		if tooMany(s) {
			j.o.facts.limited = true
		}
		if s.x.Response == nil || turnedAway(&s.x) {
			continue
		}
		processed = append(processed, s)
		switch {
		case success(&s.x):
			done = append(done, s)
		case s.serverError():
			errors = append(errors, s)
		}
		if !barred(s) {
			able = append(able, s)
		}
	}
	r.Delivered += len(processed)
	if n := t.end.total.number(); n != nil && n.Cmp(big.NewRat(int64(len(done)), 1)) < 0 {
		j.o.facts.raceSome = true
	}
	if len(processed) == 0 {
		return cmp.Or(t.reason, fmt.Sprintf("none of %d requests was processed", len(t.all)))
	}
	if out := len(processed) - len(able); out > 0 && len(able) < 2 {
		t.reason = cmp.Or(t.reason, fmt.Sprintf("%d of %d requests were not let in, with 401, 403 or 407", out, len(t.all)))
	}
	overlapped := t.released && inFlight(able) >= 2
	d := t.end.total
	id := evidence.FindingDoubleEffectRace
	if !overlapped {
		id = evidence.FindingDoubleEffectSequential
	}
	if more(d.most, 1) {
		r.Doubled++
		if overlapped {
			r.Overlapped++
		}
	}
	if !j.effects(d, 1, id, processed...) {
		return ""
	}
	switch {
	case !t.end.settled:
		j.unclear("%s", t.end.why)
		return t.end.why
	case !d.told():
		var ids []string
		for _, s := range done {
			if s.resource != "" && !slices.Contains(ids, s.resource) {
				ids = append(ids, s.resource)
			}
		}
		if len(ids) > 1 && overlapped {
			j.broken("requests of a race were answered with %d different resources; no reader tells how many there are", len(ids))
			j.find(evidence.FindingDoubleEffectRace, "", evidence.Inferred, processed...)
		}
		return j.state(d) + ": responses alone say nothing about effects"
	case slices.ContainsFunc(done, (*sent).done) && (less(d.least, 1) || !d.state && less(d.outLeast, 1)):
		i := slices.IndexFunc(done, func(s *sent) bool { return s.done() && (s.resource != "" || !j.o.facts.names) })
		if i < 0 {
			return "requests were answered with success, and no effect was seen; unlike others they name no resource, so their bodies may be refusals"
		}
		r.Lost++
		j.find(evidence.FindingLostEffect, "", evidence.Established, processed...)
		return ""
	case len(done) == 0 && is(d.number(), 0):
		return fmt.Sprintf("none of %d requests succeeded", len(t.all))
	case is(d.number(), 0):
		return "the requests were accepted, and no effect was seen"
	case !overlapped:
		return cmp.Or(t.reason, fmt.Sprintf("of %[2]d requests %[1]d got through, and no two of them were shown to be under way at the same time", len(processed), len(t.all)))
	}
	r.Overlapped++
	if len(errors) > 0 && len(done) > 0 {
		j.broken("1 effect, and %s of a race answered with a server error", times(len(errors), "request"))
		j.error5xx(errors...)
	}
	var first *sent
	for _, s := range done {
		if s.resource == "" || accepted(&s.x) {
			continue
		}
		if first == nil {
			first = s
		} else if s.resource != first.resource {
			j.broken("1 effect, and responses that name different resources")
			j.find(evidence.FindingReplayDiffers, "", evidence.Established, first, s)
			break
		}
	}
	return ""
}

func (f *meanwhile) judge(j *judgement) {
	if !j.begun(f.control) || f.end == nil {
		return
	}
	first, d, known := f.first, f.end.total, &j.o.facts
	last := f.retries[len(f.retries)-1]
	// The response that counts is that of a retry while the first was running.
	second := last
	if i := slices.IndexFunc(f.retries, func(s *sent) bool { return inFlight([]*sent{first, s}) == 2 }); i >= 0 {
		second = f.retries[i]
	}
	running := f.running()
	id := evidence.FindingInFlightExecuted
	if !running {
		id = evidence.FindingDoubleEffectSequential
	}
	all := append([]*sent{first}, f.retries...)
	if !success(&first.x) && success(&second.x) && !second.replayed {
		first, second = second, first // which of them won does not matter
	}
	j.e.Second = j.o.compare(first, second)
	if !j.effects(d, 1, id, all...) {
		if running {
			known.inProgress, known.unsafeRetry = no, true
			if len(f.retries) > 1 && (j.o.toldToWait(f.retries[0]) || f.retries[0].processed() && !success(&f.retries[0].x)) {
				known.lapsed = true
				j.broken("a retry after %v was answered with %s, one after %v with %s", f.after(0), response(f.retries[0]), f.after(len(f.retries)-1), response(last))
			}
		}
		return
	}
	if tooMany(second) {
		known.limited = true
	}
	switch {
	case !f.end.settled:
		j.unclear("%s", f.end.why)
	case !success(&first.x):
		j.unclear("the first request did not succeed: %s; %s", response(first), j.state(d))
	case turnedAway(&second.x):
		j.unclear("the retry was not processed: %s", response(second))
	case second.x.Response == nil:
		j.unclear("the retry has no response: %s", response(second))
	case barred(second):
		j.unclear("the retry was not let in: %s", response(second))
	case !running:
		j.unclear("the first was never seen running once the retry was out: it took %v", f.takes.Round(time.Microsecond))
	case !d.told():
		j.byIDs(evidence.FindingInFlightExecuted, d, first, second)
	case is(d.number(), 0) && !first.done():
		j.unclear("the first was accepted with %s, and no effect was seen", response(first))
	case is(d.number(), 0):
		j.lostEffect(first, fmt.Sprintf("the first was answered with %s and had no effect", response(first)), first, second)
	default:
		j.duringFirst(first, second, f.together)
	}
}

// barred reports whether a request was refused because of its sender.
func barred(s *sent) bool {
	switch s.status() {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return true
	}
	return false
}

// after is how long after the first request a retry was sent.
func (f *meanwhile) after(i int) time.Duration {
	return f.retries[i].x.Timing.Start.Sub(f.first.x.Timing.Start).Round(time.Millisecond)
}

// duringFirst judges the response to a duplicate of a running request that had
// no effect of its own. Of two that were released together neither is a retry.
func (j *judgement) duringFirst(first, second *sent, together bool) {
	f := &j.o.facts
	retry := "the retry during the first"
	if together {
		retry = "the second of two at once"
	}
	status, s := second.x.Response.Status, j.e.Second
	invites := advice(&second.x) == "new-key" || advice(&second.x) == "no"
	switch {
	case s.Class == evidence.RefusedWithReference,
		success(&second.x) && (!accepted(&second.x) || f.async) && s.Class == evidence.SameResult && (s.Resource || second.replayed):
		f.inProgress = yes
		j.holds("1 effect; %s got %s", retry, map[bool]string{true: "the first's result", false: "a reference to the first's result"}[s.Class == evidence.SameResult])
	case success(&second.x) && s.Class == evidence.SameResult:
		j.holds("1 effect; %s was answered with %s, as the first was; neither names a resource", retry, response(second))
	case j.o.toldToWait(second):
		f.inProgress = yes
		j.holds("1 effect; %s was told that it is in progress: %s", retry, response(second))
	case success(&second.x) && (accepted(&second.x) || !otherResource(first, second)):
		j.holds("1 effect; %s was answered with %s, and no resource is named in both that could be compared", retry, response(second))
	case success(&second.x):
		f.inProgress = no
		j.broken("1 effect, and %s got another result: %s", retry, response(second))
		j.find(evidence.FindingReplayDiffers, "", evidence.Established, first, second)
	case second.serverError():
		f.inProgress = no
		j.broken("1 effect, and %s got %s", retry, response(second))
		j.error5xx(first, second)
	case j.o.op.Key == nil, conditional(second):
		j.holds("1 effect; %s was refused with %s", retry, response(second))
	case status == http.StatusConflict && !invites:
		if f.duplicate != nil && f.duplicate.Class == evidence.SameResult {
			// A later duplicate gets the result, so this refusal was about the moment.
			f.inProgress = yes
			j.holds("1 effect; %s was refused with %s, where a later one gets the result", retry, response(second))
			return
		}
		j.holds("1 effect; %s was refused with %s: whether because it is in progress, or because it is a duplicate, the response does not say", retry, response(second))
	default:
		f.inProgress, f.unsafeRetry = no, true
		j.broken("1 effect, and %s got %s%s, which reads as final", retry, response(second), map[bool]string{true: " with the advice to take a new key or none"}[invites])
		j.find(evidence.FindingInFlightErrorInvitesNewKey, "", evidence.Inferred, first, second)
	}
}
