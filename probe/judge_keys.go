package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

func (f *freshly) judge(j *judgement) {
	if !j.begun(&f.opening) || f.second == nil {
		return
	}
	first, second := f.good().sent, f.second.sent
	j.e.Second = j.o.compare(first, second)
	if !second.processed() {
		j.unclear("the second request was not processed: %s", response(second))
		return
	}
	if !f.second.settled {
		j.unclear("%s", f.second.why)
		return
	}
	own := f.second.own.most
	if own == nil || f.own.most != nil && f.own.most.Cmp(own) > 0 {
		own = f.own.most
	}
	known, c := &j.o.facts, j.o.contract
	switch {
	case own == nil:
		if success(&second.x) && first.resource != "" && second.resource != "" {
			j.unclear("%s; the responses name %s", j.state(f.second.own), map[bool]string{true: "one resource", false: "two resources"}[first.resource == second.resource])
			return
		}
		j.unclear("%s", j.state(f.second.own))
	case is(own, 1):
		known.freshCreates = yes
		if c.FreshKey == "refused" {
			j.broken("the contract identifies the request by its content, and it took effect again under a fresh key")
			j.find(evidence.FindingContentNotRecognised, "", evidence.Established, first, second)
			return
		}
		switch {
		case known.doubled:
			j.holds("under a fresh key the same body took effect again, as it did under the same key: this shows nothing about keys")
		case known.once:
			j.holds("under a fresh key the same body took effect again: it is the key that counts")
		default:
			j.holds("under a fresh key the same body took effect again; that it is the key that counts was not shown, because no duplicate under the same key was seen to have one effect")
		}
	case more(own, 1):
		j.unclear("the second request had %s", count(own))
	case accepted(&second.x) && second.fate != fateDone:
		j.unclear("the second request was accepted with %s, and no effect of its own was seen by %v after it", response(second), j.o.r.p.Timing.SettleLimit)
	case success(&second.x) && second.resource != "" && second.resource != first.resource:
		j.broken("a request with a fresh key was answered with %s and %s, and had no effect", response(second), second.resource)
		j.find(evidence.FindingLostEffect, "", evidence.Established, second)
	case second.serverError():
		j.unclear("the same body under a fresh key was answered with %s and had no effect", response(second))
	default:
		known.freshCreates = no
		if success(&second.x) && c.FreshKey == "creates" {
			j.holds("under a fresh key the same body had no effect of its own, and %s with the first result: the content counts as a key", response(second))
			return
		}
		j.holds("under a fresh key the same body was answered with %s and had no effect: the content counts as a key", response(second))
	}
}

