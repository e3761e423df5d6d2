package probe

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// judgement is the outcome of an experiment, derived from what it has shown.
type judgement struct {
	o    *operation
	e    *evidence.Experiment
	held []string
	open []string // why it is inconclusive
	bad  []string
	none []string // why it means nothing here
	// of names the request of the opening that is judged, if it is not the first
	// one.
	of string
}

// What the experiment showed. Broken outweighs unclear, and unclear outweighs
// held.
func (j *judgement) holds(format string, args ...any)   { add(&j.held, format, args...) }
func (j *judgement) unclear(format string, args ...any) { add(&j.open, format, args...) }
func (j *judgement) broken(format string, args ...any)  { add(&j.bad, format, args...) }
func (j *judgement) void(format string, args ...any)    { add(&j.none, format, args...) }

func add(list *[]string, format string, args ...any) {
	if s := fmt.Sprintf(format, args...); s != "" && !slices.Contains(*list, s) {
		*list = append(*list, s)
	}
}

func (j *judgement) outcome() (evidence.Outcome, string) {
	for _, c := range []struct {
		outcome evidence.Outcome
		why     []string
	}{{evidence.Broken, j.bad}, {evidence.Inconclusive, j.open}, {evidence.NotApplicable, j.none}, {evidence.Held, j.held}} {
		if len(c.why) > 0 {
			return c.outcome, strings.Join(c.why, "; ")
		}
	}
	return evidence.Inconclusive, "nothing was shown"
}

// find adds a finding of the catalogue, for what was shown in this experiment.
func (j *judgement) find(id evidence.FindingID, priority evidence.Priority, basis evidence.Basis, sends ...*sent) {
	entry, ok := evidence.Lookup(id)
	if !ok {
		panic("probe: no finding " + id) // a test goes through all of them
	}
	var ns []int
	for _, s := range sends {
		if s != nil && s.n > 0 {
			ns = append(ns, s.n)
		}
	}
	j.o.find(entry.FindingOn(cmp.Or(basis, entry.Basis), cmp.Or(priority, entry.Priority), j.e.Name, ns...))
}

// find adds a finding, or merges it into the one that exists: the worse priority and
// the better basis stay.
func (o *operation) find(f evidence.Finding) {
	i := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == f.ID })
	if i < 0 {
		o.ev.Findings = append(o.ev.Findings, f)
		return
	}
	g := &o.ev.Findings[i]
	if f.Basis == evidence.Established && g.Basis != f.Basis {
		f.Sends, f.Priority = append(f.Sends, g.Sends...), min(f.Priority, g.Priority)
		*g = f // its words are those of what was seen
		return
	}
	g.Priority = min(g.Priority, f.Priority)
	for _, n := range f.Sends {
		if !slices.Contains(g.Sends, n) {
			g.Sends = append(g.Sends, n)
		}
	}
}

// doubled is the finding for a request that took effect again.
func (j *judgement) doubled(id evidence.FindingID) evidence.FindingID {
	if j.o.op.Signature != nil && id == evidence.FindingDoubleEffectSequential {
		return evidence.FindingWebhookRedeliveryDoubles
	}
	return id
}

// key names what marks a request, for operations with and without a key.
func (j *judgement) key() string {
	if j.o.op.Key == nil {
		return "the request"
	}
	return "the key"
}

// state says what the readers saw, or why they saw nothing.
func (j *judgement) state(d delta) string {
	switch {
	case len(j.o.readers) == 0:
		return "no reader sees the state"
	case !d.looked:
		return "no reader could be read"
	case !d.told():
		return "the readers were read, and none has seen an effect so far"
	}
	return d.String()
}

// blind says why no reader saw the effect of a request.
func (j *judgement) blind(w *watch) string {
	var list []string
	for i, rd := range j.o.readers {
		switch {
		case w.before[i].err != nil:
			list = append(list, rd.name+": it could not be used before the request: "+w.before[i].err.Error())
		case w.after[i].err != nil:
			list = append(list, rd.name+": "+w.after[i].err.Error())
		default:
			list = append(list, rd.name+": "+count(rd.effects(w.before[i], w.after[i])))
		}
	}
	return strings.Join(list, ", ")
}

