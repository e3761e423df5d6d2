package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config makes a Guard.
type Config struct {
	// Store keeps the records. Required.
	Store Store
	// Policy is how operations are protected, unless Guard.With says otherwise.
	Policy Policy
	// Observer is told what happens; nil for nobody.
	Observer *Observer
	// MaxExecutions is how many submits may be claiming or executing at the
	// same time. Beyond it a submit is answered Unavailable with a *BusyError,
	// before any look in the store. Default 4,096.
	MaxExecutions int
	// MaxTenantExecutions is the same for those of one tenant. It does not bound
	// submits whose scope names no tenant. Default a quarter of MaxExecutions.
	MaxTenantExecutions int
	// MaxDetached is the same for Submit.Detached, which has no caller's
	// goroutine to bound it. Default a quarter of MaxExecutions.
	MaxDetached int

	// MaxWaiters is how many submits may wait at the same time, of all
	// identities, for executions that are not theirs. Beyond it they are
	// answered at once. Default 1,000.
	MaxWaiters int
	// MaxTenantWaiters is the same for one tenant, where the scope names one.
	// Default a quarter of MaxWaiters.
	MaxTenantWaiters int

	// TrailInterval is how long answers that met the same record and were told
	// the same share an entry of the audit trail: the first has an entry at
	// once, and those that follow within the interval have one together, with
	// their number, at its end. A process that dies forgets those. Negative: each
	// has its own. Default 10 s.
	TrailInterval time.Duration
}

func (c Config) withDefaults() Config {
	or := func(p *int, def int) {
		if *p == 0 {
			*p = def
		}
	}
	or(&c.MaxExecutions, 4096)
	or(&c.MaxTenantExecutions, max(c.MaxExecutions/4, 1))
	or(&c.MaxDetached, max(c.MaxExecutions/4, 1))
	or(&c.MaxWaiters, 1000)
	or(&c.MaxTenantWaiters, max(c.MaxWaiters/4, 1))
	if c.TrailInterval == 0 {
		c.TrailInterval = 10 * time.Second
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("field Store is nil"))
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"MaxExecutions", c.MaxExecutions},
		{"MaxTenantExecutions", c.MaxTenantExecutions},
		{"MaxDetached", c.MaxDetached},
		{"MaxWaiters", c.MaxWaiters},
		{"MaxTenantWaiters", c.MaxTenantWaiters},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("field %s is %d; it must not be negative", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// Guard is the one entry for operations that must take effect once. It owns
// the policy; the store owns the records. Make one for a process, and one for
// each policy from it with With. Safe for concurrent use.
type Guard struct {
	store    Store
	resolver Resolver // nil if the store is none
	notes    *notes   // nil if the store has no trail
	policy   Policy
	observe  Observer
	work     *work
	beats    *beats // those of the policy's heartbeat
	waiters  *waiters
}

// New returns a guard, or one error that names everything wrong with c.
func New(c Config) (*Guard, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("semel: guard: %w", errors.Join(err, c.Policy.withDefaults().validate()))
	}
	g := &Guard{store: c.Store, work: newWork(c), waiters: newWaiters(c)}
	g.resolver, _ = c.Store.(Resolver)
	if trail, ok := c.Store.(Trail); ok {
		g.notes = newNotes(trail, c.TrailInterval)
	}
	if c.Observer != nil {
		g.observe = *c.Observer
	}
	return g.With(c.Policy)
}

// With returns a guard over the same store, drained together with g, that
// protects by policy p.
func (g *Guard) With(p Policy) (*Guard, error) {
	p = p.withDefaults()
	err := p.validate()
	if p.OnCrash == CrashReconcile && g.resolver == nil {
		err = errors.Join(err, fmt.Errorf("field OnCrash is reconcile, but %T is no Resolver", g.store))
	}
	if err != nil {
		return nil, fmt.Errorf("semel: policy: %w", err)
	}
	with := *g
	with.policy, with.beats = p, g.work.beatsOf(p.Heartbeat)
	return &with, nil
}

