package probe

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
)

// suppose adds the possible causes of the findings, with what the experiments
// so far show about them and what would decide.
func (o *operation) suppose() {
	f := &o.facts
	all := o.ev.All()
	has := func(ids ...evidence.FindingID) bool {
		return slices.ContainsFunc(ids, func(id evidence.FindingID) bool { return slices.Contains(all, id) })
	}
	sequential := has(evidence.FindingDoubleEffectSequential, evidence.FindingWebhookRedeliveryDoubles)
	race := has(evidence.FindingDoubleEffectRace, evidence.FindingInFlightExecuted)
	// One after a loss that is executed while the first runs is explained by that.
	lost := has(evidence.FindingDoubleEffectLostResponse) && !o.doublesAnswered() && (f.lostAfter || !race)
	cut := func(g evidence.Finding) bool {
		return (g.ID == evidence.FindingFailureBlocksKey || g.ID == evidence.FindingLostEffect) && strings.HasPrefix(g.Experiment, "lost_")
	}
	stuck := slices.ContainsFunc(o.ev.Findings, cut)

	if sequential {
		to := o.named1(evidence.FindingDoubleEffectSequential, evidence.FindingWebhookRedeliveryDoubles)
		if o.op.Key != nil {
			c := evidence.Cause{
				Name: "no-key-read", State: evidence.Open,
				Text:  "The key is not read at all: not in the operation, or a proxy takes it away.",
				For:   "The same bytes took effect twice, one after the other.",
				Check: "The experiment missing_key: a request without a key that is executed just the same speaks for it. Then log the key where the request is handled.",
			}
			switch {
			case f.once || f.sometimes:
				c.State, c.For = evidence.Refuted, "Some duplicates had no effect of their own: something is remembered."
			case f.marked:
				c.State, c.For = evidence.Refuted, "A second response is marked as a replay, although its request took effect: something is remembered."
			case f.noKeyRan:
				c.State, c.For = evidence.Supported, "A request without a key took effect just the same as one with a used key."
			}
			o.cause(to, c)
		} else {
			o.cause(to, evidence.Cause{
				Name: "no-mark", State: evidence.Open,
				Text:  "The target looks at nothing in a request that says which one it is, and does not compare its content.",
				For:   "The request has no key, and the same bytes took effect twice.",
				Check: "Look for a unique constraint over the business fields that make two requests the same, or give the operation a key.",
			})
		}
		if f.failed {
			o.cause(to, evidence.Cause{
				Name: "failure-forgotten", State: evidence.Supported,
				Text:  "What fails is forgotten, though it took effect: its record is dropped, and its effect is kept.",
				For:   "A request that was answered with a failure took effect, and took effect again when it was sent again.",
				Check: "Look at what an error leaves of the record, and whether the effect is undone in the same transaction.",
			})
		}
		late := evidence.Cause{
			Name: "forgotten", State: evidence.Open,
			Text:  "A request is remembered for too short a time, or only as long as nothing else comes.",
			For:   "The same bytes took effect twice.",
			Check: "The experiments duplicate, late_retry and reordered: a duplicate at once that has no effect, and a later one that has, speak for it.",
		}
		switch {
		case f.late:
			late.State, late.For = evidence.Supported, "An earlier duplicate had no effect of its own. One after "+o.r.p.Timing.LateAfter.String()+" or more had."
		case f.doubled && !f.once:
			switch {
			case f.sometimes:
				late.State, late.For = evidence.Refuted, "An earlier duplicate had an effect, and a later one had none."
			case f.race != nil && f.race.Doubled > 0 && f.raceSome:
				late.For = "Of requests at the same time that succeeded some had no effect of their own. A duplicate that came when the state had settled had one."
			case f.race != nil && f.race.Doubled > 0:
				late.State, late.For = evidence.Refuted, "No duplicate that succeeded was without an effect, also not where they came at once."
			case f.race != nil && f.race.Overlapped > 0:
				late.For = "Requests at the same time had one effect. A duplicate that came when the state had settled had another."
			default:
				late.For = "No duplicate that succeeded was without an effect; none of them came at once, but when the state had settled."
			}
		}
		// What holds for failures only is explained by them.
		onlyFailed := f.failed && !f.doubled
		if (o.op.Key != nil || late.State != evidence.Open) && !onlyFailed {
			o.cause(to, late)
		}
		instance := evidence.Cause{
			Name: "per-instance", State: evidence.Open,
			Text:  "Each instance, or each cache, remembers by itself.",
			For:   "The same bytes took effect twice.",
			Check: "Send the duplicate to one instance by its address. If it is known there, and not through the load balancer, the record is local.",
		}
		if f.sometimes {
			instance.State, instance.For = evidence.Supported, "Of several duplicates of one request one took effect, and a later one had no effect of its own."
		}
		if (o.op.Key != nil || f.sometimes) && !onlyFailed {
			o.cause(to, instance)
		}
	}
	if race {
		to := o.named1(evidence.FindingDoubleEffectRace, evidence.FindingInFlightExecuted)
		act := evidence.Cause{
			Name: "check-then-act", State: evidence.Open,
			Text:  "The request is looked up before the work and recorded after it, without a constraint that decides.",
			For:   "Requests at the same time took effect more than once.",
			Check: "The experiments duplicate and race: duplicates one after the other that are known, and some at the same time that are not, speak for it. Then look for a unique constraint, and whether it is written before the work.",
		}
		switch {
		case f.lapsed && !has(evidence.FindingDoubleEffectRace):
			act.State, act.For = evidence.Refuted, "A retry soon after the first was told to wait: it is recorded before the work."
		case f.once:
			act.State, act.For = evidence.Supported, "One request after the other is known; requests at the same time are not."
		case sequential:
			act.State, act.For = evidence.Refuted, "Requests one after the other took effect more than once, too."
		}
		o.cause(to, act)
		lease := evidence.Cause{
			Name: "lease-too-short", State: evidence.Open,
			Text:  "The claim on a request lapses before its work is done.",
			For:   "A retry during the first took effect.",
			Check: "The experiment in_flight on a request that takes long: a retry at first that is told to wait, and a later one that is executed, speak for it.",
		}
		if !has(evidence.FindingInFlightExecuted) {
			lease.For = "Requests at the same time took effect more than once."
		}
		if f.lapsed && !sequential {
			lease.State, lease.For = evidence.Supported, "While the first was running, an earlier retry was refused, and a later one took effect."
		}
		if !sequential {
			o.cause(to, lease)
		}
	}
	if f.keylessAsOne != nil {
		o.cause(o.named1(evidence.FindingKeylessRequestsConfused), evidence.Cause{
			Name: "keyless-as-one", State: evidence.Supported,
			Text:  "The lack of a key counts as a key: requests without one, of this method and address at least, are all the same request.",
			For:   "Of two requests without a key, each with values of its own, the second was answered with a success and had no effect.",
			Check: "Look at what is looked up for a request without a key: it must be nothing, and not an empty key.",
		})
	}
	if lost || stuck {
		to := o.named1(evidence.FindingDoubleEffectLostResponse)
		if !lost && stuck {
			to = &o.ev.Findings[slices.IndexFunc(o.ev.Findings, cut)]
		}
		c := evidence.Cause{
			Name: "tied-to-client", State: evidence.Open,
			Text:  "The record depends on the client: it is written after the response, undone when the client goes, or written before the work.",
			For:   "After a lost connection the same request was " + o.blocked(to.Experiment) + ".",
			Check: "The experiments duplicate and lost_unread: a duplicate of an answered request that is known, and one of a lost response that is not, speak for it. Then look at what happens to the handler's context when the connection closes, and whether effect and record are one transaction.",
		}
		switch {
		case !lost && to.ID == evidence.FindingLostEffect:
			c.For = "A retry after a lost connection got a success, and no effect of it was seen."
		case lost && f.once && !f.lostAfter && f.inProgress != yes:
			c.For = "A retry after a lost response took effect again; when it was sent, the first had had no effect yet, and may have been running still."
		case lost && f.once:
			c.State, c.For = evidence.Supported, "Duplicates of answered requests and of requests whose connection was lost are treated differently."
		case lost:
			c.For = "A retry after a lost response took effect again. Whether a duplicate of an answered request does too was not shown."
		}
		o.cause(to, c)
	}
	if sequential && !f.once && (!f.failed || f.doubled) && o.op.Key != nil {
		o.cause(o.named1(evidence.FindingDoubleEffectSequential, evidence.FindingWebhookRedeliveryDoubles), evidence.Cause{
			Name: "identity-differs", State: evidence.Open,
			Text:  "The identity differs between the two: the scope or the fingerprint takes in what changes, such as a session, a trace header or a time.",
			For:   "The bytes were the same; what a proxy adds to them may not be.",
			Check: "Compare what the target computes as identity for the two requests, in its log or a debugger.",
		})
	}
}