// opener returns the name of an opening's request in sentences.
func (j *judgement) opener() string { return cmp.Or(j.of, "the first request") }

// opened judges how an experiment began. It reports whether there is more to
// judge. Without an opening of its own, an earlier one counts.
func (j *judgement) opened(o *opening) bool {
	before := len(j.held)
	ok := j.first(o)
	if !ok && j.e.Name != string(plan.Duplicate) {
		// Only an immediate retry held. What the experiment is about was not tried.
		j.open, j.held = append(j.open, j.held[before:]...), j.held[:before]
	}
	return ok
}

func (j *judgement) first(o *opening) bool {
	if o == nil {
		return true
	}
	if o.first == nil {
		return false
	}
	if o.retry != nil {
		return j.reopened(o)
	}
	a := o.first
	d := a.total
	switch {
	case turnedAway(&a.x) && !d.exceeds(0):
		j.unclear("%s was not processed: %s; %s", j.opener(), response(a.sent), j.state(d))
	case o.alike:
		j.unclear("%s was refused with %s, and not sent again: in an earlier experiment the same request again and a fresh one were refused as well; %s", j.opener(), response(a.sent), j.state(d))
	case !a.succeeded():
		j.unclear("%s did not succeed: %s; %s", j.opener(), response(a.sent), j.state(d))
	case len(j.o.readers) == 0:
		return true
	case !a.settled:
		j.unclear("%s", a.why)
	case accepted(&a.x) && a.fate != fateDone && (!d.told() || !d.exceeds(0)):
		j.accepted(a)
	case !d.told():
		j.unclear("no reader sees the effect of a fresh request (%s), so none could see a second one", j.blind(o.w))
	case less(d.least, 1) || !d.state && less(d.outLeast, 1):
		j.lostEffect(a.sent, fmt.Sprintf("%s was answered with %s and had %s, although reader %s has seen the effects of others", j.opener(), response(a.sent), count(cmp.Or(d.least, d.outLeast)), j.o.seenBy()), a.sent)
	case d.state && less(d.outLeast, 1):
		j.o.facts.outsideBad = true
		j.broken("%s took effect, but the outside was not told of it, although it was told of others", j.opener())
		j.find(evidence.FindingLostEffect, "", evidence.Established, a.sent)
	case d.exceeds(1):
		most, by := d.most, d.by
		if !more(most, 1) {
			most, by = d.outMost, d.outBy
		}
		j.unclear("a single fresh request had %s by reader %s: it reads more than the effects of this request", count(most), by)
	default:
		return true
	}
	return false
}

// begun is like opened, for experiments that are not about the first request: a
// fault of it is a finding, and leaves the experiment inconclusive.
func (j *judgement) begun(o *opening) bool {
	ok := j.opened(o)
	if !ok {
		j.open, j.bad = append(j.open, j.bad...), nil
	}
	return ok
}

// accepted says what is known about a request that was accepted and whose
// effect was not seen.
func (j *judgement) accepted(a *attempt) {
	limit := j.o.op.Poll.Limit
	longer := "timing.settle_limit"
	if limit != j.o.r.p.Timing.SettleLimit {
		longer = "poll.limit"
	}
	switch a.fate {
	case fateRunning:
		j.unclear("%s was accepted with %s, and after %v its status still says that it is running, with no effect seen: it is slower than that, or never ends. A longer %s would tell", j.opener(), response(a.sent), limit, longer)
	case fateFailed:
		j.unclear("the request was accepted with %s; %s", response(a.sent), j.state(a.total))
	default:
		why := "No status that can be read tells which"
		if a.untold != "" {
			why = "No status tells which, because " + a.untold
		}
		j.unclear("%s was accepted with %s, and within %v no effect was seen: it is slower than that, or lost. %s; a longer %s may", j.opener(), response(a.sent), max(limit, j.o.r.p.Timing.SettleLimit), why, longer)
	}
}

