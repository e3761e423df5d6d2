package probe

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// operation is an operation under test, and what is known about it so far.
type operation struct {
	r        *runner
	op       *plan.Operation
	contract plan.Contract
	assumed  bool // that it requires keys is the default's word, and nobody else's
	ev       evidence.Operation
	readers  []*reader
	latency  time.Duration // the longest that an effect took to show, after the response
	lag      time.Duration // the same after the end was told, for what is accepted
	takes    time.Duration // that the operation took, by its fastest control
	facts    facts
}

func (r *runner) dry() bool { return !r.o.Send }

func (r *runner) newOperation(op *plan.Operation) *operation {
	o := &operation{r: r, op: op, contract: r.p.ContractFor(op), assumed: r.p.AssumesContract(op)}
	o.facts.outcomes = map[plan.Experiment]evidence.Outcome{}
	o.ev = evidence.Operation{
		Name: op.Name, Method: op.Request.Method, URL: op.Request.URL, Profile: o.contract.Profile, Source: r.p.Target.Specification, Signed: op.Signature != nil,
		Assumed: o.assumed, KeyIn: keyIn(op.Key),
		Verdict: evidence.UnknownVerdict(), Experiments: []evidence.Experiment{}, Findings: []evidence.Finding{}, Statements: []evidence.Statement{},
	}
	if file, line := r.p.Where(op.Name); file != "" {
		o.ev.Source, o.ev.SourceLine = file, line
	}
	if op.Key == nil && o.assumed {
		o.ev.Profile, o.ev.Assumed = "none", false // what it says is of keys
	}
	o.makeReaders()
	if v, err := r.r.Draw(op.Name); err == nil {
		if req, err := r.r.Request(v, plan.Change{}); err == nil {
			o.ev.URL, _, _ = strings.Cut(req.URL, "?")
		}
	}
	return o
}

// keyIn says where a key is.
func keyIn(k *plan.Key) string {
	switch {
	case k == nil:
		return evidence.NoKey
	case k.Header != "":
		return "header " + k.Header
	case k.Query != "":
		return "query " + k.Query
	}
	return "body " + string(k.Body)
}

// run runs the operation's experiments and judges. If the run is over already,
// they are only listed. It returns what ends the run.
func (o *operation) run(ctx context.Context, ended error) error {
	for _, name := range o.r.o.experiments(o.r.p, o.op) {
		k := kinds[name]
		x := &exp{o: o, kind: name, e: evidence.Experiment{Name: string(name), Step: k.step, Title: k.title, Outcome: evidence.NotRun}}
		if t := keylessTitles[name]; t != "" && o.op.Key == nil {
			x.e.Title = t
		}
		switch err := o.applies(name); {
		case err != nil:
			x.e.Outcome, x.e.Why = evidence.NotApplicable, err.Error()
		case o.r.production() && name.NeverInProduction():
			x.e.Why = "refused in production: it races, cuts off or provokes failures"
		case o.r.production() && !o.named(name):
			x.e.Why = "not named; in production it must be named"
		case ended != nil:
			x.e.Why = "the run had ended: " + ended.Error()
		default:
			ended = x.run(ctx, k.run)
		}
		o.facts.outcomes[name] = x.e.Outcome
		o.ev.Experiments = append(o.ev.Experiments, x.e)
		o.r.progress(Event{Operation: o.op.Name, Experiment: name, Outcome: x.e.Outcome, Why: x.e.Why})
	}
	o.collate()
	if !o.r.dry() {
		o.judge()
	}
	return ended
}

// applies returns why an experiment means nothing for the operation.
func (o *operation) applies(name plan.Experiment) error {
	if name == plan.OtherActor && o.op.Key == nil {
		return errors.New("the operation has no key that an actor could own")
	}
	return o.r.p.Applies(o.op, name)
}

// named reports whether somebody chose the experiment, by name or by leaving the
// default.
func (o *operation) named(e plan.Experiment) bool {
	return slices.Contains(o.r.o.Only, e) || slices.Contains(o.r.p.ExperimentsFor(o.op), e)
}

// exp is one experiment: what is sent and read, and the evidence of it. It is
// judged separately.
type exp struct {
	o    *operation
	kind plan.Experiment
	e    evidence.Experiment
}

// shown is what an experiment has shown. Judging it sends and reads nothing.
type shown interface{ judge(j *judgement) }

// DryRun is the Why of experiments that a dry run has planned.
const DryRun = "dry run"

