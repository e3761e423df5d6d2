package targets

import (
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Marker is the header with which most targets mark replays.
const Marker = "Idempotency-Replayed"

// Findings that follow from having no protection at all.
var unprotected = []evidence.FindingID{
	"double-effect-sequential", "double-effect-race", "double-effect-lost-response", "in-flight-executed", "mismatch-executed",
	"key-ignored", "missing-key-accepted", "malformed-key-accepted-unprotected", "replay-differs", "replay-unmarked",
	"failure-not-repeatable",
}

var (
	all = []plan.Experiment{
		plan.Specification, plan.Duplicate, plan.FreshKey, plan.LateRetry, plan.Altered, plan.MissingKey, plan.MalformedKey,
		plan.OtherActor, plan.OtherTenant, plan.InFlight, plan.RaceSame, plan.LostUnread, plan.LostBegun, plan.FailedFirst,
	}
	// A natural key belongs to the tenant: another actor is refused with
	// right, and there is no key to be missing, malformed or reused.
	forNatural = []plan.Experiment{
		plan.Specification, plan.Duplicate, plan.LateRetry, plan.OtherTenant, plan.InFlight, plan.RaceSame, plan.LostUnread,
		plan.LostBegun, plan.FailedFirst,
	}
	forHooks = []plan.Experiment{plan.Specification, plan.Duplicate, plan.RaceSame, plan.LostUnread, plan.LostBegun, plan.Redelivery}
)

type outcomes = map[plan.Experiment]evidence.Outcome

type verdict = map[string][]string

const (
	held         = evidence.Held
	broken       = evidence.Broken
	inconclusive = evidence.Inconclusive
)

// allHeld is what a target that is right in everything comes to.
func allHeld() outcomes {
	return outcomes{
		plan.Duplicate: held, plan.FreshKey: held, plan.LateRetry: held, plan.Altered: held, plan.OtherTenant: held, plan.RaceSame: held,
		plan.LostUnread: held,
	}
}

func rightVerdict() verdict {
	return verdict{
		"idempotency_support": {"header_key"}, "result_replay": {"same_response"}, "in_progress_handling": {"yes"},
		"atomicity": {"unknown"}, "race_behavior": {"safe_converge"}, "outbox_pattern": {"unknown"},
		"retry_behavior": {"safe_stop"}, "audit_strength": {"strong"},
	}
}

// verdict sets the accepted values of fields, given as pairs of a name and
// values with a bar between.
func (t Target) verdict(pairs ...string) Target {
	v := verdict{}
	for i := 0; i+1 < len(pairs); i += 2 {
		v[pairs[i]] = strings.Split(pairs[i+1], "|")
	}
	t.Expect.Verdict = v
	return t
}

// All returns every target, the wrong ones first.
func All() []Target {
	list := append(append(wrong(), wrongInTheWorld()...), append(right(), rightInTheWorld()...)...)
	for i := range list {
		t := &list[i]
		if t.Experiments == nil {
			t.Experiments = all
		}
	}
	return list
}

// draft is an API by the draft, with whatever the rules say differently.
func draft(name, about string, r rules) Target {
	if r.keyHeader == "" {
		r.keyHeader = "Idempotency-Key"
	}
	if r.marker == "" {
		r.marker = Marker
	}
	return orders(name, about, &plan.Key{Header: r.keyHeader},
		plan.Contract{Profile: "ietf", ReplayHeader: Marker, RecordsErrors: new(true)}, r)
}

func orders(name, about string, key *plan.Key, c plan.Contract, r rules) Target {
	return Target{
		Name: name, About: about, Key: key, Contract: c, mails: r.mails,
		make: func() *Service {
			a := newAPI(r)
			return newService(&a.shop, a.handler())
		},
	}
}

func receiver(name, about string, with hookRules) Target {
	return Target{
		Name: name, About: about, Key: &plan.Key{Header: "webhook-id", Value: "msg_{{hex 24}}"},
		Contract:    plan.Contract{Profile: "custom", Missing: []int{400}, Mismatch: []int{422}},
		Experiments: forHooks, webhook: true,
		make: func() *Service {
			h := &hooks{hookRules: with}
			return newService(&h.shop, h.handler())
		},
	}
}

// finds makes a target wrong.
func (t Target) finds(must ...evidence.FindingID) Target {
	t.Wrong = true
	t.Expect.Must = must
	return t
}

func (t Target) may(ids ...evidence.FindingID) Target {
	for _, id := range ids {
		if !slices.Contains(t.Expect.Must, id) {
			t.Expect.May = append(t.Expect.May, id)
		}
	}
	return t
}

func (t Target) outcome(pairs outcomes) Target {
	t.Expect.Outcomes = pairs
	return t
}

func (t Target) needsFail() Target {
	t.NeedsFail = true
	return t
}

func wrong() []Target {
	limiter := draft("rate-limiter", "keeps duplicates away only as long as its rate limit refuses the same body",
		rules{keyless: true, optional: true, window: 700 * time.Millisecond}).
		finds("rate-limit-is-not-idempotency").may(unprotected...).
		verdict("retry_behavior", "unsafe_retry|unknown", "race_behavior", "unknown|double_apply")
	limiter.lateAfter = time.Second

	silent := draft("no-audit", "is right, and writes no audit log", rules{}).
		finds("audit-missing").verdict("audit_strength", "weak")
	silent.make = func() *Service {
		a := newAPI(rules{keyHeader: "Idempotency-Key", marker: Marker})
		a.silent = true
		return newService(&a.shop, a.handler())
	}
	unmarked := draft("replay-unmarked", "does not mark replays, although its contract says so", rules{marker: "X-Other"}).
		finds("replay-unmarked").outcome(outcomes{plan.RaceSame: held, plan.LostUnread: held})

	return []Target{
		draft("ignores-key", "does not look at the key", rules{keyless: true, optional: true}).
			finds("double-effect-sequential", "key-ignored").may(unprotected...).
			outcome(outcomes{plan.Duplicate: broken, plan.RaceSame: broken, plan.LostUnread: broken}).
			verdict("idempotency_support", "none", "race_behavior", "double_apply", "retry_behavior", "unsafe_retry", "result_replay", "unstable|unknown"),
		draft("check-then-act", "looks for the key, acts, records: two that look at the same time both act",
			rules{flow: checkThenAct, takes: time.Millisecond}).
			finds("double-effect-race", "in-flight-executed").may("double-effect-lost-response", "replay-differs").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: broken, plan.InFlight: broken}).
			verdict("race_behavior", "double_apply", "in_progress_handling", "no"),
		draft("check-then-act-slowly", "looks for the key, works for a second, acts, records",
			rules{flow: checkThenAct, takes: time.Second}).
			finds("double-effect-race", "in-flight-executed").may("double-effect-lost-response", "replay-differs").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: broken, plan.InFlight: broken, plan.LostUnread: broken}).
			causes(map[string]evidence.CauseState{"check-then-act": supported, "tied-to-client": "not supposed"}).
			verdict("race_behavior", "double_apply", "in_progress_handling", "no"),
		draft("check-then-queue", "looks for the key, then waits for its turn: nothing overlaps, and whoever has looked acts",
			rules{flow: checkThenQueue}).
			finds("double-effect-race", "in-flight-executed").may("double-effect-lost-response", "replay-differs").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: broken, plan.InFlight: broken}).
			verdict("race_behavior", "double_apply", "in_progress_handling", "no"),
		draft("record-needs-client", "forgets the key if the client goes away before the response, with the order made",
			rules{flow: untilCut}).
			finds("double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: held, plan.LostUnread: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		draft("record-after-answer", "records when the whole response has been taken",
			rules{flow: afterResponse}).
			finds("double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: held, plan.LostUnread: broken, plan.LostBegun: broken}).
			causes(map[string]evidence.CauseState{"tied-to-client": supported}).
			verdict("retry_behavior", "unsafe_retry"),
		draft("mark-before-success", "records success first, and drops the work if the client goes away",
			rules{flow: markFirst}).
			finds("lost-effect").
			outcome(outcomes{plan.Duplicate: held, plan.LostUnread: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		draft("cut-blocks-key", "leaves the key in progress for ever if the client goes away, with nothing done",
			rules{flow: stuckWhenCut}).
			finds("failure-blocks-key").
			outcome(outcomes{plan.Duplicate: held, plan.LostUnread: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		draft("same-answer-twice-done", "answers duplicates to the byte like the first, and makes the order again",
			rules{again: true}).
			finds("double-effect-sequential").may("double-effect-race", "double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: broken, plan.LateRetry: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		draft("doubled-later", "answers duplicates from the record, and has a worker make the order again a while later",
			rules{againLater: true}).
			finds("double-effect-sequential").may("double-effect-race", "double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		draft("another-id-each-time", "makes one order, and names another id in each replay",
			rules{newNames: true}).
			finds("replay-differs").
			outcome(outcomes{plan.Duplicate: broken}).
			verdict("result_replay", "unstable"),
		draft("keys-of-everybody", "shares keys between tenants",
			rules{scope: byNobody}).
			finds("key-not-scoped-tenant").may("key-not-scoped-actor").
			outcome(outcomes{plan.Duplicate: held, plan.OtherTenant: broken}).
			verdict("key_scope_binding", "weak"),
		draft("keys-of-tenant", "shares keys between the actors of a tenant",
			rules{scope: byTenant}).
			finds("key-not-scoped-actor").
			outcome(outcomes{plan.Duplicate: held, plan.OtherActor: broken, plan.OtherTenant: held}).
			verdict("key_scope_binding", "partial|weak"),
		draft("mismatch-executes", "executes another request under a used key",
			rules{noCompare: executes}).
			finds("mismatch-executed").
			outcome(outcomes{plan.Duplicate: held, plan.Altered: broken, plan.RaceSame: held}),
		draft("mismatch-replays", "answers another request under a used key with the first one's result",
			rules{noCompare: replays}).
			finds("mismatch-replayed-as-same").
			outcome(outcomes{plan.Duplicate: held, plan.Altered: broken, plan.RaceSame: held}),
		draft("mismatch-leaks", "quotes the stored request and result in the refusal of another request",
			rules{leaks: true}).
			finds("conflict-leaks-payload").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: held}),
		draft("in-flight-new-key", "tells a duplicate of a running request to take a new key",
			rules{inFlight: newKey}).
			finds("in-flight-error-invites-new-key").
			outcome(outcomes{plan.Duplicate: held, plan.InFlight: broken}),
		draft("unique-violation-leaks", "answers duplicates with the 500 of a unique constraint",
			rules{violates: true, inFlight: waits}).
			finds("unstable-5xx-on-duplicate").may("replay-differs").
			outcome(outcomes{plan.Duplicate: broken}).
			verdict("result_replay", "unstable"),
		draft("failure-blocks-key", "leaves the key in progress for ever when making the order fails",
			rules{stuck: true}).
			finds("failure-blocks-key").needsFail().
			outcome(outcomes{plan.Duplicate: held, plan.FailedFirst: broken}),
		draft("failure-forgotten", "executes again after a final error, although its contract says that errors are recorded",
			rules{forgets: true}).
			finds("failure-not-repeatable").needsFail().
			outcome(outcomes{plan.Duplicate: held, plan.FailedFirst: broken}),
		draft("failure-after-effect", "makes the order, answers with an error and drops the record",
			rules{effectFails: true}).
			finds("double-effect-sequential").may("failure-not-repeatable").needsFail().
			outcome(outcomes{plan.Duplicate: held, plan.FailedFirst: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		limiter,
		draft("malformed-key-runs", "takes a malformed key for none, and runs",
			rules{malformedRun: true}).
			finds("malformed-key-accepted-unprotected").
			outcome(outcomes{plan.Duplicate: held, plan.MalformedKey: broken}),
		draft("missing-key-runs", "runs without a key, although its contract requires one",
			rules{optional: true}).
			finds("missing-key-accepted").
			outcome(outcomes{plan.Duplicate: held, plan.MissingKey: broken}),
		draft("mails-twice", "makes one order, and mails again with each replay",
			rules{mails: true, mailAgain: true}).
			finds("outside-effect-doubled").
			outcome(outcomes{plan.Duplicate: broken}).
			verdict("outbox_pattern", "no"),
		unmarked,
		silent,
		draft("no-specification", "is right, and says nothing of keys",
			rules{specified: noKeys}).
			finds("no-specification").may("retention-not-published"),
		draft("retention-not-published", "is right, and does not say how long it remembers",
			rules{specified: noRetention}).
			finds("retention-not-published"),
		receiver("webhook-doubles", "applies an event each time it is delivered", hookRules{forgetful: true}).
			finds("webhook-redelivery-doubles").may(unprotected...).
			outcome(outcomes{plan.Redelivery: broken}),
		receiver("webhook-unsigned", "does not look at signatures", hookRules{trusting: true, doubleBody: true}).
			finds("webhook-altered-accepted").may("mismatch-executed", "replay-unmarked").
			outcome(outcomes{plan.Redelivery: broken}),
		receiver("webhook-any-time", "does not look at the signed time", hookRules{anyTime: true}).
			finds("webhook-stale-accepted").may("replay-unmarked").
			outcome(outcomes{plan.Redelivery: broken}),
	}
}

func right() []Target {
	custom := func(c plan.Contract) plan.Contract {
		c.Profile = "custom"
		return c
	}
	header := &plan.Key{Header: "Idempotency-Key", Syntax: "sf-string"}
	bare := &plan.Key{Header: "Idempotency-Key", Syntax: "bare"}

	refusing := func(name, about string, how refuse) Target {
		t := draft(name, about, rules{inFlight: aborted})
		t.Protocol = "http2"
		t.make = func() *Service {
			a := newAPI(rules{keyHeader: "Idempotency-Key", marker: Marker, inFlight: aborted})
			s := newService(&a.shop, a.handler())
			s.refuse = how
			return s
		}
		return t.outcome(outcomes{plan.Duplicate: held, plan.RaceSame: inconclusive}).
			verdict("race_behavior", "unknown", "in_progress_handling", "unknown|yes", "retry_behavior", "safe_stop|unknown")
	}

	list := []Target{
		draft("ietf-conflict", "the draft: 409 while in progress, then a replay", rules{}),
		draft("ietf-waits", "the draft, with duplicates that wait for the result", rules{inFlight: waits}),
		orders("accepts", "202 with a place to look while in progress, then a replay", header,
			plan.Contract{Profile: "ietf", InFlight: []int{202}, InFlightWaits: new(false), ReplayHeader: Marker},
			rules{keyHeader: "Idempotency-Key", marker: Marker, inFlight: accepts}),
		orders("stripe", "Stripe's API v1: optional bare keys, 400 for a mismatch, errors recorded", bare,
			plan.Contract{Profile: "stripe"},
			rules{keyHeader: "Idempotency-Key", bare: true, optional: true, mismatch: 400, marker: "Idempotent-Replayed"}),
		orders("oasis", "OASIS Repeatable Requests 1.0", &plan.Key{Header: "Repeatability-Request-ID"},
			plan.Contract{Profile: "oasis"},
			rules{keyHeader: "Repeatability-Request-ID", bare: true, repeatable: true, optional: true, mismatch: 400, onlySuccess: true}).
			may("replay-unmarked"),
		orders("body-key", "Square's way: the key is a member of the body, 400 for a mismatch", &plan.Key{Body: "/idempotency_key"},
			custom(plan.Contract{Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{400}, InFlight: []int{409}, Replay: "original"}),
			rules{keyBody: "idempotency_key", bare: true, mismatch: 400}).
			may("replay-unmarked"),
		orders("conflict-with-reference", "GoCardless's way: a duplicate is refused with the id of the order that there is", bare,
			custom(plan.Contract{Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{422}, InFlight: []int{409}, Replay: "reference"}),
			rules{keyHeader: "Idempotency-Key", bare: true, replay: reference}).
			may("replay-unmarked").
			verdict("result_replay", "conflict_with_reference"),
		orders("natural-key", "no key: a tenant has one order for each reference, by a unique constraint", nil,
			custom(plan.Contract{Replay: "reference", FreshKey: "refused"}),
			rules{natural: true}).
			may("replay-unmarked").
			outcome(outcomes{plan.Duplicate: held, plan.LateRetry: held, plan.RaceSame: held, plan.LostUnread: held}).
			verdict("idempotency_support", "natural_key", "result_replay", "conflict_with_reference", "in_progress_handling", "yes|unknown"),
		orders("natural-key-and-header", "keys are replayed; the same reference under a fresh key is refused with a reference", header,
			custom(plan.Contract{Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{422}, InFlight: []int{409}, Replay: "original", ReplayHeader: Marker, FreshKey: "refused"}),
			rules{keyHeader: "Idempotency-Key", natural: true, marker: Marker}).
			verdict("idempotency_support", "header_key|natural_key"),
		draft("serialises", "handles one request at a time, all others wait", rules{global: true}).
			verdict("in_progress_handling", "yes|unknown", "race_behavior", "safe_converge|unknown"),
		draft("late-effect", "answers at once, and a worker makes the one order a while later",
			rules{late: true, takes: time.Millisecond}).
			verdict("in_progress_handling", "yes|unknown"),
		orders("current-state", "PayPal's way: a duplicate gets the order as it is now", header,
			custom(plan.Contract{Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{422}, InFlight: []int{409}, Replay: "current", ReplayHeader: Marker}),
			rules{keyHeader: "Idempotency-Key", replay: current, marker: Marker}).
			verdict("result_replay", "same_response|unknown"),
		orders("success-only", "Checkout.com's way: only success is recorded, a failure is executed again", bare,
			custom(plan.Contract{Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{422}, InFlight: []int{409}, Replay: "original", ReplayHeader: Marker, RecordsErrors: new(false)}),
			rules{keyHeader: "Idempotency-Key", bare: true, onlySuccess: true, marker: Marker}),
		draft("mails-once", "makes one order and mails once", rules{mails: true}).
			verdict("outbox_pattern", "yes"),
		draft("sheds-429", "turns away with 429 whatever comes while a request runs", rules{inFlight: limited}).
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: inconclusive}).
			verdict("race_behavior", "unknown", "in_progress_handling", "unknown|yes", "retry_behavior", "safe_stop|unknown"),
		draft("sheds-abort", "breaks off without a response whatever comes while a request runs", rules{inFlight: aborted}).
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: inconclusive}).
			verdict("race_behavior", "unknown", "in_progress_handling", "unknown|yes", "retry_behavior", "safe_stop|unknown"),
		refusing("refuses-streams", "refuses with REFUSED_STREAM whatever comes while a request runs", refuseStream),
		refusing("goes-away", "refuses with GOAWAY whatever comes while a request runs", goAway),
		receiver("webhook", "Standard Webhooks: signature, tolerance, and one effect for each id", hookRules{}).
			may("replay-unmarked").
			outcome(outcomes{plan.Duplicate: held, plan.Redelivery: held}),
	}
	for i := range list {
		t := &list[i]
		if t.Expect.Outcomes == nil {
			t.Expect.Outcomes = allHeld()
		}
		if t.webhook {
			t.Expect.Verdict = verdict{"idempotency_support": {"event_id"}, "race_behavior": {"safe_converge", "unknown"}, "retry_behavior": {"safe_stop"}}
			continue
		}
		base := rightVerdict()
		for name, values := range t.Expect.Verdict {
			base[name] = values
		}
		t.Expect.Verdict = base
		if t.Key == nil {
			t.Experiments = forNatural
		}
		if t.Contract.FreshKey == "refused" && t.Key != nil {
			// Who owns the reference is not who owns the key.
			t.Experiments = slices.DeleteFunc(slices.Clone(all), func(e plan.Experiment) bool { return e == plan.OtherActor })
		}
	}
	return list
}