// reopened judges an experiment whose first request did not succeed, and was
// sent again.
func (j *judgement) reopened(o *opening) bool {
	first, second := o.first, o.retry
	d, f := second.total, &j.o.facts
	id := evidence.FindingDoubleEffectSequential
	if first.x.Response == nil {
		id = evidence.FindingDoubleEffectLostResponse
	}
	ran := "no effect"
	switch {
	case !first.total.told():
		ran = j.state(first.total)
	case first.total.exceeds(0):
		ran = first.total.String()
	}
	taken := first.status()/100 == 4 && first.total.exceeds(0)
	if taken {
		j.find(evidence.FindingRefusalExecuted, "", evidence.Established, first.sent)
	}
	if d.exceeds(1) {
		j.broken("%s %s (%s), and the same request again %s", j.opener(), answered(first.sent), ran, answered(second.sent))
		f.unsafeRetry, f.failed = true, f.failed || first.x.Response != nil
		j.effects(d, 1, id, first.sent, second.sent)
		return false
	}
	switch {
	case !second.settled:
		j.unclear("%s", second.why)
	case !second.processed():
		j.unclear("%s %s (%s), and the same request again was not processed: %s", j.opener(), answered(first.sent), ran, response(second.sent))
	case accepted(&second.x) && second.fate != fateDone && !d.exceeds(0):
		j.accepted(second)
	case success(&second.x) && d.told() && !d.exceeds(0):
		f.unsafeRetry = j.lostEffect(second.sent, fmt.Sprintf("%s %s, the same request again %s, and there is no effect, although reader %s has seen those of others", j.opener(), answered(first.sent), answered(second.sent), j.o.seenBy()), first.sent, second.sent) || f.unsafeRetry
	case success(&second.x) && !d.told() && d.looked && o.control != nil && !success(&o.control.x):
		f.unsafeRetry = true
		j.broken("%s %s, the same request again %s, and no reader saw an effect. That the readers could see one is assumed: no other request succeeded either", j.opener(), answered(first.sent), answered(second.sent))
		j.find(evidence.FindingLostEffect, "", evidence.Inferred, first.sent, second.sent)
	case success(&second.x) && !d.told() && len(j.o.readers) > 0:
		j.unclear("no reader sees the effect of a fresh request (%s), so none could see a second one", j.blind(o.w))
	case taken && second.succeeded() && j.e.Name != string(plan.Duplicate):
		return true // it is found, and says nothing of what this experiment asks
	case taken:
		j.broken("%s was refused with %s, and took effect; the same request again %s and had no effect of its own", j.opener(), response(first.sent), answered(second.sent))
		return second.succeeded()
	case second.succeeded():
		if first.total.exceeds(0) {
			j.holds("%s %s although it took effect, and the same request again %s: 1 effect", j.opener(), answered(first.sent), answered(second.sent))
		} else {
			j.holds("%s %s, and the same request again %s", j.opener(), answered(first.sent), answered(second.sent))
		}
		return true
	case refused(second) && o.control != nil && !success(&o.control.x):
		j.unclear("%s %s, the same request again was refused with %s, and so was a fresh one: %s", j.opener(), answered(first.sent), response(second.sent), response(o.control.sent))
	case j.o.inProgress(second.sent):
		f.unsafeRetry = true
		j.broken("after %s, %s is still answered as in progress (%s) after %v; %s", response(first.sent), j.key(), response(second.sent), j.o.r.p.Timing.SettleLimit, j.state(d))
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first.sent, second.sent)
	case d.exceeds(0) && first.total.exceeds(0):
		f.safeRetry = true
		j.holds("%s %s although it took effect; the same request again %s and had no effect of its own", j.opener(), answered(first.sent), answered(second.sent))
	case d.told() && !d.exceeds(0) && !second.serverError() && (first.x.Response == nil || first.serverError()):
		f.unsafeRetry = true
		j.broken("%s %s and had no effect; the same request again was refused with %s", j.opener(), answered(first.sent), response(second.sent))
		j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first.sent, second.sent)
	default:
		j.unclear("%s did not succeed, nor did the same request again: %s, then %s; %s", j.opener(), response(first.sent), response(second.sent), j.state(d))
	}
	return false
}