func (x *exp) run(ctx context.Context, f func(*exp, context.Context) (shown, error)) (ended error) {
	x.o.r.progress(Event{Operation: x.o.op.Name, Experiment: x.kind})
	x.e.Started = time.Now()
	j := &judgement{o: x.o, e: &x.e}
	err := x.prepare(ctx)
	if err == nil {
		err = x.reset(ctx)
	}
	if err == nil {
		var what shown
		if what, err = f(x, ctx); what != nil && (!x.o.r.dry() || err == nil && offline(what)) {
			what.judge(j)
		}
	}
	x.e.Ended = time.Now()
	switch {
	case err == nil:
	case over(ctx, err):
		if ended = err; ctx.Err() != nil {
			ended = context.Cause(ctx)
		}
		j.unclear("the run ended: %v", ended)
	default:
		j.unclear("%v", err)
	}
	switch {
	case x.o.r.dry() && err == nil:
		x.e.Outcome, x.e.Why = evidence.NotRun, strings.Join(append([]string{DryRun}, j.open...), "; ")
	default:
		x.e.Outcome, x.e.Why = j.outcome()
	}
	return ended
}

// unable is the result of an experiment that cannot be made.
type unable string

func (u unable) judge(j *judgement) { j.unclear("%s", string(u)) }

// offline reports whether something is shown without anything being sent.
func offline(what shown) bool {
	_, ok := what.(unable)
	return ok
}

// render renders a request.
func (x *exp) render(v *plan.Values, c plan.Change) (wire.Request, error) {
	x.drew(v)
	return x.o.r.r.Request(v, c)
}

// send sends a request, or lists it in a dry run.
func (x *exp) send(ctx context.Context, role evidence.Role, req wire.Request, who plan.PrincipalName) (*sent, error) {
	if x.o.r.dry() {
		return x.plan(role, req, who, 1, ""), nil
	}
	got, err := x.o.r.send.Send(as(ctx, who), req)
	if err != nil {
		return nil, err
	}
	return x.sent(got, role, who), ctxErr(ctx)
}

