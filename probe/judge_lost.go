package probe

import (
	"fmt"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

func (f *lost) judge(j *judgement) {
	if !j.begun(f.control) {
		return
	}
	for i, t := range f.tries {
		j.lost(t, i == len(f.tries)-1)
	}
}

// lost judges the retry of a request that was cut off. Of attempts that left no
// trace, the last one says so.
func (j *judgement) lost(t *lostTry, last bool) {
	switch {
	case t.second == nil && t.whole:
		return // it was tried again
	case t.second == nil:
		j.unclear("the first attempt did not get through: %s", response(t.first))
		return
	}
	f, first, second, d := &j.o.facts, t.first, t.second.sent, t.second.total
	id := evidence.FindingDoubleEffectLostResponse
	if t.whole {
		// It is a duplicate like any other, and shows nothing of lost responses.
		id = evidence.FindingDoubleEffectSequential
		defer func(safe bool, n int) {
			f.safeRetry = safe
			for i := range j.held[n:] {
				j.held[n+i] = "the whole response was there before the connection could be cut, so none was lost: " + j.held[n+i]
			}
		}(f.safeRetry, len(j.held))
	}
	if !j.effects(d, 1, id, first, second) {
		f.unsafeRetry = true
		f.lostAfter = f.lostAfter || t.begun || t.ran.exceeds(0)
		return
	}
	limit := j.o.r.p.Timing.SettleLimit
	switch most := d.number(); {
	case !t.second.settled:
		j.unclear("%s", t.second.why)
	case !second.processed():
		j.unclear("the retry was not processed: %s", response(second))
	case !d.told():
		j.unclear("%s: the retry's response, %s, says nothing about effects", j.state(d), response(second))
	case is(most, 0) && accepted(&second.x) && f.async && second.fate == fateRunning && j.o.latency*5 < limit:
		f.unsafeRetry = true
		j.broken("the retry was accepted with %s, and its status still says that it is running after %v, although others took %v", response(second), limit, j.o.latency.Round(time.Millisecond))
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first, second)
	case is(most, 0) && accepted(&second.x) && f.async && second.fate != fateDone:
		j.unclear("the retry was accepted with %s, and within %v no effect was seen: it is slower than that, or lost", response(second), limit)
	case is(most, 0) && second.done():
		f.unsafeRetry = j.lostEffect(second, fmt.Sprintf("the retry was answered with %s, and there is no effect", response(second)), first, second) || f.unsafeRetry
	case is(most, 0) && t.beside != nil && !success(&t.beside.x):
		j.unclear("the retry was refused with %s, and so was a fresh request: %s", response(second), response(t.beside.sent))
	case j.o.inProgress(second):
		f.unsafeRetry = true
		j.broken("%s is still answered as in progress (%s) after %v, with %s", j.key(), response(second), limit, count(most))
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first, second)
	case advice(&second.x) == "after-resolution":
		f.safeRetry = true
		j.holds("%s; the retry is told that the outcome is not known, and to wait for it", count(most))
	case second.serverError():
		f.unsafeRetry = true
		j.broken("the retry was answered with %s, with %s", response(second), count(most))
		j.error5xx(first, second)
	case is(most, 0):
		f.unsafeRetry = true
		j.broken("the retry was refused with %s %s, and there is no effect", response(second), j.resent(first, second))
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first, second)
	case !t.traced():
		if last {
			j.unclear("the first attempt left no trace: it is not known whether it was processed at all")
		}
	default:
		f.safeRetry = true
		j.holds("1 effect; the retry was answered with %s", response(second))
	}
}

// resent says how often a request had been sent again when it got its final
// response.
func (j *judgement) resent(first, last *sent) string {
	n := 0
	for _, s := range j.e.Sends {
		if s.Role == evidence.RoleDuplicate && s.N > first.n && s.N <= last.n {
			n++
		}
	}
	if n > 1 {
		return fmt.Sprintf("the last of the %d times it was sent again", n)
	}
	return "the one time it was sent again"
}