// excess says that a reader counted more effects than there must be.
func excess(n, by string, expect int64) string {
	return fmt.Sprintf("%s by reader %s instead of %d", n, by, expect)
}

// effects judges by the state whether requests that are one had one effect. It
// reports whether the target's own state shows no more than that; where it
// cannot tell, what is outside counts. What doubled is named by its reader.
func (j *judgement) effects(d delta, expect int64, id evidence.FindingID, sends ...*sent) (once bool) {
	outside := more(d.outMost, expect)
	if outside {
		j.o.facts.outsideBad = true
	}
	switch {
	case d.apart(expect):
		j.broken("the readers disagree: %s; each must see %d", d, expect)
		j.find(evidence.FindingEffectsDisagree, "", evidence.Established, sends...)
		return false
	case more(d.most, expect):
		j.broken("%s", excess(count(d.most), d.by, expect))
		j.find(j.doubled(id), "", evidence.Established, sends...)
		return false
	case outside:
		j.broken("%s outside by reader %s instead of %d", count(d.outMost), d.outBy, expect)
		if d.state {
			j.broken("the target's own state has no more than there must be")
		}
		basis := evidence.Established
		if d.sameID {
			basis = evidence.Inferred // the receiver may drop the second
		}
		j.find(evidence.FindingOutsideEffectDoubled, "", basis, sends...)
		return d.state
	}
	if d.state && d.outside && expect == 1 && is(d.most, 1) && is(d.outLeast, 1) {
		j.o.facts.outsideOK++
	}
	return true
}

// inside judges what was repeated only outside the target, and returns what the
// readers saw of the target's own state.
func (j *judgement) inside(d delta, expect int64, sends ...*sent) delta {
	if !d.state || more(d.most, expect) || !more(d.outMost, expect) {
		return d
	}
	j.effects(d, expect, evidence.FindingDoubleEffectSequential, sends...)
	d.outside, d.outMost, d.outLeast, d.outBy, d.sameID = false, nil, nil, "", false
	d.all = slices.DeleteFunc(slices.Clone(d.all), func(r rise) bool { return r.outside })
	return d
}

func (f *again) judge(j *judgement) {
	if !j.opened(&f.opening) {
		return
	}
	if f.newer != nil {
		j.of = "the newer request"
		sound := j.opened(f.newer)
		if j.of = ""; !sound {
			return
		}
	}
	if f.why != "" {
		j.unclear("%s", f.why)
	}
	if f.second == nil {
		return
	}
	first, known := f.good(), &j.o.facts
	known.limited = known.limited || f.limited
	onceBefore := known.once && !known.doubled
	bad := len(j.bad)
	j.repeated(first.sent, f.second, f.expect, evidence.FindingDoubleEffectSequential)
	f.further(j, bad)
	j.mechanisms(f.signs, f.second)
	twice := more(f.second.total.most, f.expect)
	if twice && f.late && onceBefore {
		known.late = true
	}
	for _, a := range f.more {
		if a.settled && a.processed() && success(&a.x) && a.own.state && !a.own.exceeds(0) {
			known.sometimes = true
			j.broken("a further duplicate, answered with %s, had no effect of its own", response(a.sent))
		}
	}
	if twice && known.limited {
		j.find(evidence.FindingRateLimitIsNotIdempotency, "", evidence.Established, first.sent, f.second.sent)
	}
	f.trail.judge(j)
}

// further adds the result of the duplicates after the second one, if that
// doubled, to the reason at j.bad[at].
func (f *again) further(j *judgement, at int) {
	d := f.second.total
	if len(f.more) == 0 || len(j.bad) <= at || d.apart(f.expect) {
		return
	}
	id, by := j.doubled(evidence.FindingDoubleEffectSequential), d.by
	if !more(d.most, f.expect) {
		id, by = evidence.FindingOutsideEffectDoubled, d.outBy
	}
	last := f.more[len(f.more)-1]
	in := func(d delta) *big.Rat {
		for _, r := range d.all {
			if r.reader == by {
				return r.n
			}
		}
		return nil
	}
	all := in(last.total)
	if all == nil || all.Cmp(in(d)) <= 0 {
		return
	}
	j.bad[at] += fmt.Sprintf(", after the first duplicate; %s after %d", count(all), len(f.more)+1)
	for _, a := range f.more {
		if n := in(a.own); n != nil && n.Sign() > 0 {
			j.find(id, "", evidence.Established, a.sent)
		}
	}
}

