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
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/wire"
)

// operation is what is being found out about an operation.
type operation struct {
	r        *runner
	op       *plan.Operation
	contract plan.Contract
	ev       evidence.Operation
	readers  []*reader
	latency  time.Duration // the longest that an effect took to show
	takes    time.Duration // that the operation took, by its fastest control
	facts    facts
}

// facts are what experiments have shown, for the verdict.
type facts struct {
	outcomes map[plan.Experiment]evidence.Outcome
	why      map[plan.Experiment]string

	control     bool // a state reader saw the effect of a fresh request
	controls    int  // how often
	duplicate   *evidence.Second
	once        bool // a duplicate had no effect of its own, by the state
	doubled     bool // it had one
	doubledBy   []*sent
	marked      bool // a replay said that it is one
	replayed    bool // actor A's key was answered from its record
	fresh       string
	noKeyRan    bool
	noKey       *sent
	limited     bool // a duplicate got 429
	actorApart  string
	tenantApart string
	inFlight    string
	retry       []string // safe_stop, unsafe_retry
	race        *evidence.Race
	outsideOK   int // experiments in which the outside saw what the state saw
	outsideBad  bool
	audit       string
	expires     bool // answers say until when a key is kept
	errors5xx   int
	specified   *specification
}

func (r *runner) dry() bool { return !r.o.Send }

func (r *runner) newOperation(op *plan.Operation) *operation {
	o := &operation{r: r, op: op, contract: r.p.ContractFor(op)}
	o.facts.outcomes, o.facts.why = map[plan.Experiment]evidence.Outcome{}, map[plan.Experiment]string{}
	o.ev = evidence.Operation{
		Name: op.Name, Method: op.Request.Method, URL: op.Request.URL, Profile: o.contract.Profile, Source: r.p.Target.Specification,
		Verdict: evidence.UnknownVerdict(), Experiments: []evidence.Experiment{}, Findings: []evidence.Finding{}, Statements: []evidence.Statement{},
	}
	o.makeReaders()
	if v, err := r.r.Draw(op.Name); err == nil {
		if req, err := r.r.Request(v, plan.Change{}); err == nil {
			o.ev.URL, _, _ = strings.Cut(req.URL, "?")
		}
	}
	return o
}

// run runs the operation's experiments and judges. If the run is over already,
// they are only listed. It returns what ends the run.
func (o *operation) run(ctx context.Context, ended error) error {
	for _, name := range o.r.o.experiments(o.r.p, o.op) {
		k := kinds[name]
		x := &exp{o: o, kind: name, e: evidence.Experiment{Name: string(name), Step: k.step, Title: k.title, Outcome: evidence.NotRun}}
		switch err := o.r.p.Applies(o.op, name); {
		case err != nil:
			x.e.Outcome, x.e.Why = evidence.NotApplicable, err.Error()
		case o.r.production() && name.NeverInProduction():
			x.e.Why = "refused in production: it races, cuts off or provokes failures"
		case o.r.production() && !o.named(name):
			x.e.Why = "not named: in production it has to be"
		case ended != nil:
			x.e.Why = "the run had ended: " + ended.Error()
		default:
			ended = x.run(ctx, k.run)
		}
		o.facts.outcomes[name], o.facts.why[name] = x.e.Outcome, x.e.Why
		o.ev.Experiments = append(o.ev.Experiments, x.e)
		o.r.progress(Event{Operation: o.op.Name, Experiment: name, Outcome: x.e.Outcome, Why: x.e.Why})
	}
	if !o.r.dry() {
		o.judge()
	}
	return ended
}

// named says whether somebody chose the experiment, by name or by leaving the
// default.
func (o *operation) named(e plan.Experiment) bool {
	return slices.Contains(o.r.o.Only, e) || slices.Contains(o.r.p.ExperimentsFor(o.op), e)
}

// exp is one experiment.
type exp struct {
	o    *operation
	kind plan.Experiment
	e    evidence.Experiment
	held []string
	open []string // why it is inconclusive
	bad  []string
}

// DryRun is the Why of experiments that a dry run has planned.
const DryRun = "dry run"

// errStop ends an experiment, whose outcome is set.
var errStop = errors.New("the experiment is over")

