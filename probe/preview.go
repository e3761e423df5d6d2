package probe

import (
	"context"
	"math/big"
	"slices"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// previews is what the target's own dry run shows.
type previews struct {
	w                           *watch
	first, again, keyless, bent *sent
	settled                     bool
	why                         string
	moved                       map[string]*big.Rat // by which readers' numbers moved
	// used is the operation under the key of the previews, and control a fresh one
	// beside it, if it had no effect.
	used, control *attempt
}

// preview sends the target's own form of a dry run, before anything that has
// effects, and looks whether it has any. If not, it is sent again, without a key
// and with a malformed one. Without a reader, or with one that has seen its
// effect, once is enough. If experiments with effects follow, the operation
// itself is sent last, under the key of the previews, which must still be usable.
func (x *exp) preview(ctx context.Context) (shown, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	f := &previews{w: w, moved: map[string]*big.Rat{}}
	due := int64(0)
	defer func() { w.conclude(due) }()
	req, err := x.render(w.v, plan.Change{Preview: true})
	if err != nil {
		return f, err
	}
	if f.first, err = x.send(ctx, evidence.RolePreview, req, ""); err != nil {
		return f, err
	}
	last := f.first
	more := x.o.r.dry() || success(&f.first.x) && len(x.o.readers) > 0
	if more && !x.o.r.dry() {
		if err := f.look(ctx, x, f.first); err != nil {
			return f, err
		}
		if _, moved := f.most(); moved {
			return f, nil
		}
	}
	if more {
		if f.again, err = x.send(ctx, evidence.RolePreview, req, ""); err != nil {
			return f, err
		}
		last = f.again
	}
	if x.o.op.Key != nil && more {
		if req, err = x.render(w.v, plan.Change{Preview: true, NoKey: true}); err != nil {
			return f, err
		}
		if f.keyless, err = x.send(ctx, "preview-without-key", req, ""); err != nil {
			return f, err
		}
		if req, err = x.render(w.v, plan.Change{Preview: true, RawKey: malformed(x.o.op.Key, w.v.Key())}); err != nil {
			return f, err
		}
		if f.bent, err = x.send(ctx, "preview-malformed-key", req, ""); err != nil {
			return f, err
		}
		last = f.bent
	}
	if !x.o.r.dry() {
		if err := f.look(ctx, x, last); err != nil {
			return f, err
		}
	}
	if _, moved := f.most(); moved || !more || x.o.op.Key == nil || !x.o.effectsFollow() {
		return f, nil
	}
	due = 1
	return f, f.use(ctx, x)
}

// use sends the operation under the key of the previews.
func (f *previews) use(ctx context.Context, x *exp) error {
	req, err := x.render(f.w.v, plan.Change{})
	if err != nil {
		return err
	}
	s, err := x.send(ctx, "previewed", req, "")
	if err != nil || x.o.r.dry() {
		return err
	}
	if f.used, err = x.look(ctx, f.w, s); err != nil {
		return err
	}
	if x.o.learn(f.w, f.used); f.used.total.exceeds(0) {
		return nil
	}
	f.control, err = x.beside(ctx)
	f.used.refresh(f.w)
	return err
}

// effectsFollow reports whether experiments are made that have effects, beside
// the preview.
func (o *operation) effectsFollow() bool {
	return slices.ContainsFunc(o.r.o.experiments(o.r.p, o.op), func(e plan.Experiment) bool {
		return e != plan.Specification && e != plan.PreviewFirst && o.applies(e) == nil &&
			!(o.r.production() && (e.NeverInProduction() || !o.named(e)))
	})
}

// look waits until the state is stable, and notes which readers' numbers moved.
func (f *previews) look(ctx context.Context, x *exp, last *sent) error {
	w := f.w
	if err := w.settle(ctx, last.over(), 0); err != nil {
		return err
	}
	f.settled, f.why = w.settled, w.why
	// No reader has seen an effect yet: what counts is that a number moved.
	for i, rd := range x.o.readers {
		if w.before[i].err == nil && w.after[i].err == nil {
			f.moved[rd.name] = rd.effects(w.before[i], w.after[i])
		}
	}
	return nil
}

// most returns the reader whose number moved; of several, the last by name.
func (f *previews) most() (reader string, moved bool) {
	for name, n := range f.moved {
		if n.Sign() != 0 && name > reader {
			reader, moved = name, true
		}
	}
	return reader, moved
}

func (f *previews) judge(j *judgement) {
	if f.first == nil {
		return
	}
	moved, has := f.most()
	switch r := f.first.x.Response; {
	case has:
		j.broken("the preview was answered with %s and had %s by reader %s, which must see none of it", response(f.first), count(f.moved[moved]), moved)
		j.find(evidence.FindingPreviewExecuted, "", evidence.Established, f.first, f.again, f.keyless, f.bent)
		return
	case !f.first.processed():
		j.unclear("the preview was not processed: %s", response(f.first))
		return
	case r.Status == 404 || r.Status == 405 || r.Status == 501:
		j.unclear("the preview was answered with %s: the target seems to have none there", response(f.first))
		return
	case !success(&f.first.x):
		j.unclear("the preview was refused with %s: the operation itself may be refused as well", response(f.first))
		return
	case !f.settled:
		j.unclear("%s", f.why)
		return
	case len(f.moved) == 0:
		j.unclear("the preview was answered with %s; %s", response(f.first), "no reader tells whether it had an effect")
		return
	}
	j.holds("the preview was answered with %s, and again with %s, and no reader's number moved", response(f.first), response(f.again))
	if f.again.replayed {
		j.holds("the second was marked as a replay: keys of previews are remembered, which does not show whether those of the operation are")
	}
	f.key(j)
	if f.keyless == nil || f.bent == nil {
		return
	}
	for _, c := range []struct {
		s             *sent
		what, without string
	}{{f.keyless, "without a key", "it needs none, or does not look at it"}, {f.bent, "with a malformed key", "it does not look at the form of keys"}} {
		switch {
		case !c.s.processed():
		case success(&c.s.x):
			j.holds("%s it was answered with %s: %s", c.what, response(c.s), c.without)
		default:
			j.holds("%s it was refused with %s: this shows, without an effect, that the key is looked at", c.what, response(c.s))
		}
	}
}

// key judges whether a preview leaves its key as it was.
func (f *previews) key(j *judgement) {
	u := f.used
	if u == nil {
		return
	}
	const under = "the operation under the key of the preview was answered with"
	switch {
	case u.total.exceeds(0):
		j.holds("%s %s and took effect: the preview had not used the key up", under, response(u.sent))
	case !u.settled:
		j.unclear("%s", u.why)
	case !u.processed():
		j.unclear("%s %s, and not processed", under, response(u.sent))
	case accepted(&u.x) && u.fate != fateDone:
		j.unclear("%s %s, and no effect was seen", under, response(u.sent))
	case f.control == nil || !f.control.total.exceeds(0):
		j.unclear("%s %s and had no effect that a reader sees; nor had a fresh request", under, response(u.sent))
	case u.serverError():
		j.unclear("%s %s and had no effect, and a fresh request had one: that may be the key or chance", under, response(u.sent))
	default:
		priority := evidence.P2 // the client is told
		if u.succeeded() {
			priority = evidence.P1
		}
		j.broken("%s %s and had no effect, and a fresh request had one: the preview used the key up", under, response(u.sent))
		j.find(evidence.FindingPreviewUsesKey, priority, evidence.Established, f.first, f.again, u.sent, f.control.sent)
	}
}