func (f *mismatched) judge(j *judgement) {
	if !j.begun(&f.opening) || f.second == nil {
		return
	}
	first, second, d := f.good().sent, f.second.sent, f.second.total
	j.e.Second = j.o.compare(first, second)
	if j.o.op.Key == nil {
		j.changed(first, f.second, f.changed)
		return
	}
	if f.changed != yes { // else what is outside may tell of the change
		d = j.inside(d, 1, first, second)
	}
	ok := success(&second.x)
	hook := j.o.op.Signature != nil
	switch {
	case d.exceeds(1):
		j.broken("the altered request took effect as well: %s", count(cmp.Or(d.most, d.outMost)))
		j.find(evidence.FindingMismatchExecuted, "", evidence.Established, first, second)
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case !second.processed():
		j.unclear("the altered request was not processed: %s", response(second))
	case accepted(&second.x) && second.fate != fateDone && !second.replayed && !(first.resource != "" && second.resource == first.resource):
		j.unclear("the altered request was accepted with %s, and what became of it was not seen", response(second))
	case ok && f.changed != untold:
		j.changedUnderKey(first, second, f.changed)
	case ok && otherResource(first, second) && d.told():
		j.broken("the altered request was answered with %s and a resource of its own, and had no effect that a reader sees", response(second))
		j.find(evidence.FindingMismatchExecuted, "", evidence.Inferred, first, second)
	case ok && otherResource(first, second):
		j.broken("the altered request was answered with %s and a resource of its own; no reader sees the state", response(second))
		j.find(evidence.FindingMismatchExecuted, "", evidence.Inferred, first, second)
	case ok && j.o.inPlace() && !second.replayed && !j.e.Second.Body:
		j.unclear("the altered request was answered with %s; no reader tells whether what it asks for was done", response(second))
	case ok && j.o.inPlace():
		j.broken("the altered request was answered with %s and the first one's result; no reader tells whether what it asks for was done", response(second))
		j.find(evidence.FindingMismatchReplayedAsSame, "", evidence.Inferred, first, second)
	case ok && !hook && (j.e.Second.Class == evidence.SameResult || second.replayed):
		basis := evidence.Established
		if !d.told() {
			basis = evidence.Inferred
		}
		j.broken("the altered request was answered with %s and the first one's result%s", response(second), map[bool]string{true: "; what it asks for did not happen"}[d.told()])
		j.find(evidence.FindingMismatchReplayedAsSame, "", basis, first, second)
	case ok && hook && d.told():
		j.holds("the altered event was answered with %s and had no effect: events are known by their id alone", response(second))
	case ok && d.told():
		j.broken("the altered request was answered with %s, and what it asks for did not happen", response(second))
		j.find(evidence.FindingMismatchReplayedAsSame, "", evidence.Inferred, first, second)
	case second.serverError():
		j.broken("the altered request was answered with %s%s", response(second), d.without())
		j.find(evidence.FindingBadKeyServerError, "", evidence.Established, first, second)
	case ok:
		j.unclear("the altered request was answered with %s, and no reader sees the state", response(second))
	default:
		note := ""
		if want := j.o.contract.Mismatch; second.x.Response.Proto != graphQL && len(want) > 0 && !slices.Contains(want, second.x.Response.Status) {
			note = fmt.Sprintf("; the contract%s names %s for this", map[bool]string{true: " that the plan assumes"}[j.o.assumed], strings.Trim(strings.ReplaceAll(fmt.Sprint(want), " ", ", "), "[]"))
		}
		j.holds("the altered request was refused with %s%s%s", response(second), d.without(), note)
	}
	if !ok {
		if what := leaked(first, second); what != "" {
			j.broken("the refusal contains %s", what)
			j.find(evidence.FindingConflictLeaksPayload, evidence.P2, evidence.Established, first, second)
		}
	}
}

// changedUnderKey judges another request under a used key that was answered with
// success, by what a GET of its address has afterwards.
func (j *judgement) changedUnderKey(first, second *sent, taken known) {
	switch {
	case taken == no:
		j.broken("the altered request was answered with %s, and what it asks for was not done: a GET of its address still returns what the first one sent", response(second))
		j.find(evidence.FindingMismatchReplayedAsSame, "", evidence.Established, first, second)
	case len(j.o.contract.Mismatch) == 0:
		j.holds("the altered request was treated as a change of the same resource: %s; the contract does not say that another request under a used key is refused", response(second))
	default:
		priority, whose := evidence.P1, "the contract refuses that"
		if j.o.assumed {
			priority, whose = evidence.P2, "the contract that the plan assumes refuses that"
		}
		j.broken("the altered request was answered with %s and changed the resource, under a used key: %s", response(second), whose)
		j.find(evidence.FindingMismatchExecuted, priority, evidence.Established, first, second)
	}
}

// changed judges another request for what an operation without keys knows by its
// content: what the plan alters is not what makes it the same.
func (j *judgement) changed(first *sent, second *attempt, taken known) {
	d := second.total
	switch {
	case more(d.most, 1):
		j.broken("the altered request took effect as a new one: %s", d)
		j.find(evidence.FindingChangeDoubles, "", evidence.Established, first, second.sent)
	case !second.settled:
		j.unclear("%s", second.why)
	case !second.processed():
		j.unclear("the altered request was not processed: %s", response(second.sent))
	case !d.told():
		j.unclear("the altered request was answered with %s, and no reader sees the state", response(second.sent))
	case success(&second.x) && otherResource(first, second.sent):
		j.broken("the altered request was answered with %s and another resource, and had no effect that a reader sees", response(second.sent))
		j.find(evidence.FindingChangeDoubles, "", evidence.Inferred, first, second.sent)
	case !d.state:
		j.unclear("the altered request was answered with %s; outside there were %s, of a change or of a new request, and no reader sees the target's own state", response(second.sent), count(d.outMost))
	case taken == no:
		j.broken("the altered request was answered with %s, and what it asks for was not done: a GET of its address still returns what the first one sent", response(second.sent))
		j.find(evidence.FindingChangeNotMade, "", evidence.Established, first, second.sent)
	case taken == yes:
		j.holds("1 effect; the altered request was treated as a change of the same resource: %s", response(second.sent))
	case success(&second.x):
		j.holds("1 effect; the altered request was answered with %s: no reader tells whether what it asks for was done", response(second.sent))
	case second.serverError():
		j.broken("the altered request was answered with %s%s", response(second.sent), d.without())
		j.error5xx(first, second.sent)
	default:
		j.holds("1 effect; the altered request was refused with %s", response(second.sent))
	}
}

