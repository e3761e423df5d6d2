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
				Text:  "The key is not read at all: the operation ignores it, or a proxy removes it.",
				For:   "The same bytes took effect twice, one after the other.",
				Check: "Run missing_key: if a request without a key is executed just the same, that supports this cause. Then log the key where the request is handled.",
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
				Text:  "The target looks at nothing in a request that identifies it, and does not compare its content.",
				For:   "The request has no key, and the same bytes took effect twice.",
				Check: "Look for a unique constraint on the business fields that make two requests the same, or give the operation a key.",
			})
		}
		if f.failed {
			o.cause(to, evidence.Cause{
				Name: "failure-forgotten", State: evidence.Supported,
				Text:  "A failed request is forgotten although it took effect: its record is dropped, and its effect is kept.",
				For:   "A request that was answered with a failure took effect, and took effect again when it was sent again.",
				Check: "Check what an error leaves of the record, and whether the effect is undone in the same transaction.",
			})
		}
		late := evidence.Cause{
			Name: "forgotten", State: evidence.Open,
			Text:  "A request is not remembered for long enough, or only until another one comes.",
			For:   "The same bytes took effect twice.",
			Check: "Run duplicate, late_retry and reordered: if a duplicate at once has no effect and a later one has, that supports this cause.",
		}
		switch {
		case f.late:
			late.State, late.For = evidence.Supported, "An earlier duplicate had no effect of its own. One after "+o.r.p.Timing.LateAfter.String()+" or more had."
		case f.doubled && !f.once:
			switch {
			case f.sometimes:
				late.State, late.For = evidence.Refuted, "An earlier duplicate had an effect, and a later one had none."
			case f.race != nil && f.race.Doubled > 0 && f.raceSome:
				late.For = "Some of the simultaneous requests that succeeded had no effect of their own. A duplicate that came once the state had settled had one."
			case f.race != nil && f.race.Doubled > 0:
				late.State, late.For = evidence.Refuted, "Every duplicate that succeeded had an effect, even those that came at once."
			case f.race != nil && f.race.Overlapped > 0:
				late.For = "Simultaneous requests had one effect. A duplicate that came once the state had settled had another."
			default:
				late.For = "Every duplicate that succeeded had an effect; none of them came before the state had settled."
			}
		}
		// What holds for failures only is explained by them.
		onlyFailed := f.failed && !f.doubled
		if (o.op.Key != nil || late.State != evidence.Open) && !onlyFailed {
			o.cause(to, late)
		}
		instance := evidence.Cause{
			Name: "per-instance", State: evidence.Open,
			Text:  "Each instance, or each cache, has a memory of its own.",
			For:   "The same bytes took effect twice.",
			Check: "Send the duplicate to one instance by its address. If it is recognised there but not through the load balancer, the record is local.",
		}
		if f.sometimes {
			instance.State, instance.For = evidence.Supported, "One of several duplicates of a request took effect, and a later one had no effect of its own."
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
			Check: "Run duplicate and race: if duplicates are recognised one after the other but not at the same time, that supports this cause. Then look for a unique constraint, and check whether its row is written before the work.",
		}
		switch {
		case f.lapsed && !has(evidence.FindingDoubleEffectRace):
			act.State, act.For = evidence.Refuted, "A retry soon after the first was told to wait: it is recorded before the work."
		case f.once:
			act.State, act.For = evidence.Supported, "Duplicates are recognised one after the other, but not at the same time."
		case sequential:
			act.State, act.For = evidence.Refuted, "Requests one after the other took effect more than once as well."
		}
		o.cause(to, act)
		lease := evidence.Cause{
			Name: "lease-too-short", State: evidence.Open,
			Text:  "The claim on a request lapses before its work is done.",
			For:   "A retry during the first attempt took effect.",
			Check: "Run in_flight with a slow request: if an early retry is told to wait and a later one is executed, that supports this cause.",
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
			Text:  "The lack of a key counts as a key: at least for this method and address, all requests without one are the same request.",
			For:   "Of two requests without a key, each with values of its own, the second was answered with success and had no effect.",
			Check: "Look at what is looked up for a request without a key: it must be nothing, not an empty key.",
		})
	}
	if lost || stuck {
		to := o.named1(evidence.FindingDoubleEffectLostResponse)
		if !lost && stuck {
			to = &o.ev.Findings[slices.IndexFunc(o.ev.Findings, cut)]
		}
		c := evidence.Cause{
			Name: "tied-to-client", State: evidence.Open,
			Text:  "The record depends on the client: it is written after the response, undone when the client goes away, or written before the work.",
			For:   "After a lost connection the same request was " + o.blocked(to.Experiment) + ".",
			Check: "Run duplicate and lost_unread: if a duplicate of an answered request is recognised and a retry after a lost response is not, that supports this cause. Then check what happens to the handler's context when the connection closes, and whether effect and record are in one transaction.",
		}
		switch {
		case !lost && to.ID == evidence.FindingLostEffect:
			c.For = "A retry after a lost connection was answered with success, and no effect of it was seen."
		case lost && f.once && !f.lostAfter && f.inProgress != yes:
			c.For = "A retry after a lost response took effect again. When it was sent, the first had had no effect yet and may still have been running."
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
			Text:  "The two requests have different identities: the scope or the fingerprint includes something that changes, such as a session, a trace header or a time.",
			For:   "The bytes were the same; what a proxy adds to them may not be.",
			Check: "Compare the identities that the target computes for the two requests, in its log or a debugger.",
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
		return fmt.Sprintf("refused, or still in progress, each of the %d times it was sent again", n)
	case last.Status == http.StatusAccepted:
		return "accepted the one time it was sent again, and not done for as long as the probe waited"
	}
	return "refused the one time it was sent again"
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