// protected reports whether nothing contradicts that a key protects: it was
// seen to protect, or that was not tried here.
func (f *again) protected(o *operation) bool {
	return f == nil || f.second != nil && (f.second.total.told() || len(o.readers) == 0)
}

// repeated judges a request that was sent again, the state first.
func (j *judgement) repeated(first *sent, second *attempt, expect int64, id evidence.FindingID) {
	j.e.Second = j.o.compare(first, second.sent)
	f, d := &j.o.facts, second.total
	f.marked = f.marked || second.replayed
	if !j.effects(d, expect, id, first, second.sent) {
		if more(d.most, expect) && !d.apart(expect) {
			f.doubled, f.doubledBy = true, []*sent{first, second.sent}
		}
		return
	}
	if tooMany(second.sent) {
		f.limited = true
	}
	switch {
	case !second.settled:
		j.unclear("%s", second.why)
	case turnedAway(&second.x), barred(second.sent):
		j.unclear("the duplicate was not processed: %s. That says nothing about duplicates", response(second.sent))
	case second.x.Response == nil && errors.Is(second.x.Err, wire.ErrTimeout):
		j.broken("the duplicate was not answered within %v, although the first was answered after %v; %s", j.o.r.p.Timing.Timeout, first.x.Timing.FirstByte.Sub(first.x.Timing.LastWrite).Round(1e6), j.state(d))
		j.find(evidence.FindingDuplicateNotAnswered, "", evidence.Inferred, first, second.sent)
	case second.x.Response == nil:
		j.unclear("the duplicate has no response: %s", response(second.sent))
	case !d.told():
		j.byIDs(id, d, first, second.sent)
	case accepted(&second.x) && !f.async && second.fate != fateDone:
		f.once = true
		j.holds("%s; the second response, %s, says that it was accepted", due(expect), response(second.sent))
	default:
		f.once = true
		j.second(first, second.sent, due(expect))
	}
}

// due says how many effects were seen when none was in excess: of a duplicate
// alone, or of a request and its duplicate.
func due(expect int64) string {
	if expect == 0 {
		return "no effect of its own"
	}
	return count(big.NewRat(expect, 1))
}

// byIDs judges without a reader: two ids are a hint, anything else shows
// nothing.
func (j *judgement) byIDs(id evidence.FindingID, d delta, first, second *sent) {
	if success(&second.x) && first.resource != "" && second.resource != "" && first.resource != second.resource {
		j.broken("the second response names another resource (%s, then %s); no reader tells how many there are", first.resource, second.resource)
		j.find(j.doubled(id), "", evidence.Inferred, first, second)
		return
	}
	if second.replayed || success(&second.x) && first.resource != "" && first.resource == second.resource {
		j.o.facts.seemsOnce = true
	}
	j.unclear("%s: responses alone, alike or not, say nothing about effects", j.state(d))
}

