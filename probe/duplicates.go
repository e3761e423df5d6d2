package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// kind is a kind of experiment.
type kind struct {
	step, title string
	run         func(*exp, context.Context) error
}

var kinds map[plan.Experiment]kind

func init() {
	kinds = map[plan.Experiment]kind{
		plan.Specification: {"A", "What the specification says of keys", (*exp).specification},
		plan.Duplicate:     {"B", "The same request again", (*exp).duplicate},
		plan.FreshKey:      {"C", "The same body under a fresh key", (*exp).freshKey},
		plan.LateRetry:     {"C", "The same request again after a while", (*exp).lateRetry},
		plan.Altered:       {"B", "Another request under a used key", (*exp).altered},
		plan.MissingKey:    {"B", "A request without a key", (*exp).missingKey},
		plan.MalformedKey:  {"B", "A request with a malformed key", (*exp).malformedKey},
		plan.OtherActor:    {"B", "Another actor with a used key", (*exp).otherActor},
		plan.OtherTenant:   {"B", "Another tenant with a used key", (*exp).otherTenant},
		plan.InFlight:      {"D", "A retry while the first is running", (*exp).inFlight},
		plan.RaceSame:      {"D", "The same request several times at once", (*exp).race},
		plan.LostUnread:    {"F", "A retry after a connection lost before the answer", (*exp).lostUnread},
		plan.LostBegun:     {"F", "A retry after a connection lost within the answer", (*exp).lostBegun},
		plan.FailedFirst:   {"F", "A retry after a failed first attempt", (*exp).failedFirst},
		plan.Reordered:     {"F", "An older request again after a newer one", (*exp).reordered},
		plan.Redelivery:    {"F", "An event delivered again, stale and altered", (*exp).redelivery},
		plan.RetentionEdge: {"F", "The same request just before keys are forgotten", (*exp).retentionEdge},
	}
}

// doubled is the finding for a request that took effect again.
func (x *exp) doubled(id string) string {
	if x.o.op.Signature != nil && id == "double-effect-sequential" {
		return "webhook-redelivery-doubles"
	}
	return id
}

// resend sends the bytes of a request again.
func (x *exp) resend(ctx context.Context, role string, first *sent) (*sent, error) {
	return x.send(ctx, role, first.x.Request, "")
}

// repeated judges a request that was sent again, the state first. mid is the
// state after the first: what rose since is the second's.
func (x *exp) repeated(ctx context.Context, w *watch, first, second *sent, id string) error {
	if x.o.r.dry() {
		return nil
	}
	if err := w.settle(ctx, second.over(), w.expect); err != nil {
		return err
	}
	w.conclude(w.expect)
	x.e.Second = x.o.compare(first, second)
	f := &x.o.facts
	d := w.since(w.before, false)
	if !x.effects(w, d, id, first, second) {
		if more(d.most, w.expect) {
			f.doubled, f.doubledBy = true, []*sent{first, second}
		}
		return nil
	}
	if second.x.Response != nil && second.x.Response.Status == http.StatusTooManyRequests {
		f.limited = true
	}
	switch {
	case turnedAway(&second.x):
		x.unclear("the duplicate was not processed: %s. That says nothing about duplicates", answer(second))
		return nil
	case second.x.Response == nil:
		x.unclear("the duplicate has no answer: %s", answer(second))
		return nil
	case !d.state && !d.outside:
		x.byIDs(id, first, second)
		return nil
	}
	f.once = true
	x.second(first, second)
	return nil
}

// effects judges by the state whether requests with one key had one effect. It
// reports whether that leaves anything to judge.
func (x *exp) effects(w *watch, d delta, id string, sends ...*sent) bool {
	if more(d.most, w.expect) {
		x.broken("%s by reader %s, where there must be %d", count(d.most), d.by, w.expect)
		x.find(x.doubled(id), "", evidence.Established, sends...)
		if more(d.outMost, w.expect) {
			x.o.facts.outsideBad = true
		}
		return false
	}
	if more(d.outMost, w.expect) {
		x.o.facts.outsideBad = true
		x.broken("%s outside by reader %s, where there must be %d", count(d.outMost), d.outBy, w.expect)
		basis := evidence.Established
		if d.sameID {
			basis = evidence.Inferred // the receiver may drop the second
		}
		x.find("outside-effect-doubled", "", basis, sends...)
		return false
	}
	if !w.settled {
		x.unclear("%s", w.why)
		return false
	}
	if d.state && d.outside && w.expect == 1 && is(d.most, 1) && is(d.outLeast, 1) {
		x.o.facts.outsideOK++
	}
	return true
}