// grounded judges whether a valid key protects, if that was tried. It reports
// whether the behaviour with an invalid one can be judged.
func (j *judgement) grounded(f *again) bool {
	if f != nil {
		f.judge(j)
		j.e.Second = nil // of the ground, not of what is asked
	}
	switch j.o.facts.protects() {
	case yes:
		j.held = nil // that was the ground, not what is asked
		if len(j.o.readers) == 0 {
			j.open = nil
		}
		return true
	case no:
		j.bad = nil // it is a finding, and not of a bad key
	default:
		what := append(j.open, j.bad...)
		j.open, j.bad = nil, nil
		if len(what) > 0 {
			j.unclear("it was not shown that a good key protects: %s", strings.Join(what, "; "))
		} else {
			j.unclear("it was not shown whether a good key protects, so what a bad one does shows nothing")
		}
	}
	return false
}

func (f *keyless) judge(j *judgement) {
	ground := j.grounded(f.ground)
	s := f.only
	if s == nil {
		return
	}
	if t := f.other; t != nil && t.settled && t.done() && (t.resource != "" || !j.o.facts.names) && t.total.told() && is(t.total.number(), 0) && s.total.exceeds(0) {
		j.broken("another request without a key, with values of its own, was answered with %s and had no effect: requests without a key count as one", response(t.sent))
		j.o.facts.keylessAsOne = t.sent
		j.find(evidence.FindingKeylessRequestsConfused, "", evidence.Established, s.sent, t.sent)
	}
	d, known := s.total, &j.o.facts
	known.noKeyRan, known.noKey = d.exceeds(0), s.sent
	if !ground {
		if known.protects() == no {
			what := "was answered with " + response(s.sent) + "; " + j.state(d)
			if known.noKeyRan {
				what = "took effect"
			}
			j.void("no key protects here, so a missing one leaves nothing unprotected: a request without a key %s", what)
		}
		return
	}
	required := len(j.o.contract.Missing) > 0
	j.single(s, func() {
		switch {
		case known.noKeyRan && required && j.o.assumed:
			j.broken("a request without a key was answered with %s and took effect; the plan names no profile of a contract, and by default keys count as required", response(s.sent))
			j.find(evidence.FindingMissingKeyAccepted, evidence.P2, evidence.Inferred, s.sent)
		case known.noKeyRan && required:
			j.broken("a request without a key was answered with %s and took effect", response(s.sent))
			j.find(evidence.FindingMissingKeyAccepted, "", evidence.Established, s.sent)
		case known.noKeyRan:
			j.holds("a request without a key took effect; the contract does not require one")
		case s.serverError():
			j.broken("a request without a key was answered with %s%s", response(s.sent), d.without())
			j.find(evidence.FindingBadKeyServerError, "", evidence.Established, s.sent)
		case accepted(&s.x) && s.fate != fateDone:
			j.unclear("a request without a key was accepted with %s, and what became of it was not seen", response(s.sent))
		case !d.told() && success(&s.x) && required && !j.o.assumed:
			j.broken("a request without a key was answered with %s; no reader sees whether it took effect", response(s.sent))
			j.find(evidence.FindingMissingKeyAccepted, "", evidence.Inferred, s.sent)
		case !d.told() && success(&s.x):
			j.unclear("a request without a key was answered with %s, and no reader sees whether it took effect", response(s.sent))
		case success(&s.x):
			j.lostEffect(s.sent, fmt.Sprintf("a request without a key was answered with %s and had no effect", response(s.sent)), s.sent)
		default:
			j.holds("a request without a key was refused with %s%s", response(s.sent), d.without())
		}
	})
}

// single judges a request that may be refused, if it was processed and the
// state can be seen, or there is no reader.
func (j *judgement) single(s *attempt, judge func()) {
	switch {
	case !s.processed():
		j.unclear("the request was not processed: %s", response(s.sent))
	case !s.settled:
		j.unclear("%s", s.why)
	case len(j.o.readers) > 0 && !s.total.told():
		j.unclear("no reader has seen the effect of a fresh request, so none could see this one's")
	default:
		judge()
	}
}

