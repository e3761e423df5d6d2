package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// gather puts findings that follow from one cause under the one that shows it
// best, and sorts what is left.
func (o *operation) gather() {
	f := &o.facts
	if f.doubled && f.noKeyRan && !f.marked && !f.once && !f.sometimes && o.op.Key != nil {
		e, _ := evidence.Lookup("key-ignored")
		var ns []int
		for _, s := range append(slices.Clone(f.doubledBy), f.noKey) {
			ns = append(ns, s.n)
		}
		o.find(e.FindingOn(evidence.Established, e.Priority, string(plan.MissingKey), ns...))
	}
	under := func(root string, symptoms ...string) {
		i := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == root })
		if i < 0 {
			return
		}
		for _, id := range symptoms {
			k := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == id })
			if k < 0 || k == i {
				continue
			}
			s := o.ev.Findings[k]
			if s.Priority < o.ev.Findings[i].Priority {
				continue // it is worse than what it would stand under
			}
			r := &o.ev.Findings[i]
			r.Symptoms = append(r.Symptoms, evidence.Symptom{ID: s.ID, Title: s.Title, Basis: s.Basis, Experiment: s.Experiment, Sends: s.Sends})
			o.ev.Findings = slices.Delete(o.ev.Findings, k, k+1)
			i = slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == root })
		}
	}
	if o.doublesAnswered() {
		// What does not know a duplicate at all does not know it in a race, after
		// a loss or under another body either.
		all := []string{
			doubleRace, doubleInFlight, doubleLost, "mismatch-executed", "key-ignored", "missing-key-accepted",
			"malformed-key-accepted-unprotected", "rate-limit-is-not-idempotency", "outside-effect-doubled", "effects-disagree",
			"failure-not-repeatable",
		}
		under("webhook-redelivery-doubles", all...)
		under(doubleSequential, all...)
	}
	if !f.lapsed {
		under(doubleRace, doubleInFlight)
	}
	// Where the same request takes effect more than once at once, another one under
	// its key does for the same reason, unless it does one after the other too.
	if i := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == "mismatch-executed" }); i >= 0 &&
		o.ev.Findings[i].Experiment == string(plan.RaceAltered) && f.outcomes[plan.Altered] != evidence.Broken {
		under(doubleRace, "mismatch-executed")
	}
	slices.SortStableFunc(o.ev.Findings, func(a, b evidence.Finding) int { return cmp.Compare(a.Priority, b.Priority) })
}

// state says what is known and what cannot be.
func (o *operation) state() {
	say := func(field string, basis evidence.Basis, format string, args ...any) {
		o.ev.Statements = append(o.ev.Statements, evidence.Statement{Basis: basis, Text: fmt.Sprintf(format, args...), Field: field})
	}
	f, v := &o.facts, &o.ev.Verdict
	switch {
	case f.control:
		when := ""
		if o.latency > 0 {
			when = fmt.Sprintf(", %v after the answer at the latest", o.latency.Round(1e6))
		}
		say("", evidence.Established, "The effect of a fresh request was seen by %s%s.", o.seenBy(), when)
	case len(o.readers) == 0:
		say("", evidence.Unknowable, "The plan has no reader: nothing can be said about effects.")
	case o.sighted():
		say("", evidence.Established, "The effect of a fresh request was seen outside of the target's own state, by %s. No reader sees that state.", o.seenBy())
	default:
		say("", evidence.Unknowable, "No reader saw an effect in this run: about effects nothing is established.")
	}
	if v.IdempotencySupport == "header_key" && f.freshCreates == untold {
		say("idempotency_support", evidence.Inferred, "The replay is marked as one: it is taken for one by its key.")
	}
	switch {
	case f.operationApart == yes:
		say("key_scope_binding", evidence.Established, "The operation separates keys: %s under a used key took effect of its own.", o.op.OtherOperation)
	case f.operationApart == no:
		say("key_scope_binding", evidence.Established, "The operation does not separate keys: %s under a used key had no effect of its own.", o.op.OtherOperation)
	case f.actorApart == yes && f.tenantApart == yes:
		say("key_scope_binding", evidence.Inferred, "Tenant and actor separate keys. That the operation does too was not tried: it takes a second operation.")
	}
	if r := f.race; r != nil && v.RaceBehavior == "safe_converge" {
		what := ""
		if f.outsideBad {
			what = " This is of the target's own state, and not of what doubled outside."
		}
		say("race_behavior", evidence.Established, "Not seen to double in %s of %d requests. That leaves open a rate of up to %s, with 95 %% confidence.%s", times(r.Overlapped, "overlapping trial"), r.Width, evidence.Percent(r.Bound), what)
	}
	sign, basis := o.tellAtomicity()
	say("atomicity", basis, "%s", sign)
	if v.OutboxPattern == "unknown" {
		say("outbox_pattern", evidence.Unknowable, "Whether effects elsewhere follow the commit cannot be seen without a reader outside.")
	}
	if f.limited {
		say("", evidence.Established, "Some requests were refused with 429. That limits their rate, and says nothing about duplicates.")
	}
	o.untried()
}