// byIDs judges without a state: two ids are a hint, anything else is nothing.
func (x *exp) byIDs(id string, first, second *sent) {
	if success(&second.x) && first.resource != "" && second.resource != "" && first.resource != second.resource {
		x.broken("the second answer names another resource (%s, then %s); no reader tells how many there are", first.resource, second.resource)
		x.find(x.doubled(id), "", evidence.Inferred, first, second)
		return
	}
	x.unclear("no reader sees the state: answers alone, alike or not, say nothing about effects")
}

// second judges the answer to a duplicate that had no effect of its own.
func (x *exp) second(first, second *sent) {
	f, c := &x.o.facts, x.o.contract
	s := x.e.Second
	if f.duplicate == nil {
		f.duplicate = s
	}
	if second.replayed {
		f.marked = true
	}
	switch s.Class {
	case evidence.SameResult:
		f.replayed = true
		x.holds("1 effect; the second answer is the first result%s", map[bool]string{true: ", marked as a replay"}[second.replayed])
		switch {
		case c.Replay == "original" && !s.Status:
			x.find("replay-differs", evidence.P2, "", first, second)
		case c.Replay == "original" && !s.Body:
			x.find("replay-differs", evidence.P2, "", first, second)
		}
		if !second.replayed && c.Replay == "original" && c.ReplayHeader != "" {
			x.find("replay-unmarked", "", "", first, second)
		}
	case evidence.RefusedWithReference:
		f.replayed = true
		x.holds("1 effect; the second answer, %s, refuses and names the first result", answer(second))
		if c.Replay == "original" || c.Replay == "current" {
			x.find("replay-differs", evidence.P2, "", first, second)
		}
	case evidence.Refused:
		if slices.Contains(c.InFlight, second.x.Response.Status) && retryAfter(&second.x) > 0 {
			x.broken("1 effect; after it was answered, the key is still refused as in progress: %s", answer(second))
			x.find("failure-blocks-key", "", evidence.Inferred, first, second)
			return
		}
		x.holds("1 effect; the second answer is a refusal, %s, without the first result", answer(second))
		if c.Replay != "" {
			x.find("replay-differs", evidence.P2, "", first, second)
		}
	case evidence.DifferentResult:
		x.broken("1 effect, and the second answer is another result: %s", strings.Join(s.Differences, ", "))
		x.find("replay-differs", "", evidence.Established, first, second)
	case evidence.ErrorOrTimeout:
		x.broken("1 effect, and the duplicate is answered with %s", answer(second))
		x.error5xx(first, second)
	}
}

func (x *exp) duplicate(ctx context.Context) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	second, err := x.resend(ctx, "duplicate", first)
	if err != nil {
		return err
	}
	if err := x.repeated(ctx, w, first, second, "double-effect-sequential"); err != nil {
		return err
	}
	return x.audit(ctx, w.v, first.resource, first, second)
}

// lateRetry waits longer than limits of rates do.
func (x *exp) lateRetry(ctx context.Context) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	if err := x.pause(ctx, x.o.r.p.Timing.LateAfter); err != nil {
		return err
	}
	var second *sent
	for n := 0; ; n++ {
		if second, err = x.resend(ctx, "duplicate", first); err != nil {
			return err
		}
		if !turnedAway(&second.x) || n == maxWaits || x.o.r.dry() {
			break
		}
		x.o.facts.limited = x.o.facts.limited || second.x.Response != nil && second.x.Response.Status == http.StatusTooManyRequests
		if err := sleep(ctx, min(cmp.Or(retryAfter(&second.x), x.o.r.p.Timing.LateAfter), x.o.r.p.Timing.SettleLimit)); err != nil {
			return err
		}
	}
	if err := x.repeated(ctx, w, first, second, "double-effect-sequential"); err != nil {
		return err
	}
	if len(x.bad) > 0 && x.o.facts.limited && more(w.since(w.before, false).most, 1) {
		x.find("rate-limit-is-not-idempotency", "", evidence.Established, first, second)
	}
	return nil
}

