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
	o.verdict()
	o.gather()
	o.state()
	o.suppose()
}

func (o *operation) has(ids ...evidence.FindingID) bool {
	return slices.ContainsFunc(o.ev.Findings, func(f evidence.Finding) bool { return slices.Contains(ids, f.ID) })
}

func (o *operation) established(id evidence.FindingID) bool {
	return slices.ContainsFunc(o.ev.Findings, func(f evidence.Finding) bool { return f.ID == id && f.Basis == evidence.Established })
}

// doublesAnswered reports whether duplicates of answered requests double: then
// those of lost ones, and of running ones, tell of no other cause.
func (o *operation) doublesAnswered() bool {
	f := &o.facts
	return f.doubled && !f.late || !f.once && o.has(evidence.FindingDoubleEffectSequential, evidence.FindingWebhookRedeliveryDoubles)
}

func (o *operation) verdict() {
	f, v := &o.facts, &o.ev.Verdict

	// A target that knows some duplicates and doubles others, after a failure
	// say, does not know none.
	switch {
	case f.doubled && f.sometimes:
	case f.doubled && !f.once, f.doubled && f.limited:
		v.IdempotencySupport = "none"
	case !f.once:
	case o.op.Signature != nil:
		v.IdempotencySupport = "event_id"
	case o.op.Key == nil || f.freshCreates == no:
		v.IdempotencySupport = "natural_key"
	case f.freshCreates == yes || f.marked:
		v.IdempotencySupport = "header_key"
	}

	switch {
	case f.tenantApart == no:
		v.KeyScopeBinding = "weak"
	case f.operationApart == no && (f.tenantApart == yes || f.actorApart == yes):
		v.KeyScopeBinding = "partial"
	case f.tenantApart == yes && f.actorApart == yes:
		v.KeyScopeBinding = "tenant+actor+operation"
	case f.tenantApart == yes, f.actorApart == yes:
		v.KeyScopeBinding = "partial"
	case f.actorApart == no:
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
	switch f.inProgress {
	case yes:
		v.InProgressHandling = "yes"
	case no:
		v.InProgressHandling = "no"
	}
	raced := f.outcomes[plan.RaceSame]
	switch r := f.race; {
	case r == nil:
	case r.Doubled > 0 && (o.established(evidence.FindingDoubleEffectRace) || o.established(evidence.FindingEffectsDisagree)):
		v.RaceBehavior, v.Atomicity = "double_apply", "none"
		if v.InProgressHandling == "yes" {
			// The retry that got a result came after the first had been recorded.
			v.InProgressHandling = "no"
		}
	case (raced == evidence.Held || raced == evidence.Broken) && r.Overlapped > 0 && r.Doubled == 0 && r.Lost == 0:
		// Once each time, whatever the losers were told.
		v.RaceBehavior = "safe_converge"
	}
	o.atomicity()
	switch {
	case f.outsideBad:
		v.OutboxPattern = "no"
	case f.outsideOK > 0:
		v.OutboxPattern = "yes"
	}
	switch {
	case f.unsafeRetry || f.doubled || o.has(evidence.FindingDoubleEffectSequential, evidence.FindingDoubleEffectLostResponse, evidence.FindingInFlightExecuted, evidence.FindingDoubleEffectRace, evidence.FindingWebhookRedeliveryDoubles, evidence.FindingEffectsDisagree, evidence.FindingOutsideEffectDoubled,
		evidence.FindingInstanceDoubles, evidence.FindingSameMeaningExecuted, evidence.FindingKeyForgotten):
		v.RetryBehavior = "unsafe_retry"
	case f.safeRetry && !f.outsideBad:
		v.RetryBehavior = "safe_stop"
	}
	if f.audit != "" {
		v.AuditStrength = f.audit
	}
	v.Confidence, v.ConfidenceFrom = o.confidence()
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
				why = fmt.Sprintf("%s; a rate of up to %s is left open by %s", outcome, evidence.Percent(r.Bound), times(r.Overlapped, "overlapping trial"))
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
	case plan.OtherActor:
		return o.op.Signature != nil || o.op.Key == nil
	case plan.OtherTenant:
		return o.op.Signature != nil
	}
	return false
}