// Policy returns the guard's policy with its defaults filled in.
func (g *Guard) Policy() Policy { return g.policy }

// Load is how much of its bounds a guard is using, together with those that are
// made from it and that it was made from by With.
type Load struct {
	Executions, MaxExecutions int // submits that claim or execute
	Detached, MaxDetached     int // of those, the detached
	Waiters, MaxWaiters       int
}

// Load returns the guard's load now.
func (g *Guard) Load() Load {
	w, c := g.work, &g.work.config
	w.mu.Lock()
	l := Load{
		Executions: w.running, MaxExecutions: c.MaxExecutions,
		Detached: w.detached, MaxDetached: c.MaxDetached, MaxWaiters: c.MaxWaiters,
	}
	w.mu.Unlock()
	g.waiters.mu.Lock()
	defer g.waiters.mu.Unlock()
	l.Waiters = g.waiters.total
	return l
}

// Submit is one request to have an operation take effect once.
type Submit struct {
	Identity Identity
	// Fingerprint tells whether another submit of the identity asks for the
	// same. The zero value compares equal with everything.
	Fingerprint Fingerprint
	Origin      Origin
	// Wait is how long to wait when another submit of the identity is
	// executing, before answering InProgress. Zero: not at all. A submit that
	// waited is answered as if it had come later: replayed, once the other has
	// completed; executed, if the other had no effect. When the other's owner
	// dies, it is answered soon after the lease has lapsed. Executions of its
	// own are not bounded by it.
	Wait time.Duration
	// Detached has fn run in a goroutine of the guard instead of the caller's,
	// so that Do can answer before fn has ended: for a caller that tells
	// somebody else to come back for the result. It does not where the claim is
	// a Joiner that has joined a transaction of the caller's.
	Detached bool
	// Settled, if not nil, is called in the guard's goroutine with what a
	// detached execution came to, whether or not Do has answered before. It is
	// not called for a submit that was not claimed.
	Settled func(Outcome, error)
}

// Outcome is what came of a submit that was executed or replayed, and what is
// known of one that was not.
type Outcome struct {
	Answer Answer
	Result Result
	// Record is the record as last seen; its ID is empty if there was none.
	Record Record
	// Claimed says that the identity was granted to this submit, whatever became
	// of it: fn has run or, if the submit was detached, is running or about to.
	// Otherwise fn never runs.
	Claimed bool
}

// Do has fn take effect once for the submit's identity. If the identity is
// free, fn runs and its result is recorded; if it is completed, the recorded
// result is returned and fn does not run; otherwise the *Error says what is in
// the way.
//
// fn runs in the calling goroutine, with a context that keeps ctx's values but
// not its cancellation: once claimed, the work goes on whether or not anybody
// waits for it. Its context is cancelled at the policy's Deadline, and when the
// claim is lost. CurrentExecution(ctx) tells fn the identity and the fence. fn's
// error decides what is recorded: nil and Final complete the record, NoEffect
// releases it, anything else leaves it unknown. So do a panic and
// runtime.Goexit, which then go on up through Do.
//
// A submit that is Detached runs in a goroutine of the guard. When ctx ends
// first, Do returns an InProgress error and fn goes on; a panic of fn is an
// Unknown answer and goes no further.
//
// A ctx that is over before the claim is an Unavailable error, and fn does not
// run. A nil error means that the record is durable. A recorded failure is
// returned as a *RecordedError beside an Executed or Replayed outcome; every
// other error is an *Error.
func (g *Guard) Do(ctx context.Context, s Submit, fn func(ctx context.Context) (Result, error)) (out Outcome, err error) {
	if g.observe.Answered != nil {
		start := time.Now()
		defer func() { g.observe.Answered(ctx, answered(s, out, err, time.Since(start))) }()
	}
	if err := s.Identity.Validate(); err != nil {
		return out, out.fail(&Error{Answer: AnswerRejected, Err: err})
	}
	if ctx.Err() != nil {
		return out, out.fail(&Error{Answer: AnswerUnavailable, Err: context.Cause(ctx)})
	}
	x, err := g.beginOrWait(ctx, &s, &out)
	if x == nil {
		return out, err
	}
	if s.Detached {
		return x.detach(ctx, fn)
	}
	defer func() {
		g.work.leave(&s)
		out, err = x.outcome(), x.err // also for the observer of a panic
	}()
	x.run(ctx, fn)
	return out, err
}