func (x *exp) pause(ctx context.Context, d time.Duration) error {
	if x.o.r.dry() {
		return nil
	}
	return sleep(ctx, d)
}

func (x *exp) retentionEdge(ctx context.Context) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	// Of what is left since the first answer, nine tenths: the clocks are two.
	kept := x.o.r.p.Target.Retention
	if wait := kept*9/10 - time.Since(first.over()); !x.o.r.dry() {
		if wait < 0 {
			x.unclear("keys are kept for %v, which was over before the state was stable", kept)
			return nil
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	second, err := x.resend(ctx, "duplicate", first)
	if err != nil {
		return err
	}
	return x.repeated(ctx, w, first, second, "double-effect-sequential")
}

// reordered sends an older request again after a newer one: a target that
// remembers the last key only takes it for new.
func (x *exp) reordered(ctx context.Context) error {
	w1, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	v, err := x.draw(ctx)
	if err != nil {
		return err
	}
	w2, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	newer, err := x.firstOf(ctx, w2, plan.Change{}, "newer")
	if err != nil {
		return err
	}
	if !x.o.r.dry() {
		// A number that is not of one request alone rises with the newer too.
		if err := w1.settle(ctx, newer.over(), 1); err != nil {
			return err
		}
		w1.rebase()
	}
	again, err := x.resend(ctx, "duplicate", first)
	if err != nil {
		return err
	}
	return x.repeated(ctx, w1, first, again, "double-effect-sequential")
}

// freshKey sends the same body under another key, which tells a key from a
// natural key.
func (x *exp) freshKey(ctx context.Context) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	v, err := x.o.r.r.FreshKey(w.v)
	if errors.Is(err, plan.ErrDerivedKey) {
		x.unclear("the key is made of the request: the same request cannot have another")
		return nil
	}
	if err != nil {
		return err
	}
	req, err := x.render(v, plan.Change{})
	if err != nil {
		return err
	}
	// What is read for the second request may be found by its own key.
	w2, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	mid := w.after
	second, err := x.send(ctx, "fresh-key", req, "")
	if err != nil || x.o.r.dry() {
		return err
	}
	w2.resource = second.resource
	want := int64(0)
	if success(&second.x) && second.resource != first.resource {
		want = 1
	}
	if err := x.settle(ctx, second.over(), wanted{w, 1}, wanted{w2, want}); err != nil {
		return err
	}
	w.conclude(0)
	x.e.Second = x.o.compare(first, second)
	if turnedAway(&second.x) || second.x.Response == nil {
		x.unclear("the second request was not processed: %s", answer(second))
		return nil
	}
	if !w.settled || !w2.settled {
		x.unclear("%s", cmp.Or(w.why, w2.why))
		return nil
	}
	a, b := w.since(mid, false), w2.since(w2.before, false)
	own := a.most
	if own == nil || b.most != nil && b.most.Cmp(own) > 0 {
		own = b.most
	}
	f, c := &x.o.facts, x.o.contract
	switch {
	case own == nil:
		if success(&second.x) && first.resource != "" && second.resource != "" {
			x.unclear("no reader sees the state; the answers name %s", map[bool]string{true: "one resource", false: "two resources"}[first.resource == second.resource])
			return nil
		}
		x.unclear("no reader sees the state")
	case is(own, 1):
		f.fresh = "creates"
		if c.FreshKey == "refused" {
			x.broken("the contract knows the request by its content, and it took effect again under a fresh key")
			x.find(x.doubled("double-effect-sequential"), "", evidence.Established, first, second)
			return nil
		}
		switch {
		case f.doubled:
			x.holds("under a fresh key the same body took effect anew, as it did under the same key: without deduplication this shows nothing")
		case f.once:
			x.holds("under a fresh key the same body took effect anew: it is the key that counts")
		default:
			x.holds("under a fresh key the same body took effect anew; that it is the key that counts was not shown, for no duplicate under the same key was seen to have one effect")
		}
	case more(own, 1):
		x.unclear("the second request had %s", count(own))
	case success(&second.x) && second.resource != "" && second.resource != first.resource:
		x.broken("a request with a fresh key was answered with %s and %s, and had no effect", answer(second), second.resource)
		x.find("lost-effect", "", evidence.Established, second)
	default:
		f.fresh = "refused"
		if success(&second.x) && c.FreshKey == "creates" {
			x.holds("under a fresh key the same body had no effect of its own, and %s with the first result: the content counts as a key", answer(second))
			return nil
		}
		x.holds("under a fresh key the same body was answered with %s and had no effect: the content counts as a key", answer(second))
	}
	return nil
}

