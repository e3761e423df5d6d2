package probe

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// snapshot is what all readers of an operation read, in their order.
type snapshot []reading

// watch follows the effects of one logical request.
type watch struct {
	x        *exp
	v        *plan.Values
	resource string
	before   snapshot
	after    snapshot
	// settled: after is stable. Otherwise why says why it is not.
	settled bool
	why     string
	latency time.Duration // of the last change, after the last request was over
	lag     time.Duration // the same, after its end was told
	// told is when the status of a request that was accepted was last read.
	told time.Time
	// expect is how many effects there must be since before: 1, unless the
	// first request's was there already.
	expect int64
	// promised: a request was answered as done.
	promised bool
	// change: the request may change what is there, and the outside may be notified
	// again.
	change bool
}

// promise notes a response. One that names no resource, where others do, may be
// a refusal by its body.
func (w *watch) promise(s *sent) {
	w.promised = w.promised || s.done() && (s.resource != "" || !w.x.o.facts.names)
}

// rebase makes the present state the state before.
func (w *watch) rebase() {
	w.before, w.expect = w.after, 0
	for i, rd := range w.x.o.readers {
		w.x.note(&w.x.e.Before, rd, w.before[i])
	}
}

// watch begins to follow the effects of requests with the values v.
func (x *exp) watch(ctx context.Context, v *plan.Values) (*watch, error) {
	w := &watch{x: x, v: v, expect: 1}
	if x.o.r.dry() {
		x.planReads(readsBefore)
		return w, nil
	}
	first, err := w.read(ctx)
	if err != nil {
		return nil, err
	}
	// Twice, because a number that moves by itself shows nothing.
	if len(first) > 0 {
		if err := sleep(ctx, x.o.r.p.Timing.Poll); err != nil {
			return nil, err
		}
	}
	if w.before, err = w.read(ctx); err != nil {
		return nil, err
	}
	for i, rd := range x.o.readers {
		if a, b := first[i], w.before[i]; a.err == nil && b.err == nil && !a.same(b) {
			w.before[i].err = errors.New("the number moves by itself")
		}
		x.note(&x.e.Before, rd, w.before[i])
	}
	w.after = w.before
	return w, nil
}

// read reads with every reader. Its error ends the run.
func (w *watch) read(ctx context.Context) (snapshot, error) {
	s := make(snapshot, len(w.x.o.readers))
	for i, rd := range w.x.o.readers {
		a, err := rd.read(ctx, w.v, w.resource)
		a.at, a.err = time.Now(), err
		if over(ctx, err) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else {
				err = fmt.Errorf("reading the state: %w", err)
			}
			return nil, err
		}
		if err == nil && a.number == nil {
			a.err = errors.New("there is no number")
		}
		s[i] = a
	}
	return s, nil
}

// note writes a reading down, with its exchange if it has one.
func (x *exp) note(list *[]evidence.Reading, rd *reader, a reading) {
	if a.x != nil {
		x.book(*a.x, evidence.RoleRead, a.as)
	}
	*list = append(*list, a.evidence(rd))
}

// settle waits until the state is stable, and, where the state can be seen,
// until the effects are at least as many as told. since is when the last
// request was over.
//
// Stable is what has stayed the same for the plan's settle time and for a
// multiple of the longest time that an effect of this operation took to show.
// Where requests are accepted and their status is read, that time begins when the
// status has told their end; and it is waited for as long as all of it took.
func (w *watch) settle(ctx context.Context, since time.Time, atLeast int64) error {
	return w.x.settle(ctx, since, wanted{w, atLeast})
}

// wanted is a watch and the number of effects to wait for.
type wanted struct {
	w       *watch
	atLeast int64
}

// settle waits for several watches at once.
func (x *exp) settle(ctx context.Context, since time.Time, all ...wanted) error {
	t := x.o.r.p.Timing
	if x.o.r.dry() || len(x.o.readers) == 0 {
		for _, want := range all {
			want.w.settled = true
		}
		return nil
	}
	changed, start := since, since
	lag, whole := x.o.lag, time.Duration(0)
	for _, want := range all {
		if want.w.told.After(start) {
			start = want.w.told
		}
	}
	if x.o.latency > x.o.lag {
		whole = x.o.latency + t.Settle
	}
	pause := t.Poll
	for _, want := range all {
		want.w.settled, want.w.why, want.w.latency, want.w.lag = false, "", 0, 0
	}
	for n := 1; ; n++ {
		same, reached, failed := true, true, error(nil)
		for _, want := range all {
			w := want.w
			now, err := w.read(ctx)
			if err != nil {
				return err
			}
			for i := range now {
				if w.before[i].err != nil {
					continue // it cannot tell anything in this experiment
				}
				if !now[i].same(w.after[i]) {
					same = false
					w.latency, w.lag = max(time.Since(since), 0), max(time.Since(start), 0)
					lag = max(lag, w.lag)
				}
				if now[i].err != nil {
					failed = fmt.Errorf("reader %s: %w", x.o.readers[i].name, now[i].err)
				}
			}
			w.after = now
			// A number that fell below its start is not waited for.
			reached = reached && (w.fell() != "" || w.reached(now, want.atLeast))
		}
		at := time.Now()
		if !same {
			changed = at
		}
		need := max(t.Settle, time.Duration(t.StableFor)*lag)
		left := max(need-at.Sub(changed), whole-at.Sub(since))
		stable := failed == nil && left <= 0
		out := at.Sub(start) >= t.SettleLimit+whole
		if stable && reached || out {
			x.e.Settling = fmt.Sprintf("%d readings; the same for the last %v, where %v were needed", n, at.Sub(changed).Round(time.Millisecond), need.Round(time.Millisecond))
			for _, want := range all {
				want.w.settled = stable
				switch {
				case failed != nil:
					want.w.why = "the state cannot be read: " + failed.Error()
				case want.w.fell() != "":
					want.w.settled, want.w.why = false, want.w.fell()
				case !stable:
					want.w.why = fmt.Sprintf("the state was not stable within timing.settle_limit, %v: it was the same for the last %v, where %v were needed, the longer of timing.settle and timing.stable_for times the longest that an effect took to show",
						t.SettleLimit, at.Sub(changed).Round(time.Millisecond), need.Round(time.Millisecond))
				}
			}
			return nil
		}
		// Readings are further and further apart, or they would be many more
		// than what is tried: at once, after a pause, and when the state has
		// been the same for long enough. An effect that is late or lost is
		// looked for some twenty times.
		if !same || failed != nil {
			pause = t.Poll
		}
		wait := min(pause, max(10*t.Poll, t.SettleLimit/20))
		if failed == nil && left > 0 {
			wait = min(pause, left)
		}
		if err := sleep(ctx, max(wait, time.Millisecond)); err != nil {
			return err
		}
		pause = min(4*pause, time.Hour)
	}
}