func answered(s Submit, out Outcome, err error, took time.Duration) Answered {
	a := Answered{
		Scope: s.Identity.Scope, Answer: out.Answer, Claimed: out.Claimed, RecordID: out.Record.ID,
		KeyDigest: Digest(s.Identity.Key), Label: out.Result.Label, Err: err, Took: took,
	}
	if e, ok := errors.AsType[*Error](err); ok {
		a.Err = e.Err
	} else if err != nil {
		a.Err = ErrRecorded
	}
	return a
}

// fail makes the outcome that goes with e.
func (out *Outcome) fail(e *Error) error {
	*out = Outcome{Answer: e.Answer}
	if e.Record != nil {
		out.Record = *e.Record
	}
	return e
}

// beginOrWait claims the identity, if need be after waiting for others that
// execute it. It returns an execution, in work that has been entered, or nil and
// the answer.
func (g *Guard) beginOrWait(ctx context.Context, s *Submit, out *Outcome) (*Execution, error) {
	var w *waiter
	if s.Wait > 0 {
		w = g.newWaiter(s.Identity, s.Wait)
		defer w.leave()
	}
	for {
		if err := g.work.enter(s); err != nil {
			return nil, out.fail(&Error{Answer: AnswerUnavailable, RetryAfter: time.Second, Err: err})
		}
		x, err := g.begin(ctx, s, out)
		if x != nil {
			return x, nil
		}
		g.work.leave(s)
		if out.Answer == AnswerInProgress && w != nil && w.next(ctx, out.Record) {
			continue
		}
		g.note(s, out)
		return nil, err
	}
}

// begin claims the identity. It returns an execution, or nil and the answer.
func (g *Guard) begin(ctx context.Context, s *Submit, out *Outcome) (*Execution, error) {
	a := NewAttempt(s.Identity, s.Fingerprint, g.policy.Lease, g.policy.Retention)
	a.Origin = s.Origin
	settled := false
	// Each round either answers or found the record moved on since the round
	// before, so many rounds mean many rivals, one of which is executing.
	for range 8 {
		claim, asked, err := g.claim(ctx, a)
		if err == nil {
			x := newExecution(g, s, claim, asked)
			x.doubt = a.Takeover != 0 && !settled
			return x, nil
		}
		conflict, ok := errors.AsType[*ConflictError](err)
		if !ok {
			return nil, out.fail(&Error{Answer: AnswerUnavailable, RetryAfter: time.Second, Err: err})
		}
		again, err := g.meet(ctx, &a, &conflict.Record, out)
		if !again {
			return nil, err
		}
		// Whoever takes over does not know what became of the attempt before,
		// unless it was looked up just now.
		settled = g.policy.OnCrash == CrashReconcile && !conflict.Record.Reopened
	}
	return nil, out.fail(&Error{Answer: AnswerInProgress, RetryAfter: g.policy.Heartbeat})
}