func (f *misspelt) judge(j *judgement) {
	if !j.grounded(f.ground) {
		if j.o.facts.protects() == no {
			j.void("no key protects here, so a malformed one leaves nothing unprotected")
		}
		return
	}
	if f.first == nil {
		return
	}
	first, d := f.first.sent, f.first.total
	accept := false
	j.single(f.first, func() {
		switch accept = success(&first.x); {
		case accept:
		case d.exceeds(0):
			j.broken("a malformed key was refused with %s, and the request took effect", response(first))
			j.find(evidence.FindingMalformedKeyAcceptedUnprotected, "", evidence.Established, first)
		case first.serverError():
			j.broken("a malformed key was answered with %s%s", response(first), d.without())
			j.find(evidence.FindingBadKeyServerError, "", evidence.Established, first)
		default:
			j.holds("a malformed key was refused with %s%s", response(first), d.without())
		}
	})
	if !accept || f.second == nil {
		return
	}
	second := f.second.sent
	d = j.inside(f.second.total, 1, first, second)
	j.e.Second = j.o.compare(first, second)
	switch {
	case d.exceeds(1):
		j.broken("a malformed key was accepted with %s, and the request repeated: %s", response(first), count(cmp.Or(d.most, d.outMost)))
		j.find(evidence.FindingMalformedKeyAcceptedUnprotected, "", evidence.Established, first, second)
	case !f.second.settled:
		j.unclear("%s", f.second.why)
	case !second.processed():
		j.unclear("the repeated request was not processed: %s", response(second))
	case !d.told():
		j.unclear("a malformed key was accepted with %s, and no reader sees whether it protects", response(first))
	case is(d.number(), 0) && !first.done():
		j.unclear("a malformed key was accepted with %s, and what became of it was not seen", response(first))
	case is(d.number(), 0):
		j.lostEffect(first, fmt.Sprintf("a malformed key was answered with %s and had no effect", response(first)), first)
	default:
		j.holds("what was sent as a malformed key is accepted, and protects: %s for two requests", count(d.number()))
	}
}

// replayed reports whether actor A's own duplicate was recognised: it was
// answered with what the first had left, or had no effect by the state.
func (f *scoped) replayed(o *operation) bool {
	own := o.compare(f.good().sent, f.again.sent).Class
	if more(f.again.total.number(), 1) || !f.again.processed() || f.again.serverError() {
		return false
	}
	return own == evidence.SameResult || own == evidence.RefusedWithReference || f.again.settled && f.again.total.state
}

func (f *scoped) judge(j *judgement) {
	if !j.begun(&f.opening) || f.again == nil {
		return
	}
	first, known := f.good().sent, &j.o.facts
	id, apart := evidence.FindingKeyNotScopedActor, &known.actorApart
	if f.who == plan.TenantB {
		id, apart = evidence.FindingKeyNotScopedTenant, &known.tenantApart
	}
	if !f.replayed(j.o) {
		// A double is a finding here too, but says nothing about scope.
		j.effects(f.again.total, 1, evidence.FindingDoubleEffectSequential, first, f.again.sent)
		j.bad = nil
		j.unclear("it was not shown that actor A's own duplicate is recognised (%s; %s), so another's response says nothing about scope", response(f.again.sent), j.state(f.again.total))
		return
	}
	if f.other == nil {
		return
	}
	second, rise := f.other.sent, f.other.own
	j.e.Second = j.o.compare(first, second)
	status := 0
	if second.x.Response != nil {
		status = second.x.Response.Status
	}
	under := " under actor A's key"
	if j.o.op.Key == nil {
		under = ", the same as actor A's,"
	}
	switch {
	case is(rise.number(), 1):
		*apart = yes
		j.holds("%s's request%s took effect of its own", f.who, under)
	case barred(second):
		j.unclear("%s may not do this at all: %s", f.who, response(second))
	case !second.processed():
		j.unclear("the request was not processed: %s", response(second))
	case success(&second.x) && first.resource != "" && second.resource == first.resource,
		success(&second.x) && second.replayed:
		*apart = no
		named := ""
		if second.resource != "" {
			named = ", resource " + second.resource
		}
		j.broken("%s was answered with actor A's result: %s%s", f.who, response(second), named)
		j.notScoped(id, evidence.Established, first, f.again.sent, second)
	case success(&second.x) && otherResource(first, second):
		*apart = yes
		j.holds("%s's request%s was answered with a resource of its own", f.who, under)
	case j.natural() && f.who == plan.TenantB && first.resource != "" && names(second.x.Response, first.resource):
		*apart = no
		j.broken("%s's request was refused with actor A's result: %s, resource %s", f.who, response(second), first.resource)
		j.notScoped(id, evidence.Established, first, f.again.sent, second)
	case j.o.op.Key == nil:
		j.unclear("%s's request%s was answered with %s, which does not tell whose request kept it out", f.who, under, response(second))
	case j.natural():
		j.unclear("the request was refused for its content (%s), as a fresh key is: nothing is said about keys", response(second))
	case status == 409 || status == 422 || slices.Contains(j.o.contract.Mismatch, status):
		*apart = no
		j.broken("%s's request was refused, presumably because of actor A's key: %s", f.who, response(second))
		j.notScoped(id, evidence.Inferred, first, f.again.sent, second)
	default:
		j.unclear("the response, %s, does not tell whose key it was", response(second))
	}
	if !success(&second.x) && *apart == no {
		if what := leaked(first, second); what != "" {
			j.find(evidence.FindingConflictLeaksPayload, evidence.P0, evidence.Established, first, second)
		}
	}
}

