package probe

import (
	"fmt"
	"slices"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// judge makes verdict, statements and hypotheses of what was shown.
func (o *operation) judge() {
	o.concludeSpecification()
	f := &o.facts
	if f.doubled && f.noKeyRan && !f.marked && o.op.Key != nil {
		e, _ := evidence.Lookup("key-ignored")
		var ns []int
		for _, s := range append(slices.Clone(f.doubledBy), f.noKey) {
			ns = append(ns, s.n)
		}
		g := e.Finding(string(plan.MissingKey), ns...)
		g.Basis = evidence.Established
		o.find(g)
	}
	if o.doublesAnswered() {
		for i := range o.ev.Findings {
			if g := &o.ev.Findings[i]; g.ID == "double-effect-lost-response" {
				g.Explanation = "The connection was cut before the answer had arrived, and the request was sent again with its key, as a client has to after a time-out. Both took effect. The same happens after an answer that arrived: this is one more way to the double, and says nothing of a cause of its own."
			}
		}
	}
	slices.SortStableFunc(o.ev.Findings, func(a, b evidence.Finding) int {
		switch {
		case a.Priority < b.Priority:
			return -1
		case a.Priority > b.Priority:
			return 1
		}
		return 0
	})
	o.verdict()
	o.state()
	o.suppose()
}

func (o *operation) has(id string) bool {
	return slices.ContainsFunc(o.ev.Findings, func(f evidence.Finding) bool { return f.ID == id })
}

// doublesAnswered says whether duplicates of answered requests double: then
// those of lost ones tell of no other cause.
func (o *operation) doublesAnswered() bool {
	f := &o.facts
	return f.doubled || !f.once && (o.has("double-effect-sequential") || o.has("webhook-redelivery-doubles"))
}

func (o *operation) verdict() {
	f, v := &o.facts, &o.ev.Verdict
	sequential := f.doubled || o.has("double-effect-sequential") || o.has("webhook-redelivery-doubles")

	// A target that knows some duplicates and doubles others, after a failure
	// say, does not know none.
	switch {
	case f.doubled && !f.once, f.doubled && f.limited:
		v.IdempotencySupport = "none"
	case !f.once:
	case o.op.Signature != nil:
		v.IdempotencySupport = "event_id"
	case o.op.Key == nil || f.fresh == "refused":
		v.IdempotencySupport = "natural_key"
	case f.fresh == "creates" || f.marked:
		v.IdempotencySupport = "header_key"
	}

	switch {
	case f.tenantApart == "no":
		v.KeyScopeBinding = "weak"
	case f.tenantApart == "yes" && f.actorApart == "yes":
		v.KeyScopeBinding = "tenant+actor+operation"
	case f.tenantApart == "yes", f.actorApart == "yes":
		v.KeyScopeBinding = "partial"
	case f.actorApart == "no":
		v.KeyScopeBinding = "weak"
	}

	if s := f.duplicate; s != nil {
		switch s.Class {
		case evidence.SameResult:
			v.ResultReplay = "same_response"
		case evidence.RefusedWithReference:
			v.ResultReplay = "conflict_with_reference"
		case evidence.DifferentResult, evidence.ErrorOrTimeout:
			v.ResultReplay = "unstable"
		}
	}
	if f.inFlight != "" {
		v.InProgressHandling = f.inFlight
	}
	switch r := f.race; {
	case r == nil:
	case r.Doubled > 0 && o.established("double-effect-race"):
		v.RaceBehavior, v.Atomicity = "double_apply", "none"
	case f.outcomes[plan.RaceSame] == evidence.Held,
		// Once each time, whatever the losers were told.
		r.Overlapped > 0 && r.Doubled == 0 && r.Lost == 0 && o.sighted():
		v.RaceBehavior = "safe_converge"
	}
	switch {
	case f.outsideBad:
		v.OutboxPattern = "no"
	case f.outsideOK > 0:
		v.OutboxPattern = "yes"
	}
	switch {
	case slices.Contains(f.retry, "unsafe_retry") || sequential || o.has("double-effect-lost-response"):
		v.RetryBehavior = "unsafe_retry"
	case len(f.retry) > 0:
		v.RetryBehavior = "safe_stop"
	}
	if f.audit != "" {
		v.AuditStrength = f.audit
	}
	v.Confidence, v.ConfidenceFrom = o.confidence()
}

func (o *operation) established(id string) bool {
	return slices.ContainsFunc(o.ev.Findings, func(f evidence.Finding) bool { return f.ID == id && f.Basis == evidence.Established })
}

// weights of the confidence, in hundredths: what each experiment contributes if
// it showed something. ADR 0013 has the reasons.
var weights = []struct {
	of     plan.Experiment
	weight int
}{
	{plan.Duplicate, 20},
	{plan.RaceSame, 20},
	{plan.LostUnread, 10},
	{plan.InFlight, 10},
	{plan.Altered, 5},
	{plan.FreshKey, 5},
	{plan.OtherTenant, 5},
	{plan.OtherActor, 5},
}

const controlWeight = 20

// confidence is how much of what can be shown was shown. Its terms are:
//
//	control  0.20 if a state reader saw the effect of a fresh request; without
//	         it, all other terms are 0
//	each experiment of weights, if it held or was broken; a race that held
//	         counts by 1 - bound, the part of double rates that its trials
//	         exclude
//
// Their sum is divided by the weights of all experiments that there can be for
// such an operation.
func (o *operation) confidence() (float64, []string) {
	var terms []string
	sum, all := 0.0, float64(controlWeight)/100
	if o.facts.control {
		sum = float64(controlWeight) / 100
		terms = append(terms, fmt.Sprintf("control: %.2f of %.2f: the effect of a fresh request was seen in the state", sum, sum))
	} else {
		terms = append(terms, fmt.Sprintf("control: 0 of %.2f: no state reader saw the effect of a fresh request, so nothing else counts", all))
	}
	for _, w := range weights {
		of := float64(w.weight) / 100
		if o.never(w.of) {
			continue
		}
		all += of
		outcome := o.facts.outcomes[w.of]
		got, why := 0.0, "not run"
		switch outcome {
		case evidence.Held, evidence.Broken:
			got, why = of, string(outcome)
			if r := o.facts.race; w.of == plan.RaceSame && r != nil && r.Doubled == 0 {
				got *= 1 - r.Bound
				why = fmt.Sprintf("%s; %s leave open a rate of %.3f", outcome, times(r.Overlapped, "overlapping trial"), r.Bound)
			}
		case evidence.Inconclusive:
			why = "inconclusive"
		case evidence.NotApplicable:
			why = "the plan lacks what it takes"
		}
		if !o.facts.control {
			got = 0
		}
		sum += got
		terms = append(terms, fmt.Sprintf("%s: %.2f of %.2f: %s", w.of, got, of, why))
	}
	c := sum / all
	return c, append(terms, fmt.Sprintf("%.2f of %.2f = %.2f", sum, all, c))
}

// never says which experiments there cannot be for such an operation.
func (o *operation) never(e plan.Experiment) bool {
	switch e {
	case plan.Altered, plan.FreshKey:
		return o.op.Key == nil
	case plan.OtherActor, plan.OtherTenant:
		return o.op.Signature != nil
	}
	return false
}

// state says what is known and what cannot be.
func (o *operation) state() {
	say := func(field string, basis evidence.Basis, format string, args ...any) {
		o.ev.Statements = append(o.ev.Statements, evidence.Statement{Basis: basis, Text: fmt.Sprintf(format, args...), Field: field})
	}
	f, v := &o.facts, &o.ev.Verdict
	if f.control {
		say("", evidence.Established, "A fresh request has an effect, and %s sees it, %v after the answer at the latest.", o.seenBy(), o.latency.Round(1e6))
	} else {
		say("", evidence.Unknowable, "No state reader saw the effect of a fresh request: nothing can be said about effects.")
	}
	switch {
	case v.IdempotencySupport == "unknown" && f.once:
		say("idempotency_support", evidence.Unknowable, "A duplicate has no second effect. Whether it is known by its key or by its content, the experiment fresh_key would tell.")
	case v.IdempotencySupport == "header_key" && f.fresh == "":
		say("idempotency_support", evidence.Inferred, "The replay is marked as one: it is taken for one by its key.")
	}
	if f.actorApart == "yes" && f.tenantApart == "yes" {
		say("key_scope_binding", evidence.Inferred, "Tenant and actor separate keys. That the operation does too was not tried: it takes a second operation.")
	}
	if r := f.race; r != nil && v.RaceBehavior == "safe_converge" {
		say("race_behavior", evidence.Established, "Not seen to double in %s of %d requests. That leaves open a rate of up to %.1f %%, with 95 %% confidence.", times(r.Overlapped, "overlapping trial"), r.Width, r.Bound*100)
	}
	if v.Atomicity == "unknown" {
		say("atomicity", evidence.Unknowable, "What makes effect and record one cannot be seen from outside.")
	} else {
		say("atomicity", evidence.Inferred, "Requests that ran at the same time doubled the effect: nothing decided between them.")
	}
	if v.OutboxPattern == "unknown" {
		say("outbox_pattern", evidence.Unknowable, "Whether effects elsewhere follow the commit cannot be seen without a reader outside.")
	}
	if v.AuditStrength == "unknown" {
		say("audit_strength", evidence.Unknowable, "No audit source was read.")
	}
	if f.limited {
		say("", evidence.Established, "Some requests were refused with 429. That limits their rate, and says nothing about duplicates.")
	}
	say("", evidence.Unknowable, "A crash of the target between effect and record was not tried.")
}

// suppose names causes that explain the doubles, and what tells them apart.
func (o *operation) suppose() {
	race := o.has("double-effect-race") || o.has("in-flight-executed")
	sequential := o.has("double-effect-sequential") || o.has("webhook-redelivery-doubles")
	lost := o.has("double-effect-lost-response") && !o.doublesAnswered()
	stuck := o.has("failure-blocks-key") || o.has("lost-effect")
	if !race && !sequential && !lost && !stuck {
		return
	}
	add := func(name, text, because, check string) {
		o.ev.Hypotheses = append(o.ev.Hypotheses, evidence.Hypothesis{Name: name, Text: text, For: because, Check: check})
	}
	if race && !sequential {
		add("A", "The key is looked up before the work and recorded after it, without a constraint that decides.",
			"One request after the other is known; requests at the same time are not.",
			"Look for a unique constraint over tenant, actor, operation and key, and whether it is written before the work. Repeat the race with more trials once there is one.")
	}
	if sequential {
		add("B", "The key is not read, or not where it is kept: another instance, another cache, a proxy that takes the header away.",
			"The same bytes took effect twice, one after the other.",
			"Log the key where the request is handled. Send the duplicate to one instance by its address: if that is known and the load balancer's is not, the record is local.")
	}
	if lost || stuck {
		because := "An effect was lost, or a key stayed blocked."
		switch {
		case lost && o.facts.once:
			because = "Duplicates of answered requests and of requests whose connection was lost are treated differently."
		case lost:
			because = "A retry after a lost answer took effect again. Whether a duplicate of an answered request does too was not shown."
		}
		add("C", "The record depends on the client: it is written after the answer, undone when the client goes, or written before the work.",
			because,
			"Look at what happens to the handler's context when the connection closes, and whether effect and record are one transaction.")
	}
	if sequential || race {
		add("D", "The identity differs between the two: the scope or the fingerprint takes in what changes, such as a session, a trace header or a time.",
			"The bytes were the same; what a proxy adds to them may not be.",
			"Compare what the target computes as identity for the two requests, in its log or a debugger.")
	}
}