// claim calls Begin so that a lost answer strands no claim. It does not follow
// ctx: a client that goes away between claim and execution would otherwise
// leave a record that nobody owns. asked is when the call that was granted was
// made: the lease cannot have begun before.
func (g *Guard) claim(ctx context.Context, a Attempt) (claim Claim, asked time.Time, err error) {
	asked = time.Now()
	claim, err = g.beginOnce(ctx, &a, asked)
	for try := 0; err != nil; try++ {
		if isConflict(err) {
			return nil, asked, err
		}
		if g.observe.StoreFailed != nil {
			g.observe.StoreFailed(ctx, StoreFailed{Scope: a.Identity.Scope, Call: "begin", Err: err})
		}
		if errors.Is(err, ErrNotOpen) {
			return nil, asked, err
		}
		if try == 2 {
			// Begin may have been granted all the same. Nothing will be
			// executed under that claim, so it must not end as an unknown
			// outcome. A takeover is left to lapse: releasing it would
			// forget the attempt before.
			if a.Takeover == 0 && g.work.enterAbandon() {
				// Not with what ctx carries: a transaction that the caller
				// began is the caller's again once Do has answered.
				go g.abandon(context.Background(), a)
			}
			return nil, asked, err
		}
		pause(ctx, 20*time.Millisecond<<try)
		asked = time.Now()
		claim, err = g.beginOnce(ctx, &a, asked)
	}
	return claim, asked, nil
}

func (g *Guard) beginOnce(ctx context.Context, a *Attempt, now time.Time) (Claim, error) {
	call := &lazyContext{parent: ctx, deadline: now.Add(g.policy.StoreTimeout)}
	defer call.over()
	return g.store.Begin(call, *a)
}

// storeContext bounds one call of the store, without the caller's cancellation.
// It must be ended.
func (g *Guard) storeContext(ctx context.Context) *lazyContext {
	return storeContext(ctx, g.policy.StoreTimeout)
}

func storeContext(ctx context.Context, d time.Duration) *lazyContext {
	return &lazyContext{parent: ctx, deadline: time.Now().Add(d)}
}

func isConflict(err error) bool {
	_, ok := errors.AsType[*ConflictError](err)
	return ok
}

// abandon releases the claim that a failed Begin may have been granted. Begin
// with the same token finds it, or grants it now. It gives up when the lease
// would have lapsed, or at a drain: then the record becomes unknown.
func (g *Guard) abandon(ctx context.Context, a Attempt) {
	defer g.work.leaveAbandon()
	end := time.Now().Add(g.policy.Lease)
	for wait := 50 * time.Millisecond; time.Now().Before(end) && g.work.stopping.Err() == nil; wait = min(wait*2, time.Second) {
		claim, err := g.beginOnce(ctx, &a, time.Now())
		if isConflict(err) || errors.Is(err, ErrNotOpen) {
			return
		}
		if err == nil {
			call := g.storeContext(ctx)
			err = claim.Release(call)
			call.over()
			if err == nil || errors.Is(err, ErrLostClaim) {
				return
			}
		}
		pause(ctx, wait)
	}
}

// meet decides what a record in the way means. again is true when Begin is
// worth another call, with what meet changed in a.
func (g *Guard) meet(ctx context.Context, a *Attempt, r *Record, out *Outcome) (again bool, err error) {
	answer := func(e *Error) (bool, error) {
		bare := *r
		bare.Result = Result{}
		e.Record = &bare
		return false, out.fail(e)
	}
	if r.Fingerprint.Differs(a.Fingerprint) {
		return answer(&Error{Answer: AnswerMismatch})
	}
	switch {
	case r.State == StateCompleted:
		*out = Outcome{Answer: AnswerReplayed, Result: r.Result, Record: *r}
		return false, recordedFailure(r)
	case r.State == StateInProgress && !r.Lapsed():
		// The lease is renewed while the owner lives, so what is left of it
		// says little about when the owner will be done.
		return answer(&Error{Answer: AnswerInProgress, RetryAfter: min(r.Lease, g.policy.Heartbeat)})
	case r.Reopened, g.policy.OnCrash == CrashRetry:
		a.Takeover = r.Fence
		return true, nil
	}

	// Unknown, or lapsed and therefore about to be. Marking it comes before
	// anyone looks what became of the effect: see Resolution.
	if r.State == StateInProgress && g.resolver != nil {
		marked, err := g.resolve(ctx, Resolution{
			Identity: r.Identity, Fence: r.Fence, Decision: DecideUnknown,
			Cause: "the lease lapsed before the operation was settled", Origin: a.Origin,
		})
		switch {
		case err == nil:
			r = &marked
		case errors.Is(err, ErrStaleFence), errors.Is(err, ErrNotFound):
			return true, nil
		default:
			// It is not on record that the outcome is unknown, so it need not
			// stay so: the owner may still be there.
			return answer(&Error{Answer: AnswerUnavailable, RetryAfter: time.Second, Err: err})
		}
	}
	if g.policy.OnCrash == CrashReconcile {
		switch decided, err := g.reconcile(ctx, a, r); {
		case err != nil:
			return answer(g.unknown(err))
		case decided:
			return true, nil
		}
	}
	return answer(g.unknown(nil))
}