// natural reports whether a refusal may be that of a natural key.
func (j *judgement) natural() bool {
	return j.o.op.Key == nil || j.o.facts.freshCreates == no || j.o.contract.FreshKey == "refused"
}

// notScoped is a finding about scope. Many contracts deliberately bind keys to
// the account, not to the actor.
func (j *judgement) notScoped(id evidence.FindingID, basis evidence.Basis, sends ...*sent) {
	p := evidence.Priority("")
	if id == evidence.FindingKeyNotScopedActor && j.o.contract.Profile != "ietf" {
		p = evidence.P2
	}
	j.find(id, p, basis, sends...)
}

// leaked says which member of the first request or its response is in a
// refusal, but not in the refused request. The id of the resource does not
// count.
func leaked(first, second *sent) string {
	if second.x.Response == nil || first.x.Response == nil {
		return ""
	}
	body := string(second.x.Response.Body)
	own := string(second.x.Request.Body)
	for _, f := range second.x.Request.Header {
		own += "\n" + f.Value
	}
	for _, from := range []struct {
		what string
		body []byte
	}{{"first request", first.x.Request.Body}, {"first response", first.x.Response.Body}} {
		doc, err := decodeJSON(from.body)
		if err != nil {
			continue
		}
		found := ""
		var walk func(at string, v any)
		walk = func(at string, v any) {
			switch v := v.(type) {
			case map[string]any:
				for k, e := range v {
					walk(at+"/"+k, e)
				}
			case []any:
				for i, e := range v {
					walk(fmt.Sprintf("%s/%d", at, i), e)
				}
			case string:
				// Values that the second request has too reveal nothing.
				if len(v) >= 8 && strings.Contains(body, v) && !strings.Contains(own, v) && v != first.resource && v != second.resource {
					found = max(found, at)
				}
			}
		}
		if walk("", doc); found != "" {
			return fmt.Sprintf("member %s of the %s", found, from.what)
		}
		// Quoted whole, as a stored record is.
		if quotes(second.x.Response.Body, doc, second.x.Request.Body) {
			return "the " + from.what + " as it is stored"
		}
	}
	return ""
}

// quotes reports whether a response contains an object that repeats at least
// half of the members of another, including one that has another value in the
// request it answers.
func quotes(body []byte, of any, request []byte) bool {
	want, ok := of.(map[string]any)
	doc, err := decodeJSON(body)
	if !ok || err != nil {
		return false
	}
	asked, _ := decodeJSON(request)
	own, _ := asked.(map[string]any)
	found := false
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			same, told := 0, false
			for k, e := range want {
				if got, ok := v[k]; ok && scalar(got) == scalar(e) {
					same++
					mine, has := own[k]
					told = told || has && scalar(mine) != scalar(e)
				}
			}
			found = found || told && same*2 >= len(want)
			for _, e := range v {
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(doc)
	return found
}