func (x *exp) altered(ctx context.Context) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	req, err := x.render(w.v, plan.Change{Altered: true})
	if err != nil {
		return err
	}
	second, err := x.send(ctx, "altered", req, "")
	if err != nil || x.o.r.dry() {
		return err
	}
	if err := w.settle(ctx, second.over(), 1); err != nil {
		return err
	}
	w.conclude(1)
	x.e.Second = x.o.compare(first, second)
	d := w.since(w.before, false)
	ok := success(&second.x)
	apart := first.resource != "" && second.resource != "" && first.resource != second.resource
	switch {
	case more(d.most, 1), more(d.outMost, 1):
		x.broken("the altered request took effect as well: %s", count(cmp.Or(d.most, d.outMost)))
		x.find("mismatch-executed", "", evidence.Established, first, second)
	case !w.settled:
		x.unclear("%s", w.why)
	case turnedAway(&second.x) || second.x.Response == nil:
		x.unclear("the altered request was not processed: %s", answer(second))
	case ok && apart:
		x.broken("the altered request was answered with %s and a resource of its own, which no reader sees", answer(second))
		x.find("mismatch-executed", "", evidence.Inferred, first, second)
	case ok && x.o.op.Signature == nil && (x.e.Second.Class == evidence.SameResult || second.replayed):
		basis := evidence.Established
		if !d.state && !d.outside {
			basis = evidence.Inferred
		}
		x.broken("the altered request was answered with %s and the first one's result; what it asks for did not happen", answer(second))
		x.find("mismatch-replayed-as-same", "", basis, first, second)
	case ok && x.o.op.Signature != nil && (d.state || d.outside):
		x.holds("the altered event was answered with %s and had no effect: events are known by their id alone", answer(second))
	case ok && (d.state || d.outside):
		x.broken("the altered request was answered with %s, and what it asks for did not happen", answer(second))
		x.find("mismatch-replayed-as-same", "", evidence.Inferred, first, second)
	case second.x.Response.Status >= 500:
		x.broken("the altered request was answered with %s", answer(second))
		x.error5xx(first, second)
	case ok:
		x.unclear("the altered request was answered with %s, and no reader sees the state", answer(second))
	default:
		note := ""
		if want := x.o.contract.Mismatch; len(want) > 0 && !slices.Contains(want, second.x.Response.Status) {
			note = fmt.Sprintf(", where the contract says %v", want)
		}
		x.holds("the altered request was refused with %s%s%s", answer(second), note, d.without())
	}
	if !ok {
		if what := leaked(first, second); what != "" {
			x.broken("the refusal holds %s of the first request or its answer", what)
			x.find("conflict-leaks-payload", evidence.P2, evidence.Established, first, second)
		}
	}
	return nil
}