// unknown is the error for an unknown outcome. Under Retry and Reconcile the
// next submit may settle it by itself.
func (g *Guard) unknown(cause error) *Error {
	e := &Error{Answer: AnswerUnknown, Err: cause}
	if g.policy.OnCrash != CrashHold {
		e.advice, e.RetryAfter = RetrySameKey, g.policy.Heartbeat
	}
	return e
}

// recordedFailure is the failure that a completed record tells of, if it does.
func recordedFailure(r *Record) error {
	if r.Result.Codec == codecError {
		return &RecordedError{Message: string(r.Result.Body)}
	}
	return nil
}

// reconcile asks the policy's look-up and acts on its finding. decided means
// that the record has changed, or may now be taken over.
func (g *Guard) reconcile(ctx context.Context, a *Attempt, r *Record) (decided bool, err error) {
	lctx, cancel := context.WithTimeout(ctx, g.policy.Lease)
	defer cancel()
	bare := *r
	bare.Result = Result{}
	finding, err := g.policy.Reconcile(lctx, bare)
	if err != nil {
		return false, fmt.Errorf("reconcile: %w", err)
	}
	switch finding.kind {
	case findingPresent:
		_, err := g.resolve(ctx, Resolution{
			Identity: r.Identity, Fence: r.Fence, Decision: DecideResult, Result: finding.result,
			Cause: "reconciled: the effect is there", Origin: a.Origin,
		})
		if err == nil || errors.Is(err, ErrStaleFence) || errors.Is(err, ErrNotFound) {
			return true, nil
		}
		return false, err
	case findingAbsent:
		// r.Lease was read before the look-up, so the look-up came later
		// than the settling time it vouches for.
		if g.policy.SettleAfter > 0 && -r.Lease >= g.policy.SettleAfter {
			a.Takeover = r.Fence
			return true, nil
		}
	}
	return false, nil
}

func (g *Guard) resolve(ctx context.Context, r Resolution) (Record, error) {
	call := g.storeContext(ctx)
	defer call.over()
	rec, err := g.resolver.Resolve(call, r)
	if err != nil && g.observe.StoreFailed != nil && !errors.Is(err, ErrStaleFence) && !errors.Is(err, ErrNotFound) {
		g.observe.StoreFailed(ctx, StoreFailed{Scope: r.Identity.Scope, Call: "resolve", Err: err})
	}
	return rec, err
}

// Find returns the record of id, or ErrNotFound. Like every look-up of the guard
// it takes the policy's StoreTimeout at most.
func (g *Guard) Find(ctx context.Context, id Identity) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	return g.store.Find(ctx, id)
}

