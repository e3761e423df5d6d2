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
		e, _ := evidence.Lookup(evidence.FindingKeyIgnored)
		var ns []int
		for _, s := range append(slices.Clone(f.doubledBy), f.noKey) {
			ns = append(ns, s.n)
		}
		o.find(e.FindingOn(evidence.Established, e.Priority, string(plan.MissingKey), ns...))
	}
	under := func(root evidence.FindingID, symptoms ...evidence.FindingID) {
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
		// A target that does not recognise a duplicate at all does not recognise it
		// in a race, after a loss or with another body either.
		all := []evidence.FindingID{
			evidence.FindingDoubleEffectRace, evidence.FindingInFlightExecuted, evidence.FindingDoubleEffectLostResponse, evidence.FindingMismatchExecuted, evidence.FindingKeyIgnored, evidence.FindingMissingKeyAccepted,
			evidence.FindingMalformedKeyAcceptedUnprotected, evidence.FindingRateLimitIsNotIdempotency, evidence.FindingOutsideEffectDoubled, evidence.FindingEffectsDisagree,
			evidence.FindingFailureNotRepeatable,
		}
		under(evidence.FindingWebhookRedeliveryDoubles, all...)
		under(evidence.FindingDoubleEffectSequential, all...)
	}
	if !f.lapsed {
		under(evidence.FindingDoubleEffectRace, evidence.FindingInFlightExecuted)
	}
	// A retry of a request that was still running is a race of two.
	if !f.lostAfter {
		under(evidence.FindingDoubleEffectRace, evidence.FindingDoubleEffectLostResponse)
		under(evidence.FindingInFlightExecuted, evidence.FindingDoubleEffectLostResponse)
	}
	// If the same request takes effect more than once in a race, another request
	// under its key does for the same reason, unless it also does when sent later.
	if i := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == evidence.FindingMismatchExecuted }); i >= 0 &&
		o.ev.Findings[i].Experiment == string(plan.RaceAltered) && !o.shows(plan.Altered, o.ev.Findings[i]) {
		under(evidence.FindingDoubleEffectRace, evidence.FindingMismatchExecuted)
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
			when = fmt.Sprintf(", %v after the response at the latest", o.latency.Round(1e6))
		}
		say("", evidence.Established, "The effect of a fresh request was seen by %s%s.", o.seenBy(), when)
	case len(o.readers) == 0:
		say("", evidence.Unknowable, "The plan has no reader: nothing can be said about effects.")
	case o.sighted():
		say("", evidence.Established, "The effect of a fresh request was seen outside of the target's own state, by %s. No reader sees that state.", o.seenBy())
	default:
		say("", evidence.Unknowable, "No reader saw an effect in this run, so nothing is established about effects.")
	}
	if v.IdempotencySupport == "header_key" && f.freshCreates == untold {
		say("idempotency_support", evidence.Inferred, "The replay is marked as one, so it is taken to be recognised by its key.")
	}
	switch {
	case f.operationApart == yes:
		say("key_scope_binding", evidence.Established, "The operation separates keys: %s under a used key had an effect of its own.", o.op.OtherOperation)
	case f.operationApart == no:
		say("key_scope_binding", evidence.Established, "The operation does not separate keys: %s under a used key had no effect of its own.", o.op.OtherOperation)
	case f.actorApart == yes && f.tenantApart == yes:
		say("key_scope_binding", evidence.Inferred, "Tenant and actor separate keys. Whether the operation does too was not tried: that takes a second operation.")
	}
	if r := f.race; r != nil && v.RaceBehavior == "safe_converge" {
		what := ""
		if f.outsideBad {
			what = " This is about the target's own state, not about what doubled outside."
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

// shows reports whether a finding rests on a send of an experiment.
func (o *operation) shows(name plan.Experiment, f evidence.Finding) bool {
	e := o.experiment(name)
	return e != nil && slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return slices.Contains(f.Sends, s.N) })
}

// experiment returns the record of an experiment, nil if it was left out.
func (o *operation) experiment(name plan.Experiment) *evidence.Experiment {
	i := slices.IndexFunc(o.ev.Experiments, func(e evidence.Experiment) bool { return e.Name == string(name) })
	if i < 0 {
		return nil
	}
	return &o.ev.Experiments[i]
}