// blocked says how a request was answered in an experiment when it was sent
// again.
func (o *operation) blocked(experiment string) string {
	n, last := 0, evidence.Send{}
	for _, e := range o.ev.Experiments {
		for _, s := range e.Sends {
			if e.Name == experiment && s.Role == evidence.RoleDuplicate {
				n, last = n+1, s
			}
		}
	}
	switch {
	case n > 1:
		return fmt.Sprintf("refused, or still in progress, each of the %d times that it was sent again", n)
	case last.Status == http.StatusAccepted:
		return "accepted when it was sent again, once, and not done for as long as was waited"
	}
	return "refused when it was sent again, once"
}

// named1 is the first of the findings that there is.
func (o *operation) named1(ids ...evidence.FindingID) *evidence.Finding {
	for _, id := range ids {
		if i := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == id }); i >= 0 {
			return &o.ev.Findings[i]
		}
	}
	return nil
}

// cause adds a possible cause to a finding. Those that are not refuted are the
// next checks.
func (o *operation) cause(to *evidence.Finding, c evidence.Cause) {
	if to != nil {
		to.Causes = append(to.Causes, c)
	}
	if c.State != evidence.Refuted {
		o.ev.Hypotheses = append(o.ev.Hypotheses, evidence.Hypothesis{Name: c.Name, Text: c.Text, For: c.For, Check: c.Check})
	}
}
