package probe

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// freshly holds what was seen of the same body under another key.
type freshly struct {
	opening
	second *attempt
	// own is the number of effects seen by readers that look for the second
	// request by its own key.
	own delta
}

// freshKey sends the same body under another key, which tells a key from a
// natural key.
func (x *exp) freshKey(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &freshly{opening: *o}
	due := int64(undue)
	if x.o.contract.FreshKey == "refused" {
		due = 1 // its content makes it one request
	}
	defer func() { f.w.conclude(due) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	v, err := x.o.r.r.FreshKey(f.w.v)
	if errors.Is(err, plan.ErrDerivedKey) {
		return unable("the key is derived from the request, so the same request cannot have another key"), nil
	}
	if err != nil {
		return f, err
	}
	req, err := x.render(v, plan.Change{})
	if err != nil {
		return f, err
	}
	// What is read for the second request may be found by its own key.
	w2, err := x.watch(ctx, v)
	if err != nil {
		return f, err
	}
	mid := f.w.after
	s, err := x.send(ctx, "fresh-key", req, "")
	if err != nil || x.o.r.dry() {
		return f, err
	}
	w2.resource = s.resource
	want := int64(0)
	if success(&s.x) && s.resource != f.good().resource {
		want = 1
	}
	if accepted(&s.x) {
		if err := x.follow(ctx, w2, s); err != nil {
			return f, err
		}
		if s.fate == fateRunning || s.fate == fateFailed {
			want = 0
		}
	}
	f.second = &attempt{sent: s}
	if err := x.settle(ctx, s.over(), wanted{f.w, 1}, wanted{w2, want}); err != nil {
		return f, err
	}
	f.second.settled, f.second.why = f.w.settled && w2.settled, f.w.why+w2.why
	f.second.own, f.own = f.w.since(mid), w2.since(w2.before)
	return f, nil
}

// mismatched holds what was seen of another request under a used key.
type mismatched struct {
	opening
	second *attempt
	// changed: the resource is as the altered request has it; no: it is as it was.
	changed known
}

func (x *exp) altered(ctx context.Context) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &mismatched{opening: *o}
	defer func() { f.w.conclude(1) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	req, err := x.render(f.w.v, plan.Change{Altered: true})
	if err != nil {
		return f, err
	}
	f.w.change = x.o.op.Key == nil
	s, err := x.send(ctx, evidence.RoleAltered, req, "")
	if err != nil {
		return f, err
	}
	if f.second, err = x.lookFor(ctx, f.w, s, 1); err == nil && f.second.succeeded() && !x.o.r.dry() {
		f.changed, err = x.changed(ctx, f.good().sent, s)
	}
	return f, err
}

// inPlace reports whether requests change what is at their address, by their
// method: then what one asks for can happen without another effect to count.
func (o *operation) inPlace() bool {
	return o.op.Request.Method == http.MethodPut || o.op.Request.Method == http.MethodPatch
}

// changed reads the resource that a PUT or a PATCH was to change, at its own
// address, and says whether it is as the altered request has it.
func (x *exp) changed(ctx context.Context, first, altered *sent) (known, error) {
	if !x.o.inPlace() {
		return untold, nil
	}
	before, errA := decodeJSON(first.x.Request.Body)
	after, errB := decodeJSON(altered.x.Request.Body)
	if errA != nil || errB != nil {
		return untold, nil
	}
	got, err := x.o.r.read.Send(as(ctx, ""), asked(&altered.x, altered.x.Request.URL, x.o.op.Key))
	if err != nil {
		return untold, err
	}
	x.book(got, evidence.RoleRead, "")
	if err := ctxErr(ctx); err != nil || got.Response == nil || got.Response.Status != http.StatusOK || got.Response.Truncated {
		return untold, err
	}
	is, err := decodeJSON(got.Response.Body)
	if err != nil {
		return untold, nil
	}
	told := untold
	for _, e := range x.o.op.Altered.Edits {
		old, _ := lookup(before, *e.Pointer)
		want, _ := lookup(after, *e.Pointer)
		have, ok := lookup(is, *e.Pointer)
		switch {
		case ok && reflect.DeepEqual(have, want):
			return yes, nil
		case ok && reflect.DeepEqual(have, old):
			told = no
		}
	}
	return told, nil
}

// ground tests whether a valid key protects, unless that is already known:
// without it, a missing or malformed key shows nothing.
func (x *exp) ground(ctx context.Context) (*again, error) {
	if x.o.facts.protects() != untold || x.o.r.dry() {
		return nil, nil
	}
	before := len(x.e.Sends)
	f, err := x.twice(ctx)
	x.e.After, x.e.Changes = nil, nil // those of the request itself follow
	for i := range x.e.Sends[before:] {
		if s := &x.e.Sends[before+i]; s.Role == evidence.RoleFirst || s.Role == evidence.RoleDuplicate {
			s.Role = evidence.RoleGround
		}
	}
	return f, err
}

// keyless holds what was seen of a request without a key.
type keyless struct {
	ground *again
	only   *attempt
	other  *attempt // one with values of its own, if the first was executed
}

func (x *exp) missingKey(ctx context.Context) (shown, error) {
	f := &keyless{}
	var err error
	if f.ground, err = x.ground(ctx); err != nil || !f.ground.protected(x.o) {
		return f, err
	}
	w, err := x.fresh(ctx)
	if err != nil {
		return f, err
	}
	req, err := x.render(w.v, plan.Change{NoKey: true})
	if err != nil {
		return f, err
	}
	f.only, err = x.single(ctx, w, evidence.RoleWithoutKey, req)
	w.conclude(1)
	if x.o.r.dry() {
		x.plan(evidence.RoleWithoutKey, req, "", 1, "with values of its own, if the first took effect")
	}
	if err != nil || x.o.r.dry() || !success(&f.only.x) || !f.only.total.exceeds(0) || x.o.r.send.Left() == 0 {
		return f, err
	}
	// A target that treats the lack of a key as a key swallows the next request
	// without one.
	w2, err := x.fresh(ctx)
	if err != nil {
		return f, err
	}
	if req, err = x.render(w2.v, plan.Change{NoKey: true}); err != nil {
		return f, err
	}
	f.other, err = x.single(ctx, w2, evidence.RoleWithoutKey, req)
	w2.conclude(1)
	return f, err
}

// single sends a request that may be refused, and looks. Its own effect is as
// good a control as any other.
func (x *exp) single(ctx context.Context, w *watch, role evidence.Role, req wire.Request) (*attempt, error) {
	s, err := x.send(ctx, role, req, "")
	if err != nil {
		return nil, err
	}
	a, err := x.look(ctx, w, s)
	if err == nil && success(&s.x) && !x.o.facts.control {
		x.o.learn(w, a)
	}
	return a, err
}

// misspelt holds what was seen of a malformed key.
type misspelt struct {
	ground        *again
	first, second *attempt
}

func (x *exp) malformedKey(ctx context.Context) (shown, error) {
	f := &misspelt{}
	var err error
	if f.ground, err = x.ground(ctx); err != nil || !f.ground.protected(x.o) || x.o.facts.protects() == no {
		return f, err
	}
	w, err := x.fresh(ctx)
	if err != nil {
		return f, err
	}
	req, err := x.render(w.v, plan.Change{RawKey: malformed(x.o.op.Key, w.v.Key())})
	if err != nil {
		return f, err
	}
	if f.first, err = x.single(ctx, w, evidence.RoleMalformedKey, req); err != nil {
		return f, err
	}
	if x.o.r.dry() {
		x.plan(evidence.RoleMalformedKey, req, "", 1, "if the first was accepted")
		return f, nil
	}
	if success(&f.first.x) {
		s, err := x.resend(ctx, evidence.RoleMalformedKey, f.first.sent)
		if err != nil {
			return f, err
		}
		if f.second, err = x.lookFor(ctx, w, s, 1); err != nil {
			return f, err
		}
		w.conclude(1)
		return f, nil
	}
	w.conclude(0)
	return f, nil
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

// scoped holds what was seen of a used key that somebody else sent.
type scoped struct {
	opening
	who   plan.PrincipalName
	again *attempt // by the first one itself
	other *attempt
}

func (x *exp) otherActor(ctx context.Context) (shown, error)  { return x.other(ctx, plan.ActorB) }
func (x *exp) otherTenant(ctx context.Context) (shown, error) { return x.other(ctx, plan.TenantB) }

// other sends a key of actor A as somebody else.
func (x *exp) other(ctx context.Context, who plan.PrincipalName) (shown, error) {
	o, err := x.open(ctx, evidence.RoleFirst)
	if o == nil {
		return nil, err
	}
	f := &scoped{opening: *o, who: who}
	due := int64(1)
	defer func() { f.w.conclude(due) }()
	if err != nil || !o.sound(x.o) {
		return f, err
	}
	// Without a replay for A itself, one for B would say nothing.
	if f.again, err = x.again(ctx, f.w, evidence.RoleDuplicate, f.good()); err != nil {
		return f, err
	}
	if !x.o.r.dry() && !f.replayed(x.o) {
		return f, nil
	}
	req, err := x.render(f.w.v, plan.Change{As: who})
	if err != nil {
		return f, err
	}
	role := evidence.RoleOtherActor
	if who == plan.TenantB {
		role = evidence.RoleOtherTenant
	}
	// B's own effect is due too if its request counts as another one, and A's
	// reader may not see it.
	due = undue
	s, err := x.send(ctx, role, req, who)
	if err != nil {
		return f, err
	}
	// B's state, if readers can see it, may be separate.
	f.other, err = x.lookFor(ctx, f.w, s, 1)
	return f, err
}