// second judges the response to a duplicate that had no effect of its own. seen
// says so in the words of its experiment.
func (j *judgement) second(first, second *sent, seen string) {
	f, c := &j.o.facts, j.o.contract
	s := j.e.Second
	// Two responses that have no body, or that both name no resource, cannot be
	// told apart.
	blank := s.Class == evidence.SameResult && !s.Resource && len(first.x.Response.Body) == 0 && !second.replayed
	if f.duplicate == nil && !blank && (s.Class != evidence.DifferentResult || otherResource(first, second)) {
		f.duplicate = s
	}
	// What a contract says about keys does not apply to operations without one.
	keyed := j.o.op.Key != nil && j.o.op.Signature == nil
	switch s.Class {
	case evidence.SameResult:
		if blank {
			j.holds("%s; both were answered with %s, and neither response has a body", seen, response(second))
			return
		}
		but, is := "", "is the first result"
		if len(s.Differences) > 0 {
			but = "; what differs in the response: " + strings.Join(s.Differences, ", ")
		}
		if !s.Body && s.Resource {
			is = "names the first's resource"
		}
		j.holds("%s; the second response %s%s%s", seen, is, map[bool]string{true: ", marked as a replay"}[second.replayed], but)
		if !second.replayed && keyed && c.Replay == "original" && c.ReplayHeader != "" {
			j.find(evidence.FindingReplayUnmarked, "", "", first, second)
		}
	case evidence.RefusedWithReference:
		j.holds("%s; the second response, %s, refuses and names the first result", seen, response(second))
		if keyed && !j.o.r.p.AssumesReplay(j.o.op) && (c.Replay == "original" || c.Replay == "current") {
			j.find(evidence.FindingReplayRefused, "", "", first, second)
		}
	case evidence.Refused:
		if saysInProgress(second) {
			j.broken("%s; after it was answered, %s is still refused as in progress: %s", seen, j.key(), response(second))
			j.find(evidence.FindingFailureBlocksKey, "", evidence.Inferred, first, second)
			return
		}
		j.holds("%s; the second response is a refusal, %s, without the first result%s", seen, response(second), map[bool]string{true: ": its condition no longer holds"}[conditional(second)])
		if keyed && !j.o.r.p.AssumesReplay(j.o.op) && c.Replay != "" && !conditional(second) {
			j.find(evidence.FindingReplayRefused, "", "", first, second)
		}
	case evidence.DifferentResult:
		if !otherResource(first, second) {
			j.holds("%s; the second response differs from the first (%s), and no resource is named in both that could be compared", seen, strings.Join(s.Differences, ", "))
			return
		}
		j.broken("%s, and the second response gives a different result: %s", seen, strings.Join(s.Differences, ", "))
		j.find(evidence.FindingReplayDiffers, "", evidence.Established, first, second)
	case evidence.ErrorOrTimeout:
		if !second.serverError() {
			j.unclear("%s; the response to the duplicate did not come whole: %s", seen, response(second))
			return
		}
		j.broken("%s, and the duplicate is answered with %s", seen, response(second))
		j.error5xx(first, second)
	}
}

// otherResource reports whether two responses name two resources.
func otherResource(first, second *sent) bool {
	return first.resource != "" && second.resource != "" && first.resource != second.resource
}

// conditional reports whether a request was refused for its own condition.
func conditional(s *sent) bool {
	if s.x.Response == nil || s.x.Response.Status != http.StatusPreconditionFailed {
		return false
	}
	return slices.ContainsFunc(s.x.Request.Header, func(f wire.Field) bool {
		return slices.Contains([]string{"if-match", "if-none-match", "if-unmodified-since", "if-modified-since"}, strings.ToLower(f.Name))
	})
}

// lostEffect is a finding for a success without an effect. Where other
// responses name a resource and this one does not, it may be a refusal in its
// body: then nothing is known, and it returns false.
func (j *judgement) lostEffect(s *sent, what string, sends ...*sent) bool {
	if j.o.facts.names && s.resource == "" && !accepted(&s.x) {
		j.unclear("%s; unlike others it names no resource, so its body may be a refusal", what)
		return false
	}
	j.broken("%s", what)
	j.find(evidence.FindingLostEffect, "", evidence.Established, sends...)
	return true
}

// error5xx adds the finding that duplicates were answered with a server error,
// at least the last of those given. A single one may be chance.
func (j *judgement) error5xx(sends ...*sent) {
	f := &j.o.facts
	for _, s := range sends {
		if s.serverError() {
			f.errors5xx++
		}
	}
	basis := evidence.Inferred
	if f.errors5xx > 1 {
		basis = evidence.Established
	}
	j.find(evidence.FindingUnstable5xxOnDuplicate, "", basis, sends...)
}
