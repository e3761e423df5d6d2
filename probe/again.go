package probe

import (
	"cmp"
	"context"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// kind is a kind of experiment.
type kind struct {
	step, title string
	run         func(*exp, context.Context) (shown, error)
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
		plan.LostUnread:    {"F", "A retry after a connection lost before the response", (*exp).lostUnread},
		plan.LostBegun:     {"F", "A retry after a connection lost within the response", (*exp).lostBegun},
		plan.FailedFirst:   {"F", "A retry after a first attempt that failed or was cut short", (*exp).failedFirst},
		plan.Reordered:     {"F", "An older request again after a newer one", (*exp).reordered},
		plan.Redelivery:    {"F", "An event delivered again, stale and altered", (*exp).redelivery},
		plan.RetentionEdge: {"F", "The same request just before keys are forgotten", (*exp).retentionEdge},

		plan.PreviewFirst:    {"A", "The target's own dry run, before anything has effects", (*exp).preview},
		plan.SameMeaning:     {"B", "The same JSON in other bytes under a used key", (*exp).sameMeaning},
		plan.Corrected:       {"F", "A refused request, corrected under the same key", (*exp).corrected},
		plan.OtherInstance:   {"C", "The same request to another instance", (*exp).otherInstance},
		plan.OtherOperation:  {"B", "Another operation under a used key", (*exp).otherOperation},
		plan.RaceAltered:     {"D", "A request and its alteration under one key at once", (*exp).raceAltered},
		plan.RetentionSearch: {"F", "The same request after longer and longer", (*exp).retentionSearch},
	}
}

// keylessTitles are the titles for operations without a key, where they differ.
var keylessTitles = map[plan.Experiment]string{
	plan.OtherTenant: "The same request by another tenant",
	plan.Altered:     "Another request for the same thing",
	plan.SameMeaning: "The same JSON in other bytes",
	plan.Corrected:   "A refused request, corrected",
	plan.RaceAltered: "A request and its alteration at once",
}

// again holds what was seen of a request that was sent, answered and sent
// again.
type again struct {
	opening
	newer  *opening // another request between the two
	second *attempt // nil if it did not come to that
	more   []*attempt
	// expect is how many effects there must be in all since the reading that
	// second's total counts from.
	expect  int64
	late    bool   // there was a pause between the two
	limited bool   // a duplicate was refused for its rate meanwhile
	why     string // there is no second
	trail   *trail
	signs   []*sign // of what knew the second
}

func (x *exp) duplicate(ctx context.Context) (shown, error) {
	f, err := x.twice(ctx)
	if f == nil {
		return nil, err
	}
	if err != nil || f.second == nil {
		return f, err
	}
	f.trail, err = x.audit(ctx, f.w.v, f.good().resource, f.good().sent, f.second.sent)
	return f, err
}

// twice sends a request and its duplicate.
func (x *exp) twice(ctx context.Context) (*again, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &again{opening: *o, expect: 1}
	if err == nil && o.sound(x.o) {
		if f.signs, err = x.signs(ctx, f.w); err == nil {
			f.second, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good())
		}
		if err == nil {
			err = x.found(ctx, f.signs, f.second.sent)
		}
	}
	f.w.conclude(1)
	return f, err
}

// lateRetry waits longer than usual rate limits last.
func (x *exp) lateRetry(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &again{opening: *o, expect: 1, late: true}
	defer func() { f.w.conclude(1) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	if err := x.pause(ctx, x.o.r.p.Timing.LateAfter); err != nil {
		return f, err
	}
	for n := 0; ; n++ {
		if f.second, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good()); err != nil {
			return f, err
		}
		if !turnedAway(&f.second.x) || f.second.own.exceeds(0) || n == maxWaits || x.o.r.dry() {
			break
		}
		f.limited = f.limited || tooMany(f.second.sent)
		if err := sleep(ctx, min(cmp.Or(retryAfter(&f.second.x), x.o.r.p.Timing.LateAfter), x.o.r.p.Timing.SettleLimit)); err != nil {
			return f, err
		}
	}
	// Where duplicates take effect, two more tell whether all of them do: one
	// of several instances may know the request.
	for len(f.more) < 2 && x.o.facts.doubled && f.second.total.exceeds(1) && x.o.r.send.Left() > 0 {
		a, err := x.again(ctx, f.w, evidence.RoleDuplicate, f.good())
		if err != nil {
			return f, err
		}
		f.more = append(f.more, a)
	}
	return f, nil
}

func (x *exp) retentionEdge(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &again{opening: *o, expect: 1, late: true}
	defer func() { f.w.conclude(1) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	// Of what is left since the first response, nine tenths: the clocks are two.
	kept := x.o.r.p.Target.Retention
	if wait := kept*9/10 - time.Since(f.good().over()); !x.o.r.dry() {
		if wait < 0 {
			f.why = "keys are kept for " + kept.String() + ", which was over before the state was stable"
			return f, nil
		}
		if err := sleep(ctx, wait); err != nil {
			return f, err
		}
	}
	f.second, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good())
	return f, err
}

// reordered sends an older request again after a newer one: a target that
// remembers only the last key treats it as new.
func (x *exp) reordered(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &again{opening: *o, expect: 1}
	defer func() { f.w.conclude(f.expect) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	if f.newer, err = x.open(ctx, "newer"); err != nil || !f.newer.sound(x.o) {
		return f, err
	}
	if !x.o.r.dry() {
		// A number that covers more than one request rises with the newer one too.
		if err := f.w.settle(ctx, f.newer.good().over(), 1); err != nil {
			return f, err
		}
		f.w.rebase()
		f.expect = 0
	}
	f.second, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good())
	return f, err
}