// fell says that the number of a reader that sees effects is below what it was
// before the request; empty if none is. It then reads more than the effects of the
// request: something else went, such as a record that expired, and hides as many
// effects.
func (w *watch) fell() string {
	for i, rd := range w.x.o.readers {
		a, b := w.before[i], w.after[i]
		if !rd.seen || rd.outside || a.err != nil || b.err != nil {
			continue
		}
		if n := rd.effects(a, b); n.Sign() < 0 {
			return fmt.Sprintf("the number of reader %s fell from %s to %s: it reads more than the effects of the request", rd.name, text(a.number), text(b.number))
		}
	}
	return ""
}

// effects is by how many effects a reader's number rose.
func (rd *reader) effects(before, after reading) *big.Rat {
	d := new(big.Rat).Sub(after.number, before.number)
	return d.Quo(d, rd.effect)
}

func (w *watch) reached(now snapshot, atLeast int64) bool {
	want := big.NewRat(atLeast, 1)
	for i, rd := range w.x.o.readers {
		if w.before[i].err != nil || now[i].err != nil || !rd.seen && w.x.o.facts.controls > 0 {
			continue
		}
		if rd.effects(w.before[i], now[i]).Cmp(want) < 0 {
			return false
		}
	}
	return true
}

// since returns the effects between a snapshot and now.
func (w *watch) since(from snapshot) delta { return w.between(from, w.after) }

// between returns the effects between two snapshots. Readers that have not seen
// one before do not count.
func (w *watch) between(from, to snapshot) delta {
	var d delta
	if len(from) == 0 {
		return d
	}
	for i, rd := range w.x.o.readers {
		if from[i].err != nil || to[i].err != nil {
			continue
		}
		d.looked = true
		if !rd.seen {
			continue
		}
		n := rd.effects(from[i], to[i])
		d.all = append(d.all, rise{rd.name, rd.outside, n})
		most, least, by := &d.most, &d.least, &d.by
		if rd.outside {
			d.outside = true
			most, least, by = &d.outMost, &d.outLeast, &d.outBy
			if to[i].distinct > 0 && more(n, int64(to[i].distinct-from[i].distinct)) && from[i].distinct >= 0 {
				d.sameID = true
			}
		} else {
			d.state = true
		}
		if *most == nil || n.Cmp(*most) > 0 {
			*most, *by = n, rd.name
		}
		if *least == nil || n.Cmp(*least) < 0 {
			*least = n
		}
	}
	return d
}

// undue: how many effects are due is what the experiment asks.
const undue = -1

// conclude records the last readings and the changes. due is how many effects
// there must be if a request was answered as done. If none was, there may be
// fewer, but not more.
func (w *watch) conclude(due int64) {
	x := w.x
	if x.o.r.dry() {
		return
	}
	for i, rd := range x.o.readers {
		a, b := w.before[i], w.after[i]
		x.note(&x.e.After, rd, b)
		if a.err != nil || b.err != nil {
			continue
		}
		n := rd.effects(a, b)
		c := evidence.Change{Reader: rd.name, Name: "effects", Before: text(a.number), After: text(b.number), Expected: due}
		if rd.outside && w.change {
			c.Expected = undue
		}
		if due > 0 && !w.promised && n.Sign() <= 0 {
			c.Expected = 0
		}
		if n.IsInt() && n.Num().IsInt64() {
			c.Effects = n.Num().Int64()
			if n.Sign() < 0 && w.why != "" {
				// It does not give a number of effects.
				c.Name, c.Expected = "effects: the number fell", undue
			} else if w.moving(n, c.Expected) {
				c.Name = "effects: not settled, " + text(n) + " so far"
			}
		} else {
			c.Name = "effects: " + text(n)
		}
		x.e.Changes = append(x.e.Changes, c)
	}
}

// moving reports whether a number of effects is not final: the state was not
// stable when it was read, and there are no more effects than are due.
func (w *watch) moving(n *big.Rat, due int64) bool {
	return !w.settled && (w.why != "" || n.Sign() != 0) && due != undue && !more(n, due)
}

// count writes a number of effects.
func count(n *big.Rat) string {
	switch {
	case n == nil:
		return "an unknown number of effects"
	case is(n, 1):
		return "1 effect"
	case is(n, 0):
		return "no effect"
	case n.IsInt():
		return n.Num().String() + " effects"
	}
	return text(n) + " times the effect"
}

func times(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