func (x *exp) run(ctx context.Context, f func(*exp, context.Context) error) (ended error) {
	x.o.r.progress(Event{Operation: x.o.op.Name, Experiment: x.kind})
	x.e.Started = time.Now()
	err := x.prepare(ctx)
	if err == nil {
		err = x.reset(ctx)
	}
	if err == nil {
		err = f(x, ctx)
	}
	x.e.Ended = time.Now()
	switch {
	case err == nil || errors.Is(err, errStop):
	case over(ctx, err):
		if ended = err; ctx.Err() != nil {
			ended = context.Cause(ctx)
		}
		x.unclear("the run ended: %v", ended)
	default:
		x.unclear("%v", err)
	}
	switch {
	case x.o.r.dry() && err == nil:
		x.e.Outcome, x.e.Why = evidence.NotRun, strings.Join(append([]string{DryRun}, x.open...), "; ")
	case len(x.bad) > 0:
		x.e.Outcome, x.e.Why = evidence.Broken, strings.Join(x.bad, "; ")
	case len(x.open) > 0:
		x.e.Outcome, x.e.Why = evidence.Inconclusive, strings.Join(x.open, "; ")
	case len(x.held) > 0:
		x.e.Outcome, x.e.Why = evidence.Held, strings.Join(x.held, "; ")
	default:
		x.e.Outcome, x.e.Why = evidence.Inconclusive, "nothing was shown"
	}
	return ended
}

// What an experiment came to: what is broken outweighs what is unclear, and
// that what held.
func (x *exp) holds(format string, args ...any)   { add(&x.held, format, args...) }
func (x *exp) unclear(format string, args ...any) { add(&x.open, format, args...) }
func (x *exp) broken(format string, args ...any)  { add(&x.bad, format, args...) }

func add(list *[]string, format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(*list, s) {
		*list = append(*list, s)
	}
}

// find adds a finding of the catalogue, for what was shown in this experiment.
func (x *exp) find(id string, priority evidence.Priority, basis evidence.Basis, sends ...*sent) {
	entry, ok := evidence.Lookup(id)
	if !ok {
		panic("probe: no finding " + id) // a test goes through all of them
	}
	var ns []int
	for _, s := range sends {
		if s != nil && s.n > 0 {
			ns = append(ns, s.n)
		}
	}
	f := entry.Finding(x.e.Name, ns...)
	f.Priority, f.Basis = cmp.Or(priority, f.Priority), cmp.Or(basis, f.Basis)
	x.o.find(f)
}

// find adds a finding, or makes the one there is heavier.
func (o *operation) find(f evidence.Finding) {
	i := slices.IndexFunc(o.ev.Findings, func(g evidence.Finding) bool { return g.ID == f.ID })
	if i < 0 {
		o.ev.Findings = append(o.ev.Findings, f)
		return
	}
	g := &o.ev.Findings[i]
	g.Priority = min(g.Priority, f.Priority)
	if f.Basis == evidence.Established {
		g.Basis = f.Basis
	}
	for _, n := range f.Sends {
		if !slices.Contains(g.Sends, n) {
			g.Sends = append(g.Sends, n)
		}
	}
}

// sent is a request that was sent.
type sent struct {
	x        wire.Exchange
	n        int
	resource string
	replayed bool
}

// over is when it was over.
func (s *sent) over() time.Time { return s.x.Timing.Done }

// render renders a request.
func (x *exp) render(v *plan.Values, c plan.Change) (wire.Request, error) {
	return x.o.r.r.Request(v, c)
}

