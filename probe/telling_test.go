package probe

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// told is an operation of which it is known what its experiments came to.
func told(t *testing.T, o Options, change func(*plan.Plan), controls int, list ...evidence.Experiment) *operation {
	t.Helper()
	p := &plan.Plan{
		Version: 1, Name: "told", Target: plan.Target{Allow: []string{"127.0.0.1:1"}, Production: new(false)},
		Operations: []plan.Operation{{
			Name:    "make",
			Request: plan.Request{Method: "POST", URL: "http://127.0.0.1:1/", Body: &plan.Body{JSON: plan.JSON(`{"a":"{{hex 16}}"}`)}},
			Key:     &plan.Key{Header: "Idempotency-Key"},
			Altered: &plan.Alteration{Body: &plan.Body{JSON: plan.JSON(`{"a":2}`)}},
		}},
	}
	if change != nil {
		change(p)
	}
	o.Source.Env = func(string) (string, bool) { return "a-secret-of-some-length", true }
	r, err := newRunner(p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	op := r.newOperation(&r.p.Operations[0])
	op.facts.controls = controls
	for _, e := range list {
		op.ev.Experiments = append(op.ev.Experiments, e)
		op.facts.outcomes[plan.Experiment(e.Name)] = e.Outcome
	}
	return op
}

// What was not tried is told by what was sent, and what would try it by why it
// was not.
func TestUntried(t *testing.T) {
	ex := func(name plan.Experiment, outcome evidence.Outcome, why string, sends ...evidence.Send) evidence.Experiment {
		return evidence.Experiment{Name: string(name), Outcome: outcome, Why: why, Sends: sends}
	}
	second := func(e evidence.Experiment) evidence.Experiment { e.Second = &evidence.Second{}; return e }
	const over = "the run had ended: the plan's time is over (budget.max_time)"
	refused := evidence.Send{Role: "control", Status: 403}
	keyless := func(p *plan.Plan) { p.Operations[0].Key = nil }
	token := func(value string) func(*plan.Plan) {
		return func(p *plan.Plan) {
			p.Principals.ActorA = &plan.Principal{Headers: plan.Header{{Name: "Authorization", Value: value}}}
		}
	}
	for name, c := range map[string]struct {
		o        Options
		change   func(*plan.Plan)
		controls int
		list     []evidence.Experiment
		what     string
		how      string // of what; empty: it is not in the list
	}{
		"a run that ended before": {
			o: Options{Full: true}, controls: 1,
			list: []evidence.Experiment{ex(plan.InFlight, evidence.NotRun, over), ex(plan.RaceSame, evidence.NotRun, over)},
			what: "requests at the same time", how: "the run ended before it, for the plan's time is over (budget.max_time): raise budget.max_time, or --only race,in_flight",
		},
		"a run that ended within": {
			controls: 1,
			list:     []evidence.Experiment{ex(plan.LateRetry, evidence.Inconclusive, "the run ended: wire: budget of sends is used up", evidence.Send{Role: "first", Status: 201})},
			what:     "a duplicate after a while", how: "raise budget.max_sends or budget.max_reads, or --only late_retry",
		},
		"lost, and fresh requests refused": {
			list: []evidence.Experiment{ex(plan.LostUnread, evidence.Inconclusive, "the first request did not succeed: 403", refused)},
			what: "lost responses", how: "the run did not get to it: a fresh request did not succeed",
		},
		"a race, and fresh requests refused": {
			list: []evidence.Experiment{ex(plan.RaceSame, evidence.Inconclusive, "the first request did not succeed: 403", refused)},
			what: "requests at the same time", how: "the run did not get to it: a fresh request did not succeed",
		},
		"a late duplicate, and no reader that sees": {
			controls: 1,
			list:     []evidence.Experiment{ex(plan.LateRetry, evidence.Inconclusive, "no reader sees the effect", evidence.Send{Role: "first", Status: 201})},
			what:     "a duplicate after a while", how: "the run did not get to it: no reader sees the effect",
		},
		"a response too early to be lost": {
			controls: 1,
			list:     []evidence.Experiment{ex(plan.LostUnread, evidence.Held, "none was lost", evidence.Send{Role: "first", Status: 201})},
			what:     "lost responses", how: "before the connection could be cut",
		},
		"a lost response": {
			controls: 1,
			list:     []evidence.Experiment{ex(plan.LostUnread, evidence.Held, "1 effect", evidence.Send{Role: "first", Cut: "here"})},
			what:     "lost responses",
		},
		"a race that showed nothing": {
			controls: 1,
			list:     []evidence.Experiment{ex(plan.RaceSame, evidence.Inconclusive, "no reader", evidence.Send{Role: "race", Status: 201})},
			what:     "requests at the same time",
		},
		"a first attempt that was cut off": {
			controls: 1,
			list:     []evidence.Experiment{ex(plan.FailedFirst, evidence.Held, "so it did not run", evidence.Send{Role: "first", Cut: "before"}, evidence.Send{Role: "duplicate", Status: 201})},
			what:     "a first attempt that fails", how: "FailFirst",
		},
		"a first attempt that failed": {
			controls: 1,
			list:     []evidence.Experiment{second(ex(plan.FailedFirst, evidence.Held, "1 effect", evidence.Send{Role: "first", Status: 500}))},
			what:     "a first attempt that fails",
		},
		"a default run, without a key":    {what: "requests without a key", how: "--full, or --only missing_key"},
		"a default run, malformed":        {what: "malformed keys", how: "--full, or --only malformed_key"},
		"a default run, other bytes":      {what: "the same meaning in other bytes", how: "--full, or --only same_meaning"},
		"a default run, corrected":        {what: "a request that was refused as invalid, corrected", how: "invalid"},
		"a default run, retention":        {what: "how long a request is recognised", how: "target.retention_search"},
		"no key, requests without":        {change: keyless, what: "requests without a key"},
		"no key, altered":                 {change: keyless, what: "another request for the same thing", how: "--full, or --only altered"},
		"no key, another tenant":          {change: keyless, what: "the same request by another tenant", how: "principals.tenant_b"},
		"no key, another actor":           {change: keyless, what: "another actor with a used key"},
		"malformed means nothing":         {list: []evidence.Experiment{ex(plan.MalformedKey, evidence.NotApplicable, "no key protects here")}, what: "malformed keys"},
		"left out":                        {o: Options{Full: true, Skip: []plan.Experiment{plan.MissingKey}}, what: "requests without a key", how: "without --skip missing_key"},
		"in production, --full adds none": {o: Options{Full: true}, change: func(p *plan.Plan) { p.Target.Production = new(true) }, what: "requests without a key", how: "--only missing_key"},
		"in production, races":            {change: func(p *plan.Plan) { p.Target.Production = new(true) }, what: "requests at the same time", how: "refused in production"},
		"another actor, beside a tenant": {
			controls: 1,
			list: []evidence.Experiment{
				ex(plan.OtherActor, evidence.NotApplicable, "the plan says nothing under principals.actor_b"),
				ex(plan.OtherTenant, evidence.Held, "", evidence.Send{Role: "other-tenant", Status: 409}),
			},
			what: "another actor with a used key", how: "principals.actor_b",
		},
		"reordered, beside a late duplicate": {
			controls: 1, list: []evidence.Experiment{second(ex(plan.LateRetry, evidence.Held, "1 effect"))},
			what: "an older request again after a newer one", how: "--only reordered",
		},
		"basic credentials, a session": {change: token(`Basic {{env "T"}}`), what: "a session that expired, or was renewed, between the two"},
		"basic credentials, a token":   {change: token(`Basic {{env "T"}}`), what: "credentials that change between the two, such as a token that is renewed"},
		"a token":                      {change: token(`Bearer {{env "T"}}`), what: "credentials that change between the two, such as a token that is renewed", how: "a step that signs in"},
		"a step that signs in": {
			change: func(p *plan.Plan) {
				p.Principals.ActorA = &plan.Principal{Headers: plan.Header{{Name: "X-Session", Value: "{{.session}}"}}}
				p.Steps = []plan.Step{{Name: "sign-in", Each: "principal", Request: plan.Request{Method: "POST", URL: "http://127.0.0.1:1/"}, Take: []plan.Taking{{Name: "session", Pointer: new(plan.Pointer("/s"))}}}}
			},
			what: "a session that expired, or was renewed, between the two", how: "valid or expires_in",
		},
	} {
		o := told(t, c.o, c.change, c.controls, c.list...)
		o.untried()
		got := ""
		for _, u := range o.ev.Untried {
			if u.What == c.what {
				got = u.How
			}
		}
		if (got == "") != (c.how == "") || !strings.Contains(got, c.how) || strings.HasPrefix(c.how, "--only") && c.o.Full && got != c.how {
			t.Errorf("%s: of %q it says %q, want %q", name, c.what, got, c.how)
		}
	}
}

// An altered request that took effect in a race follows from the race, unless it
// takes effect after the other as well: not if it was answered as a replay there.
func TestAlteredInARaceIsASymptom(t *testing.T) {
	for name, c := range map[string]struct {
		executed []int // the sends that mismatch-executed rests on
		want     int   // findings that are left
	}{
		"replayed one after the other": {[]int{7, 8}, 1},
		"executed one after the other": {[]int{1, 2, 7, 8}, 2},
	} {
		o := told(t, Options{}, nil, 1,
			evidence.Experiment{Name: "altered", Outcome: evidence.Broken, Sends: []evidence.Send{{N: 1}, {N: 2}}},
			evidence.Experiment{Name: "race", Outcome: evidence.Broken, Sends: []evidence.Send{{N: 5}, {N: 6}}},
			evidence.Experiment{Name: "race_altered", Outcome: evidence.Broken, Sends: []evidence.Send{{N: 7}, {N: 8}}})
		for id, sends := range map[evidence.FindingID][]int{evidence.FindingDoubleEffectRace: {5, 6}, "mismatch-executed": c.executed} {
			e, _ := evidence.Lookup(id)
			of := map[bool]string{true: "race", false: "race_altered"}[id == evidence.FindingDoubleEffectRace]
			o.find(e.FindingOn(evidence.Established, e.Priority, of, sends...))
		}
		o.gather()
		if len(o.ev.Findings) != c.want {
			t.Errorf("%s: %d findings are left, want %d: %+v", name, len(o.ev.Findings), c.want, o.ev.Findings)
		}
	}
}

// A retry after a loss that was executed follows from the race as long as the
// first may have been running; not once the first had had its effect.
func TestLossOfWhatRanIsASymptom(t *testing.T) {
	for name, c := range map[string]struct {
		after bool
		root  evidence.FindingID
		want  int
	}{
		"it may have run, a race":        {false, evidence.FindingDoubleEffectRace, 1},
		"it may have run, a retry":       {false, evidence.FindingInFlightExecuted, 1},
		"it had had its effect, a race":  {true, evidence.FindingDoubleEffectRace, 2},
		"it had had its effect, a retry": {true, evidence.FindingInFlightExecuted, 2},
	} {
		o := told(t, Options{}, nil, 1)
		o.facts.lostAfter = c.after
		for i, id := range []evidence.FindingID{c.root, evidence.FindingDoubleEffectLostResponse} {
			e, _ := evidence.Lookup(id)
			o.find(e.FindingOn(evidence.Established, e.Priority, []string{"race", "lost_unread"}[i], 2*i+1, 2*i+2))
		}
		o.gather()
		if len(o.ev.Findings) != c.want {
			t.Errorf("%s: %d findings are left, want %d: %+v", name, len(o.ev.Findings), c.want, o.ev.Findings)
		}
	}
}