// asks are the roles of the sends that an experiment is about, if sends with
// other roles go before them.
var asks = map[plan.Experiment][]evidence.Role{
	plan.RaceSame: {evidence.RoleRace}, plan.RaceAltered: {evidence.RoleRace}, plan.InFlight: {evidence.RoleFirst}, plan.Altered: {evidence.RoleAltered},
	plan.MissingKey: {evidence.RoleWithoutKey}, plan.MalformedKey: {evidence.RoleMalformedKey}, plan.OtherActor: {evidence.RoleOtherActor}, plan.OtherTenant: {evidence.RoleOtherTenant},
	plan.OtherInstance: {evidence.RoleOtherInstance}, plan.OtherOperation: {evidence.RoleOtherOperation}, plan.SameMeaning: {evidence.RoleRewritten}, plan.Corrected: {evidence.RoleCorrected},
	plan.Redelivery: {"signed-anew", evidence.RoleStale, evidence.RoleForged},
}

// tried reports whether an experiment got as far as its question, whatever the
// answer.
func (o *operation) tried(name plan.Experiment) bool {
	e := o.experiment(name)
	if e == nil {
		return false
	}
	switch name {
	case plan.LostUnread, plan.LostBegun:
		return slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Cut != "" })
	case plan.FailedFirst:
		return e.Second != nil || o.ev.Failed() // of one that was cut off nothing is compared
	}
	if roles := asks[name]; roles != nil {
		return slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return slices.Contains(roles, s.Role) })
	}
	return e.Second != nil
}

// hinders says what an experiment that applies lacks to be run; empty if nothing.
func (o *operation) hinders(name plan.Experiment) string {
	switch {
	case o.r.production() && name.NeverInProduction():
		return "refused in production: try a test target"
	case slices.Contains(o.r.o.Skip, name):
		return "a run without --skip " + string(name)
	case name == plan.FailedFirst && o.r.o.FailFirst == nil && (len(o.op.Experiments) != 1 || o.op.Experiments[0] != name):
		return "a target that is made to fail (FailFirst, in Go), or an operation whose request fails at first and whose only experiment is failed_first: otherwise that experiment cuts the request off before its last byte, so it does not run"
	}
	return ""
}

// stopped says why an experiment that was begun did not get as far as its
// question, or with ended, why the run ended before it; empty if it was not to
// be run.
func (o *operation) stopped(name plan.Experiment) (why string, ended bool) {
	e := o.experiment(name)
	if e == nil {
		return "", false
	}
	for _, over := range []string{"the run had ended: ", "the run ended: "} {
		if _, why, ok := strings.Cut(e.Why, over); ok {
			return why, true
		}
	}
	has := func(is func(evidence.Send) bool) bool { return slices.ContainsFunc(e.Sends, is) }
	switch {
	case e.Outcome == evidence.NotRun:
		return "", false
	case (name == plan.LostUnread || name == plan.LostBegun) && has(func(s evidence.Send) bool { return s.Role == evidence.RoleFirst && s.Status > 0 }):
		return "a target that is slower to answer, or further away: here each response was there before the connection could be cut", false
	case o.facts.controls == 0 && name != plan.OtherOperation && name != plan.FailedFirst &&
		has(func(s evidence.Send) bool {
			return slices.Contains([]evidence.Role{evidence.RoleFirst, evidence.RoleControl, evidence.RoleGround}, s.Role)
		}):
		return "the run did not get to it: a fresh request did not succeed", false
	}
	return "the run did not get to it: " + e.Why, false
}