// lost reports whether a connection was cut before an answer was there.
func (o *operation) lost() bool {
	return slices.ContainsFunc(o.ev.Experiments, func(e evidence.Experiment) bool {
		return (e.Name == string(plan.LostUnread) || e.Name == string(plan.LostBegun)) && slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Cut != "" })
	})
}

// untried says what was not tried, and what would try it.
func (o *operation) untried() {
	add := func(what, how string) {
		o.ev.Untried = append(o.ev.Untried, evidence.Untried{What: what, How: how})
	}
	ran := func(e plan.Experiment) bool {
		switch o.facts.outcomes[e] {
		case evidence.Held, evidence.Broken, evidence.Inconclusive:
			return true
		}
		return false
	}
	for _, group := range []struct {
		what string
		of   []plan.Experiment
	}{
		{"requests at the same time", []plan.Experiment{plan.RaceSame, plan.InFlight}},
		{"lost answers", []plan.Experiment{plan.LostUnread, plan.LostBegun}},
		{"a first attempt that fails", []plan.Experiment{plan.FailedFirst}},
		{"a duplicate after a while, or after another request", []plan.Experiment{plan.LateRetry, plan.Reordered}},
		{"another request under a used key", []plan.Experiment{plan.Altered}},
		{"another actor or tenant with a used key", []plan.Experiment{plan.OtherActor, plan.OtherTenant}},
		{"another instance of the target: duplicates that a load balancer sends elsewhere", []plan.Experiment{plan.OtherInstance}},
		{"another operation under the same key", []plan.Experiment{plan.OtherOperation}},
	} {
		if slices.ContainsFunc(group.of, ran) {
			if group.of[0] == plan.LostUnread && !o.lost() {
				add(group.what, "a target that is slower to answer, or further away: here each answer was there before the connection could be cut")
			}
			continue
		}
		var can []string
		how := ""
		for _, e := range group.of {
			err := o.applies(e)
			switch {
			case err != nil:
				how = cmp.Or(how, err.Error())
			case o.r.production() && e.NeverInProduction():
				how = cmp.Or(how, "refused in production: try a test target")
			default:
				can = append(can, string(e))
			}
		}
		if len(can) > 0 {
			how = "--full, or --only " + strings.Join(can, ",")
		}
		if o.op.Key == nil && (group.of[0] == plan.Altered || group.of[0] == plan.OtherActor && len(can) == 0) {
			continue // there is no key to be used
		}
		if group.of[0] == plan.OtherOperation && (o.op.Key == nil || o.op.Signature != nil) {
			continue
		}
		add(group.what, how)
	}
	if s := o.facts.specified; s != nil && s.preview != "" && o.op.Preview == nil {
		add("the target's own dry run, which the specification seems to name: "+s.preview, "a preview in the plan; it is tried before anything that has effects")
	}
	if o.r.p.Principals.ActorA != nil && !o.facts.renewed {
		add("a session that expired, or was renewed, between the two", "a step that signs in, with valid or expires_in shorter than the run")
	}
	f := &o.facts
	if o.ev.Verdict.IdempotencySupport == "unknown" && f.once && f.outcomes[plan.FreshKey] == "" {
		add("whether the duplicate that had no second effect was known by its key or by its content", "--full, or --only duplicate,fresh_key")
	}
	if f.audit == "" {
		add("whether an audit trail has the request", "audit in the plan")
	}
	add("a crash of the target between effect and record", "a crash made by hand, for the probe makes none")
}