func (x *exp) missingKey(ctx context.Context) error {
	v, err := x.draw(ctx)
	if err != nil {
		return err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	req, err := x.render(v, plan.Change{NoKey: true})
	if err != nil {
		return err
	}
	s, err := x.send(ctx, "without-key", req, "")
	if err != nil || x.o.r.dry() {
		return err
	}
	return x.keyless(ctx, w, s, func(d delta) {
		x.o.facts.noKeyRan, x.o.facts.noKey = more(d.most, 0) || more(d.outMost, 0), s
		required := len(x.o.contract.Missing) > 0
		switch {
		case x.o.facts.noKeyRan && required:
			x.broken("a request without a key was answered with %s and took effect", answer(s))
			x.find("missing-key-accepted", "", evidence.Established, s)
		case x.o.facts.noKeyRan:
			x.holds("a request without a key took effect; the contract does not require one")
		case !d.state && !d.outside && success(&s.x) && required:
			x.broken("a request without a key was answered with %s; no reader sees whether it took effect", answer(s))
			x.find("missing-key-accepted", "", evidence.Inferred, s)
		case !d.state && !d.outside && success(&s.x):
			x.unclear("a request without a key was answered with %s, and no reader sees whether it took effect", answer(s))
		case success(&s.x):
			x.broken("a request without a key was answered with %s and had no effect", answer(s))
			x.find("lost-effect", "", evidence.Established, s)
		default:
			x.holds("a request without a key was refused with %s%s", answer(s), d.without())
		}
	})
}

// keyless waits for what a request that may be refused does, and judges it if
// it was processed and the state can be seen, or there is no reader.
func (x *exp) keyless(ctx context.Context, w *watch, s *sent, judge func(delta)) error {
	want := int64(0)
	if success(&s.x) {
		want = 1
	}
	w.resource = s.resource
	if err := w.settle(ctx, s.over(), want); err != nil {
		return err
	}
	w.conclude(0)
	// Its own effect is as good a control as any other.
	if want == 1 && !x.o.facts.control {
		x.o.learn(w, s, w.before)
	}
	d := w.since(w.before, false)
	switch {
	case turnedAway(&s.x) || s.x.Response == nil:
		x.unclear("the request was not processed: %s", answer(s))
	case !w.settled:
		x.unclear("%s", w.why)
	case len(x.o.readers) > 0 && !d.state && !d.outside:
		x.unclear("no reader has seen the effect of a fresh request, so none could see this one's")
	default:
		judge(d)
	}
	return nil
}

// malformed is a key that none of the known syntaxes allows: over 255
// characters and, in a header, with a quote that nothing closes.
func malformed(k *plan.Key, key string) string {
	long := key + strings.Repeat("x", max(300-len(key), 1))
	if k.Header != "" && k.Syntax == "sf-string" {
		return `"` + key
	}
	return long
}

func (x *exp) malformedKey(ctx context.Context) error {
	v, err := x.draw(ctx)
	if err != nil {
		return err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return err
	}
	req, err := x.render(v, plan.Change{RawKey: malformed(x.o.op.Key, v.Key())})
	if err != nil {
		return err
	}
	first, err := x.send(ctx, "malformed-key", req, "")
	if err != nil {
		return err
	}
	if x.o.r.dry() {
		x.plan("malformed-key", req, "", 1, "if the first was accepted")
		return nil
	}
	accepted := false
	if err := x.keyless(ctx, w, first, func(d delta) {
		if accepted = success(&first.x); !accepted {
			if more(d.most, 0) {
				x.broken("a malformed key was refused with %s, and the request took effect", answer(first))
				x.find("malformed-key-accepted-unprotected", "", evidence.Established, first)
				return
			}
			x.holds("a malformed key was refused with %s%s", answer(first), d.without())
		}
	}); err != nil || !accepted {
		return err
	}
	second, err := x.resend(ctx, "malformed-key", first)
	if err != nil {
		return err
	}
	if err := w.settle(ctx, second.over(), 1); err != nil {
		return err
	}
	x.e.After, x.e.Changes = nil, nil
	w.conclude(1)
	d := w.since(w.before, false)
	switch {
	case more(d.most, 1), more(d.outMost, 1):
		x.broken("a malformed key was accepted with %s, and the request repeated: %s", answer(first), count(cmp.Or(d.most, d.outMost)))
		x.find("malformed-key-accepted-unprotected", "", evidence.Established, first, second)
	case !w.settled:
		x.unclear("%s", w.why)
	case turnedAway(&second.x) || second.x.Response == nil:
		x.unclear("the repeated request was not processed: %s", answer(second))
	case !d.state && !d.outside:
		x.unclear("a malformed key was accepted with %s, and no reader sees whether it protects", answer(first))
	case is(d.most, 0):
		x.broken("a malformed key was answered with %s and had no effect", answer(first))
		x.find("lost-effect", "", evidence.Established, first)
	default:
		x.holds("what was sent as a malformed key is accepted, and protects: %s for two requests", count(d.most))
	}
	return nil
}

func (x *exp) otherActor(ctx context.Context) error  { return x.other(ctx, plan.ActorB) }
func (x *exp) otherTenant(ctx context.Context) error { return x.other(ctx, plan.TenantB) }

// other sends a key of actor A as somebody else.
func (x *exp) other(ctx context.Context, who plan.PrincipalName) error {
	w, first, err := x.first(ctx, plan.Change{})
	if err != nil {
		return err
	}
	// Without a replay for A itself, one for B would say nothing.
	again, err := x.resend(ctx, "duplicate", first)
	if err != nil {
		return err
	}
	req, err := x.render(w.v, plan.Change{As: who})
	if err != nil {
		return err
	}
	role, id, apart := "other-actor", "key-not-scoped-actor", &x.o.facts.actorApart
	if who == plan.TenantB {
		role, id, apart = "other-tenant", "key-not-scoped-tenant", &x.o.facts.tenantApart
	}
	if x.o.r.dry() {
		_, err := x.send(ctx, role, req, who)
		return err
	}
	if err := w.settle(ctx, again.over(), 1); err != nil {
		return err
	}
	own := x.o.compare(first, again)
	mid := w.after
	d := w.since(w.before, false)
	if more(d.most, 1) || turnedAway(&again.x) || own.Class != evidence.SameResult && own.Class != evidence.RefusedWithReference {
		w.conclude(1)
		x.unclear("no replay was shown for actor A itself (%s, %s), so another's answer says nothing about scope", answer(again), count(d.most))
		return nil
	}
	// B's state, where B can be read for, may be another one.
	second, err := x.send(ctx, role, req, who)
	if err != nil {
		return err
	}
	if err := w.settle(ctx, second.over(), 1); err != nil {
		return err
	}
	w.conclude(1)
	x.e.Second = x.o.compare(first, second)
	rise := w.since(mid, false)
	status := 0
	if second.x.Response != nil {
		status = second.x.Response.Status
	}
	switch {
	case is(rise.most, 1) || is(rise.outMost, 1):
		*apart = "yes"
		x.holds("%s's request under actor A's key took effect of its own", who)
	case turnedAway(&second.x) || status == 0:
		x.unclear("the request was not processed: %s", answer(second))
	case status == 401 || status == 403:
		x.unclear("%s may not do this at all: %s", who, answer(second))
	case success(&second.x) && first.resource != "" && second.resource == first.resource,
		success(&second.x) && second.replayed,
		success(&second.x) && first.resource == "" && len(first.x.Response.Body) > 0 && x.e.Second.Body && d.state:
		*apart = "no"
		x.broken("%s was answered with actor A's result: %s %s", who, answer(second), second.resource)
		x.notScoped(id, evidence.Established, first, again, second)
	case success(&second.x) && second.resource != "" && first.resource != second.resource:
		*apart = "yes"
		x.holds("%s's request under actor A's key was answered with a resource of its own", who)
	case x.natural() && who == plan.TenantB && first.resource != "" && names(second.x.Response, first.resource):
		*apart = "no"
		x.broken("%s's request was refused with actor A's result: %s %s", who, answer(second), first.resource)
		x.notScoped(id, evidence.Established, first, again, second)
	case x.natural():
		x.unclear("the request was refused for its content (%s), as a fresh key is: nothing is said about keys", answer(second))
	case status == 409 || status == 422 || slices.Contains(x.o.contract.Mismatch, status):
		*apart = "no"
		x.broken("%s's request was refused because of actor A's key: %s", who, answer(second))
		x.notScoped(id, evidence.Inferred, first, again, second)
	default:
		x.unclear("the answer, %s, does not tell whose key it was", answer(second))
	}
	if !success(&second.x) && *apart == "no" {
		if what := leaked(first, second); what != "" {
			x.find("conflict-leaks-payload", evidence.P0, evidence.Established, first, second)
		}
	}
	return nil
}

// natural says whether a refusal may be that of a natural key.
func (x *exp) natural() bool {
	return x.o.op.Key == nil || x.o.facts.fresh == "refused" || x.o.contract.FreshKey == "refused"
}

// notScoped is a finding about scope. That keys belong to the account is a
// contract that many have on purpose.
func (x *exp) notScoped(id string, basis evidence.Basis, sends ...*sent) {
	p := evidence.Priority("")
	if id == "key-not-scoped-actor" && x.o.contract.Profile != "ietf" {
		p = evidence.P2
	}
	x.find(id, p, basis, sends...)
}

// leaked says which member of the first request or its answer a refusal holds
// that its own request does not: the id of the resource is no such thing.
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
	}{{"request", first.x.Request.Body}, {"answer", first.x.Response.Body}} {
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
				// Values that the second request has as well are its own to tell.
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

// quotes says whether an answer has an object in it that repeats at least half
// of the members of another, and among them one that the request it answers has
// otherwise.
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