// ctxErr is nil for as long as the run goes on: what was sent has been written
// down when it ends.
func ctxErr(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// cut sends a request and cuts it off.
func (x *exp) cut(ctx context.Context, role evidence.Role, req wire.Request, cut wire.Cut, where string) (*sent, error) {
	if x.o.r.dry() {
		return x.plan(role, req, "", 1, "cut "+where), nil
	}
	got, err := x.o.r.send.SendCut(as(ctx, ""), req, cut)
	if err != nil {
		return nil, err
	}
	s := x.sent(got, role, "")
	if got.Cut {
		x.e.Sends[len(x.e.Sends)-1].Cut = where
	}
	return s, ctxErr(ctx)
}

// plan lists a request that would be sent.
func (x *exp) plan(role evidence.Role, req wire.Request, who plan.PrincipalName, n int, note string) *sent {
	x.planReadsOf(role, n)
	b, err := req.Bytes()
	if err != nil {
		b = []byte(err.Error())
	}
	x.o.r.planned = append(x.o.r.planned, Planned{Operation: x.o.op.Name, Experiment: x.kind, Role: role, Times: n, Bytes: b, Note: note})
	out := &sent{x: wire.Exchange{Request: req, Timing: wire.Timing{Start: time.Now(), Done: time.Now()}}}
	out.n = x.book(out.x, role, who)
	return out
}

// sent records an exchange.
func (x *exp) sent(got wire.Exchange, role evidence.Role, who plan.PrincipalName) *sent {
	s := &sent{x: x.o.meant(got), replayed: x.o.replayed(&got)}
	s.resource = x.o.resource(&s.x)
	s.n = x.book(got, role, who)
	e := &x.e.Sends[len(x.e.Sends)-1]
	e.Resource, e.Replayed = s.resource, s.replayed
	if r := got.Response; r != nil {
		e.SaysError = r.Status/100 == 2 && (s.status() >= 400 || saysError(s.x.Response))
		if r.Header.Get("Idempotency-Expires") != "" {
			x.o.facts.expires = true
		}
	}
	return s
}

// book numbers an exchange and records what the evidence needs of it.
func (x *exp) book(got wire.Exchange, role evidence.Role, who plan.PrincipalName) int {
	us := func(t time.Time) int64 {
		if t.IsZero() {
			return -1
		}
		return t.Sub(x.e.Started).Microseconds()
	}
	e := evidence.Send{
		N: x.o.r.book(got), Role: role, Principal: string(cmp.Or(who, plan.ActorA)), Method: got.Request.Method, URL: got.Request.URL,
		Delivery: got.Delivery.String(), Acked: got.Acked,
		StartUS: us(got.Timing.Start), LastWriteUS: us(got.Timing.LastWrite), FirstByteUS: us(got.Timing.FirstByte), DoneUS: us(got.Timing.Done),
	}
	if got.Protocol != wire.Auto {
		e.Protocol = got.Protocol.String()
	}
	if r := got.Response; r != nil {
		sum := sha256.Sum256(r.Body)
		e.Status, e.Body, e.Bytes = r.Status, hex.EncodeToString(sum[:]), len(r.Body)
	}
	if got.Err != nil {
		e.Err = got.Err.Error()
	}
	x.e.Sends = append(x.e.Sends, e)
	return e.N
}

// reset does the plan's reset.
func (x *exp) reset(ctx context.Context) error {
	h, err := x.o.r.r.Reset()
	if err != nil || h == nil {
		return err
	}
	if h.Argv != nil {
		if x.o.r.dry() {
			return nil
		}
		_, err := x.o.r.command(ctx, h.Argv, x.o.r.p.Timing.Timeout)
		if err != nil {
			return fmt.Errorf("reset: %w", err)
		}
		return nil
	}
	s, err := x.send(ctx, evidence.RoleReset, h.Request, x.o.r.p.Reset.HTTP.As)
	if err == nil && !x.o.r.dry() && !success(&s.x) {
		err = errors.New("the reset failed")
	}
	return err
}

// maxWaits is how often a request that was turned away is sent again.
const maxWaits = 3

// fresh draws a new request and starts watching its effects.
func (x *exp) fresh(ctx context.Context) (*watch, error) { return x.freshTimes(ctx, 1) }

// freshTimes is fresh for n requests of which a dry run lists one.
func (x *exp) freshTimes(ctx context.Context, n int) (*watch, error) {
	v, err := x.drawTimes(ctx, n)
	if err != nil {
		return nil, err
	}
	return x.watch(ctx, v)
}

// open sends the first request of an experiment and waits for its effect. If it
// does not succeed, the state is read all the same, and the request is sent
// again.
func (x *exp) open(ctx context.Context, role evidence.Role) (*opening, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	return x.openWith(ctx, w, role)
}

func (x *exp) openWith(ctx context.Context, w *watch, role evidence.Role) (*opening, error) {
	req, err := x.render(w.v, plan.Change{})
	if err != nil {
		return nil, err
	}
	o := &opening{w: w}
	for n := 0; ; n++ {
		s, err := x.send(ctx, role, req, "")
		if err != nil {
			return nil, err
		}
		if x.o.r.dry() {
			x.o.facts.controls++ // as if it had shown its effect
			o.first, o.planned = &attempt{sent: s}, true
			return o, nil
		}
		if o.first, err = x.look(ctx, w, s); err != nil {
			return o, err
		}
		x.o.learn(w, o.first)
		// A limit of rate says when to come back; as a rule nothing was done.
		if !turnedAway(&s.x) || s.x.Delivery != wire.Answered || n == maxWaits || o.first.own.exceeds(0) {
			break
		}
		if err := sleep(ctx, min(cmp.Or(retryAfter(&s.x), x.o.r.p.Timing.LateAfter), x.o.r.p.Timing.SettleLimit)); err != nil {
			return o, err
		}
	}
	first := o.first
	switch {
	case first.succeeded(), turnedAway(&first.x) && !first.total.exceeds(0):
		return o, nil
	case refused(first):
		if o.alike = x.o.facts.refused; o.alike {
			return o, nil // what a retry and a fresh request would show was shown
		}
	}
	if o.retry, err = x.retry(ctx, w, first); err != nil {
		return o, err
	}
	x.o.learn(w, o.retry)
	blind := success(&o.retry.x) && !x.o.sighted() && !o.retry.total.told()
	if blind || refused(o.retry) {
		// Whether effects can be seen at all, and fresh requests are let
		// through, another request shows.
		if o.control, err = x.beside(ctx); err != nil {
			return o, err
		}
		o.retry.refresh(w)
		x.o.facts.refused = refused(first) && refused(o.retry) && refused(o.control)
	}
	return o, nil
}

// refused reports whether a request was refused, by its status or by an error in
// the body of a 2xx, and had no effect.
func refused(a *attempt) bool {
	by := a.status()/100 == 4 || a.x.Response != nil && saysError(a.x.Response)
	return by && !a.total.exceeds(0)
}

// beside sends a fresh request beside others, to compare with.
func (x *exp) beside(ctx context.Context) (*attempt, error) {
	w, err := x.fresh(ctx)
	if err != nil {
		return nil, err
	}
	req, err := x.render(w.v, plan.Change{})
	if err != nil {
		return nil, err
	}
	s, err := x.send(ctx, evidence.RoleControl, req, "")
	if err != nil {
		return nil, err
	}
	a, err := x.look(ctx, w, s)
	if err == nil {
		x.o.learn(w, a)
	}
	return a, err
}

// look waits until the state is stable after a request, and for the effect that
// its response promises.
func (x *exp) look(ctx context.Context, w *watch, s *sent) (*attempt, error) {
	want := int64(0)
	if success(&s.x) {
		want = w.expect
	}
	return x.lookFor(ctx, w, s, want)
}

// lookFor waits for at least so many effects in all.
func (x *exp) lookFor(ctx context.Context, w *watch, s *sent, want int64) (*attempt, error) {
	a := &attempt{sent: s}
	if x.o.r.dry() {
		return a, nil
	}
	if w.resource == "" {
		w.resource = s.resource
	}
	a.from = w.after
	if accepted(&s.x) {
		if err := x.follow(ctx, w, s); err != nil {
			return a, err
		}
		switch s.fate {
		case fateDone:
			want = max(want, w.expect)
		case fateRunning, fateFailed:
			want = 0
		}
		if w.resource == "" {
			w.resource = s.resource
		}
	}
	w.promise(s)
	if err := w.settle(ctx, s.over(), want); err != nil {
		return a, err
	}
	a.to, a.settled, a.why = w.after, w.settled, w.why
	a.refresh(w)
	return a, nil
}

// learn notes which readers saw the effect of a request, and how fast. A reader
// counts as sighted once its number rose by one, whatever the response was.
func (o *operation) learn(w *watch, a *attempt) {
	if o.r.dry() {
		return
	}
	rose := false
	for i, rd := range o.readers {
		if len(w.before) == 0 || w.before[i].err != nil || w.after[i].err != nil || !is(rd.effects(w.before[i], w.after[i]), 1) {
			continue
		}
		rd.seen, rose = true, true
		if !rd.outside {
			o.facts.control = true
		}
	}
	if success(&a.x) {
		o.facts.controls, o.facts.refused = o.facts.controls+1, false
		o.facts.names = o.facts.names || rose && a.resource != ""
		o.facts.async = o.facts.async || accepted(&a.x)
		if d := a.x.Timing.FirstByte.Sub(a.x.Timing.LastWrite); o.takes == 0 || d < o.takes {
			o.takes = max(d, time.Microsecond)
		}
	}
	if rose && w.settled {
		o.latency, o.lag = max(o.latency, w.latency), max(o.lag, w.lag)
	}
	a.refresh(w)
}

// sighted reports whether some reader can see effects.
func (o *operation) sighted() bool {
	return slices.ContainsFunc(o.readers, func(rd *reader) bool { return rd.seen })
}

func (o *operation) seenBy() string {
	var names []string
	for _, rd := range o.readers {
		if rd.seen {
			names = append(names, rd.name)
		}
	}
	return strings.Join(names, ", ")
}

// control makes sure that the effect of a fresh request has been seen by now.
// It returns nil if it has.
func (x *exp) control(ctx context.Context) (*opening, error) {
	if x.o.facts.controls > 0 {
		return nil, nil
	}
	return x.open(ctx, evidence.RoleControl)
}

// resend sends the bytes of a request again.
func (x *exp) resend(ctx context.Context, role evidence.Role, first *sent) (*sent, error) {
	return x.send(ctx, role, first.x.Request, "")
}

// again sends the bytes of a request again and looks at the state.
func (x *exp) again(ctx context.Context, w *watch, role evidence.Role, first *attempt) (*attempt, error) {
	s, err := x.resend(ctx, role, first.sent)
	if err != nil {
		return nil, err
	}
	return x.look(ctx, w, s)
}

func (x *exp) pause(ctx context.Context, d time.Duration) error {
	if x.o.r.dry() {
		return nil
	}
	return sleep(ctx, d)
}

// answered reports whether a request was answered, and how.
func answered(s *sent) string {
	switch {
	case s.x.Response == nil && s.x.Delivery == wire.Unanswered && s.x.Err != nil:
		return "was not answered (" + s.x.Err.Error() + ")"
	case s.x.Response == nil:
		return "was not answered: " + response(s)
	}
	return "was answered with " + response(s)
}

// response says how a request was answered.
func response(s *sent) string {
	switch {
	case s.x.Response != nil && s.x.Response.Truncated:
		return fmt.Sprintf("%d, cut off", s.x.Response.Status)
	case s.fate == fateFailed:
		return fmt.Sprintf("%d, and failed by its status", s.x.Response.Status)
	case s.x.Response != nil && saysError(s.x.Response):
		return fmt.Sprintf("%d with an error in its body", s.x.Response.Status)
	case s.x.Response != nil:
		return status(s.x.Response)
	case s.x.Err != nil:
		return s.x.Delivery.String() + " (" + s.x.Err.Error() + ")"
	}
	return s.x.Delivery.String()
}