// send sends a request, or lists it in a dry run.
func (x *exp) send(ctx context.Context, role string, req wire.Request, who plan.PrincipalName) (*sent, error) {
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
func (x *exp) cut(ctx context.Context, role string, req wire.Request, cut wire.Cut, where string) (*sent, error) {
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
func (x *exp) plan(role string, req wire.Request, who plan.PrincipalName, n int, note string) *sent {
	b, err := req.Bytes()
	if err != nil {
		b = []byte(err.Error())
	}
	x.o.r.planned = append(x.o.r.planned, Planned{Operation: x.o.op.Name, Experiment: x.kind, Role: role, Times: n, Bytes: b, Note: note})
	out := &sent{x: wire.Exchange{Request: req, Timing: wire.Timing{Start: time.Now(), Done: time.Now()}}}
	out.n = x.book(out.x, role, who)
	return out
}

// sent writes an exchange down.
func (x *exp) sent(got wire.Exchange, role string, who plan.PrincipalName) *sent {
	s := &sent{x: x.o.meant(got), replayed: x.o.replayed(&got)}
	s.resource = x.o.resource(&s.x)
	s.n = x.book(got, role, who)
	e := &x.e.Sends[len(x.e.Sends)-1]
	e.Resource, e.Replayed = s.resource, s.replayed
	if r := got.Response; r != nil {
		if r.Header.Get("Idempotency-Expires") != "" {
			x.o.facts.expires = true
		}
	}
	return s
}

// book gives an exchange its number and writes down what evidence needs of it.
func (x *exp) book(got wire.Exchange, role string, who plan.PrincipalName) int {
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
	s, err := x.send(ctx, "reset", h.Request, x.o.r.p.Reset.HTTP.As)
	if err == nil && !x.o.r.dry() && !success(&s.x) {
		err = errors.New("the reset failed")
	}
	return err
}

// maxWaits is how often a request that was turned away is sent again.
const maxWaits = 3

// first sends the first request of an experiment and waits for its effect: the
// control of the experiment. With any error it has set the outcome.
func (x *exp) first(ctx context.Context, c plan.Change) (*watch, *sent, error) {
	v, err := x.draw(ctx)
	if err != nil {
		return nil, nil, err
	}
	w, err := x.watch(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	s, err := x.firstOf(ctx, w, c, "first")
	return w, s, err
}

func (x *exp) firstOf(ctx context.Context, w *watch, c plan.Change, role string) (*sent, error) {
	req, err := x.render(w.v, c)
	if err != nil {
		return nil, err
	}
	var s *sent
	for n := 0; ; n++ {
		if s, err = x.send(ctx, role, req, c.As); err != nil {
			return nil, err
		}
		if x.o.r.dry() {
			x.o.facts.controls++ // as if it had shown its effect
			return s, nil
		}
		// A limit of rate says when to come back; nothing was done.
		if !turnedAway(&s.x) || s.x.Delivery != wire.Answered || n == maxWaits {
			break
		}
		if err := sleep(ctx, min(cmp.Or(retryAfter(&s.x), x.o.r.p.Timing.LateAfter), x.o.r.p.Timing.SettleLimit)); err != nil {
			return nil, err
		}
	}
	if !success(&s.x) {
		x.unclear("the first request did not succeed: %s", answer(s))
		return s, errStop
	}
	w.resource = s.resource
	before := w.before
	if err := w.settle(ctx, s.over(), 1); err != nil {
		return nil, err
	}
	x.o.learn(w, s, before)
	if len(x.o.readers) == 0 {
		return s, nil
	}
	if !w.settled {
		w.conclude(1)
		x.unclear("%s", w.why)
		return s, errStop
	}
	d := w.since(before, false)
	switch {
	case !d.state && !d.outside:
		w.conclude(1)
		x.unclear("no reader sees the effect of a fresh request (%s), so none could see a second one", x.blind(w, before))
		return s, errStop
	case less(d.least, 1) || !d.state && less(d.outLeast, 1):
		w.conclude(1)
		x.broken("the first request was answered with %s and had %s, which reader %s has seen for others", answer(s), count(cmp.Or(d.least, d.outLeast)), x.o.seenBy())
		x.find("lost-effect", "", evidence.Established, s)
		return s, errStop
	case d.state && less(d.outLeast, 1):
		w.conclude(1)
		x.o.facts.outsideBad = true
		x.broken("the first request took effect, and the outside, which was told of others, was not told of it")
		x.find("lost-effect", "", evidence.Established, s)
		return s, errStop
	case more(d.most, 1) || !d.state && more(d.outMost, 1):
		w.conclude(1)
		x.unclear("a single fresh request had %s by reader %s: what it reads is not of this request alone", count(cmp.Or(d.most, d.outMost)), cmp.Or(d.by, d.outBy))
		return s, errStop
	}
	return s, nil
}

// learn takes from a control which readers see effects, and how fast.
func (o *operation) learn(w *watch, s *sent, before snapshot) {
	for i, rd := range o.readers {
		if len(before) == 0 || before[i].err != nil || w.after[i].err != nil || !is(rd.effects(before[i], w.after[i]), 1) {
			continue
		}
		rd.seen = true
		if !rd.outside {
			o.facts.control = true
		}
	}
	o.facts.controls++
	if d := s.x.Timing.FirstByte.Sub(s.x.Timing.LastWrite); o.takes == 0 || d < o.takes {
		o.takes = max(d, time.Microsecond)
	}
	if w.settled && w.latency > o.latency {
		o.latency = w.latency
	}
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

// blind says why no reader saw an effect.
func (x *exp) blind(w *watch, before snapshot) string {
	var list []string
	for i, rd := range x.o.readers {
		switch {
		case before[i].err != nil:
			list = append(list, rd.name+": "+before[i].err.Error())
		case w.after[i].err != nil:
			list = append(list, rd.name+": "+w.after[i].err.Error())
		default:
			list = append(list, rd.name+": "+count(rd.effects(before[i], w.after[i])))
		}
	}
	return strings.Join(list, ", ")
}

// answer says how a request was answered.
func answer(s *sent) string {
	switch {
	case s.x.Response != nil && s.x.Response.Truncated:
		return fmt.Sprintf("%d, cut off", s.x.Response.Status)
	case s.x.Response != nil:
		return status(s.x.Response)
	case s.x.Err != nil:
		return s.x.Delivery.String() + " (" + s.x.Err.Error() + ")"
	}
	return s.x.Delivery.String()
}