// FindID returns the record with this opaque id if it belongs to the scope's
// tenant and actor, of whatever operation; otherwise, and if there is none, the
// error is ErrNotFound. It is errors.ErrUnsupported if the store is no Lister.
func (g *Guard) FindID(ctx context.Context, s Scope, recordID string) (Record, error) {
	lister, ok := g.store.(Lister)
	if !ok {
		return Record{}, fmt.Errorf("semel: %T is no Lister: %w", g.store, errors.ErrUnsupported)
	}
	if recordID == "" { // would select any
		return Record{}, ErrNotFound
	}
	lctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	found, err := lister.List(lctx, Filter{ID: recordID, Tenant: s.Tenant, Actor: s.Actor, Limit: 2})
	if err != nil {
		return Record{}, err
	}
	for _, r := range found {
		// An empty field of a filter selects all, but an empty part of a
		// scope is one like any other.
		if r.ID == recordID && r.Identity.Tenant == s.Tenant && r.Identity.Actor == s.Actor {
			whole, err := g.Find(ctx, r.Identity)
			if err == nil && whole.ID != recordID {
				err = ErrNotFound // replaced meanwhile
			}
			return whole, err
		}
	}
	return Record{}, ErrNotFound
}

// Await returns the record of id as soon as nobody is executing it any more, or
// as it is when the wait or ctx ends. The error is ErrNotFound where there is
// none, after a release, and if another record has replaced it meanwhile.
func (g *Guard) Await(ctx context.Context, id Identity, wait time.Duration) (Record, error) {
	w := g.newWaiter(id, wait)
	defer w.leave()
	for first := ""; ; {
		r, err := g.Find(ctx, id)
		if err == nil && first != "" && r.ID != first {
			return Record{}, ErrNotFound
		}
		if err != nil || r.State != StateInProgress || r.Lapsed() || !w.next(ctx, r) {
			return r, err
		}
		first = r.ID
	}
}

// Resolve settles an unknown outcome by hand. See Resolution.
func (g *Guard) Resolve(ctx context.Context, r Resolution) (Record, error) {
	if g.resolver == nil {
		return Record{}, fmt.Errorf("semel: resolve: %T is no Resolver", g.store)
	}
	ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	return g.resolver.Resolve(ctx, r)
}

// note has an audit entry written for an answer that met a record and changed
// none.
func (g *Guard) note(s *Submit, out *Outcome) {
	if g.notes == nil || out.Record.State == 0 {
		return
	}
	g.notes.add(entry(s, TrailEntry{
		Kind: TrailKind(out.Answer.String()), RecordID: out.Record.ID, Fence: out.Record.Fence, Label: out.Result.Label,
	}))
}

// entry fills in whose entry it is.
func entry(s *Submit, e TrailEntry) TrailEntry {
	e.Tenant, e.Actor, e.Operation, e.Key = s.Identity.Tenant, s.Identity.Actor, s.Identity.Operation, s.Identity.Key
	e.Origin = s.Origin
	return e
}

// NoteFailedOpen puts on the audit trail that a submit was let through without
// protection. For entry points that are configured to fail open.
func (g *Guard) NoteFailedOpen(ctx context.Context, s Submit, cause error) {
	if g.notes != nil {
		g.notes.trail.Note(entry(&s, TrailEntry{Kind: TrailFailedOpen, Cause: "store unavailable"}))
	}
	if g.observe.FailedOpen != nil {
		g.observe.FailedOpen(ctx, s.Identity.Scope, cause)
	}
}

// Drain stops g, and every guard that shares its work, from taking new submits
// and waits until running executions have been settled. If ctx ends first it
// returns an error that says how many are left; they go on, and would leave
// unknown records if the process ended now.
//
// Call it after the server's Shutdown, which does not wait for the handlers of
// HTTP/2 requests that their clients have reset.
func (g *Guard) Drain(ctx context.Context) error {
	idle := g.work.drain()
	if g.notes != nil {
		g.notes.end()
	}
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("semel: drain: %d executions still running: %w", g.work.count(), context.Cause(ctx))
	}
}

// OnDrain has f called, in a goroutine of its own, once Drain is called: for an
// entry point that holds requests before it submits them. stop takes that back
// and reports whether it came in time, like that of context.AfterFunc.
func (g *Guard) OnDrain(f func()) (stop func() bool) { return context.AfterFunc(g.work.stopping, f) }

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