// untried says what was not tried, and what would try it.
func (o *operation) untried() {
	add := func(what, how string) {
		o.ev.Untried = append(o.ev.Untried, evidence.Untried{What: what, How: how})
	}
	// keyed returns its first argument if there is a key, else its second. A group
	// without words does not apply to the operation.
	keyed := func(keyed, bare string) string {
		if o.op.Key == nil {
			return bare
		}
		return keyed
	}
	event := o.op.Signature != nil
	for _, group := range []struct {
		what string
		of   []plan.Experiment // one of them is enough
	}{
		{"requests at the same time", []plan.Experiment{plan.RaceSame, plan.InFlight}},
		{"lost responses", []plan.Experiment{plan.LostUnread, plan.LostBegun}},
		{"a first attempt that fails", []plan.Experiment{plan.FailedFirst}},
		{keyed("requests without a key", ""), []plan.Experiment{plan.MissingKey}},
		{"a duplicate after a while", []plan.Experiment{plan.LateRetry}},
		{keyed("another request under a used key", "another request for the same thing"), []plan.Experiment{plan.Altered}},
		{keyed("another tenant with a used key", "the same request by another tenant"), []plan.Experiment{plan.OtherTenant}},
		{keyed("another actor with a used key", ""), []plan.Experiment{plan.OtherActor}},
		{"an older request again after a newer one", []plan.Experiment{plan.Reordered}},
		{map[bool]string{true: "an event that is signed anew, stale or altered"}[event], []plan.Experiment{plan.Redelivery}},
		{"another instance of the target: duplicates that a load balancer sends elsewhere", []plan.Experiment{plan.OtherInstance}},
		{map[bool]string{false: keyed("another operation under the same key", "")}[event], []plan.Experiment{plan.OtherOperation}},
		{keyed("a request and its alteration at the same time", ""), []plan.Experiment{plan.RaceAltered}},
		{keyed("malformed keys", ""), []plan.Experiment{plan.MalformedKey}},
		{map[bool]string{true: "the same meaning in other bytes"}[o.applies(plan.SameMeaning) == nil], []plan.Experiment{plan.SameMeaning}},
		{keyed("a request that was refused as invalid, corrected", ""), []plan.Experiment{plan.Corrected}},
		{"how long a request is recognised", []plan.Experiment{plan.RetentionSearch, plan.RetentionEdge}},
	} {
		if group.what == "" || slices.ContainsFunc(group.of, o.tried) {
			continue
		}
		var can []string
		lacks, why, end, void := "", "", "", true
		for _, name := range group.of {
			err := o.applies(name)
			if e := o.experiment(name); err != nil || e == nil || e.Outcome != evidence.NotApplicable {
				void = false // else it was begun, and there is nothing of the kind
			}
			if err != nil {
				lacks = cmp.Or(lacks, err.Error())
			} else if by := o.hinders(name); by != "" {
				lacks = cmp.Or(by, lacks)
			} else {
				can = append(can, string(name))
				if what, ended := o.stopped(name); ended {
					end = cmp.Or(end, what)
				} else {
					why = cmp.Or(why, what)
				}
			}
		}
		how, names := lacks, strings.Join(can, ",")
		switch {
		case void:
			continue
		case end != "":
			how = "the run ended before it, for " + end + ": "
			switch {
			case strings.Contains(end, "budget.max_time"):
				how += "raise budget.max_time, or "
			case strings.Contains(end, "budget of sends"): // readers have one too
				how += "raise budget.max_sends or budget.max_reads, or "
			}
			how += "--only " + names
		case why != "":
			how = why
		case len(can) > 0 && o.r.production():
			how = "--only " + names // --full adds none there
		case len(can) > 0:
			how = "--full, or --only " + names
		}
		add(group.what, how)
	}
	if s := o.facts.specified; s != nil && s.preview != "" && o.op.Preview == nil {
		add("the target's own dry run, which the specification seems to name: "+s.preview, "a preview in the plan; it is tried before anything that has effects")
	}
	if what := o.credentials(); what != "" && !o.facts.renewed {
		add(what, "a step that signs in, with valid or expires_in shorter than the run")
	}
	f := &o.facts
	if o.ev.Verdict.IdempotencySupport == "unknown" && f.once && f.outcomes[plan.FreshKey] == "" {
		add("whether the duplicate that had no second effect was recognised by its key or by its content", "--full, or --only duplicate,fresh_key")
	}
	if f.audit == "" {
		add("whether an audit trail has the request", "audit in the plan")
	}
	add("a crash of the target between effect and record", "a crash caused by hand, because the probe causes none")
}

// credentials says which credentials may change between a request and its
// repetition; empty if nothing shows that they do.
func (o *operation) credentials() string {
	if slices.ContainsFunc(o.r.r.Steps(o.op, "principal"), func(s *plan.Step) bool { return len(s.Take) > 0 }) {
		return "a session that expired, or was renewed, between the two"
	}
	a := o.r.p.Principals.ActorA
	if a == nil {
		return ""
	}
	token := func(h plan.Pair) bool {
		scheme, _, _ := strings.Cut(h.Value, " ")
		return strings.EqualFold(h.Name, "Authorization") && strings.EqualFold(scheme, "Bearer")
	}
	if len(a.Cookies) > 0 || slices.ContainsFunc(a.Headers, token) {
		return "credentials that change between the two, such as a token that is renewed"
	}
	return ""
}