func (f *failed) judge(j *judgement) {
	if !j.begun(f.control) {
		return
	}
	if f.why != "" {
		j.unclear("%s", f.why)
	}
	switch t := f.off; {
	case t == nil:
	case t.second == nil && t.ran.exceeds(0):
		j.broken("a request that was cut off before its last byte had %s", count(t.ran.number()))
		j.find(evidence.FindingTruncatedExecuted, "", evidence.Established, t.first)
	case t.second == nil:
		j.unclear("the first attempt did not get through: %s", response(t.first))
	default:
		// It cannot have been executed, so only its retry was tested. That it works
		// says nothing about a first attempt that fails by itself.
		t.begun = true
		safe := j.o.facts.safeRetry
		all := []*[]string{&j.held, &j.open, &j.bad}
		from := []int{len(j.held), len(j.open), len(j.bad)}
		j.lost(t, true)
		j.o.facts.safeRetry = safe
		off := "the first attempt was cut off before its last byte, so it did not run: "
		if t.second.total.exceeds(1) {
			off = "the first attempt was cut off before its last byte: " // it may have, all the same
		}
		for i, list := range all {
			for k := range (*list)[from[i]:] {
				(*list)[from[i]+k] = off + (*list)[from[i]+k]
			}
		}
	}
	if f.first == nil {
		return
	}
	if f.second == nil {
		j.unclear("the first attempt did not fail with a response: %s", response(f.first.sent))
		return
	}
	first, second := f.first.sent, f.second.sent
	d, ran := j.inside(f.second.total, 1, first, second), f.first.own
	j.e.Second = j.o.compare(first, second)
	known := &j.o.facts
	records := j.o.contract.RecordsErrors != nil && *j.o.contract.RecordsErrors
	changed := second.succeeded() || first.status() != second.status() || otherResource(first, second)
	switch {
	case d.exceeds(1):
		known.unsafeRetry, known.failed = true, true
		j.broken("the first attempt was answered with %s and had %s; the retry had another", response(first), count(ran.number()))
		j.effects(d, 1, evidence.FindingDoubleEffectSequential, first, second)
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case !second.processed():
		j.unclear("the retry was not processed: %s", response(second))
	case !j.o.sighted():
		j.unclear("no reader has seen an effect; the first was answered with %s, the retry with %s", response(first), response(second))
	case accepted(&second.x) && second.fate != fateDone && is(d.number(), 0):
		j.unclear("the retry was accepted with %s, and no effect was seen within %v", response(second), j.o.r.p.Timing.SettleLimit)
	case success(&second.x) && is(d.number(), 0):
		known.unsafeRetry = j.lostEffect(second, fmt.Sprintf("the retry was answered with %s, and there is no effect", response(second)), first, second) || known.unsafeRetry
	case f.beside != nil && !success(&f.beside.x):
		j.unclear("the retry was refused with %s, and so was a fresh request: %s", response(second), response(f.beside.sent))
	case j.o.inProgress(second):
		known.unsafeRetry = true
		j.broken("after a failure, %s, %s is still answered as in progress (%s) after %v", response(first), j.key(), response(second), j.o.r.p.Timing.SettleLimit)
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first, second)
	case changed && records:
		known.unsafeRetry = true
		j.broken("the first attempt failed with %s, which the contract says is recorded; the retry got %s", response(first), response(second))
		j.find(evidence.FindingFailureNotRepeatable, "", evidence.Established, first, second)
	case is(ran.number(), 1) && !success(&second.x):
		j.holds("the first attempt was answered with %s and had its effect; the retry got %s and had none", response(first), response(second))
		known.safeRetry = true
	default:
		known.safeRetry = true
		j.holds("the first attempt failed with %s, the retry got %s: %s in all", response(first), response(second), count(d.number()))
	}
}

func (f *redelivered) judge(j *judgement) {
	if !j.opened(&f.opening) {
		return
	}
	first := f.good().sent
	if f.second != nil {
		j.repeated(first, f.second, 1, evidence.FindingDoubleEffectSequential)
	}
	if f.anew != nil && !f.second.total.exceeds(1) {
		j.repeated(first, f.anew, 1, evidence.FindingDoubleEffectSequential)
	}
	if s := f.stale; s != nil {
		j.single(s, func() {
			switch d := s.total; {
			case d.exceeds(0):
				j.broken("an event that was signed %v ago was answered with %s and took effect", f.staleBy, response(s.sent))
				j.find(evidence.FindingWebhookStaleAccepted, "", evidence.Established, s.sent)
			case success(&s.x) && !d.told():
				j.unclear("an event that was signed %v ago was answered with %s, and no reader sees the state", f.staleBy, response(s.sent))
			case s.serverError():
				j.unclear("an event that was signed %v ago was answered with %s, which is no refusal%s", f.staleBy, response(s.sent), d.without())
			default:
				j.holds("an event that was signed %v ago was answered with %s%s", f.staleBy, response(s.sent), d.without())
			}
		})
	}
	if s := f.forged; s != nil {
		j.single(s, func() {
			switch d := s.total; {
			case d.exceeds(0):
				j.broken("an event that was altered after it was signed was answered with %s and took effect", response(s.sent))
				j.find(evidence.FindingWebhookAlteredAccepted, "", evidence.Established, s.sent)
			case success(&s.x):
				j.broken("an event that was altered after it was signed was answered with %s, and no effect was seen", response(s.sent))
				j.find(evidence.FindingWebhookAlteredAccepted, evidence.P1, evidence.Inferred, s.sent)
			case s.serverError():
				j.unclear("an event that was altered after it was signed was answered with %s, which is no refusal%s", response(s.sent), d.without())
			default:
				j.holds("an event that was altered after it was signed was refused with %s", response(s.sent))
			}
		})
	}
}
