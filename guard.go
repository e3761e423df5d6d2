package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config is the configuration of a Guard.
type Config struct {
	// Store keeps the records. Required.
	Store Store
	// Policy says how operations are protected. Guard.With makes guards with
	// other policies.
	Policy Policy
	// Observer, if not nil, is called when something happens.
	Observer *Observer
	// Cipher, if not nil, encrypts results in the store: codec, head, body and
	// reference. Identities, fingerprints, labels and the audit trail are not
	// encrypted. Results that were recorded without it are still replayed. One that
	// cannot be decrypted is answered AnswerUnavailable with ErrUnreadable, and
	// nothing is executed. An encrypted result is a little larger, by less than 300
	// bytes and 28 for each 256 KiB, which counts for the limit of the store.
	Cipher *Cipher
	// MaxExecutions limits how many submits claim or execute at the same time.
	// A submit over the limit is answered AnswerUnavailable with a *BusyError,
	// and the store is not asked. Default 4,096.
	MaxExecutions int
	// MaxTenantExecutions is the limit for one tenant. It does not apply to
	// scopes without a tenant. Default a quarter of MaxExecutions.
	MaxTenantExecutions int
	// MaxDetached is the limit for submits with Submit.Detached set. Default a
	// quarter of MaxExecutions.
	MaxDetached int

	// MaxWaiters limits how many submits, of all identities, wait at the same
	// time for the execution of another. A submit over the limit is answered at
	// once. Default 1,000.
	MaxWaiters int
	// MaxTenantWaiters is the limit for one tenant. It does not apply to scopes
	// without a tenant. Default a quarter of MaxWaiters.
	MaxTenantWaiters int

	// TrailInterval is how long submits that get the same answer about the same
	// record share an entry of the audit trail. The first has an entry at once;
	// those that follow within the interval are counted and have one entry at
	// its end, which is lost if the process dies before. If it is negative, each
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

// Guard makes operations take effect once. It applies the policy to what the
// store says of the records. A process has one, and makes others from it, one
// for each policy, by calling With. It is safe for concurrent use.
type Guard struct {
	store    Store
	cipher   *Cipher  // nil if results are not encrypted
	resolver Resolver // nil if the store is none
	notes    *notes   // nil if the store has no trail
	policy   Policy
	observe  Observer
	work     *work
	beats    *beats // those of the policy's heartbeat
	waiters  *waiters
}

// New returns a guard for c. The error names everything that is wrong with c.
func New(c Config) (*Guard, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("semel: guard: %w", errors.Join(err, c.Policy.withDefaults().validate()))
	}
	g := &Guard{store: c.Store, cipher: c.Cipher, work: newWork(c), waiters: newWaiters(c)}
	g.resolver, _ = c.Store.(Resolver)
	if trail, ok := c.Store.(Trail); ok {
		g.notes = newNotes(trail, c.TrailInterval)
	}
	if c.Observer != nil {
		g.observe = *c.Observer
	}
	return g.With(c.Policy)
}

// With returns a guard with policy p that shares the store, the limits and the
// drain of g.
func (g *Guard) With(p Policy) (*Guard, error) {
	p = p.withDefaults()
	err := p.validate()
	if p.OnCrash == CrashReconcile && g.resolver == nil {
		err = errors.Join(err, fmt.Errorf("field OnCrash is reconcile, but %T does not implement Resolver", g.store))
	}
	if err != nil {
		return nil, fmt.Errorf("semel: policy: %w", err)
	}
	with := *g
	with.policy, with.beats = p, g.work.beatsOf(p.Heartbeat)
	return &with, nil
}

// Policy returns the policy of g, with defaults filled in.
func (g *Guard) Policy() Policy { return g.policy }

// Submit is one request to have an operation take effect once.
type Submit struct {
	Identity Identity
	// Fingerprint identifies the request. Submits of one identity with
	// different fingerprints are answered AnswerMismatch. The zero value equals
	// every other.
	Fingerprint Fingerprint
	Origin      Origin
	// Wait is how long to wait if another submit of the identity is executing,
	// before answering AnswerInProgress. Zero means not to wait. A submit that
	// has waited is answered as if it had come later: from the record if the
	// other completed, and by executing if the other had no effect. If the
	// process of the other dies, the submit is answered soon after the lease has
	// lapsed. Wait does not limit the submit's own execution.
	Wait time.Duration
	// Detached runs fn in a goroutine of the guard, so that Do can return when
	// its context ends, before fn has. It is for callers that tell their clients
	// to come back for the result. If the claim is a Joiner that has joined a
	// transaction of the caller, Do still waits for fn.
	Detached bool
	// Settled, if not nil, is called with the outcome of a detached execution,
	// in the guard's goroutine, even if Do has returned before. It is not called
	// if the submit was not granted the identity.
	Settled func(Outcome, error)
}

// Outcome is the outcome of a submit.
type Outcome struct {
	Answer Answer
	Result Result
	// Record is the record as last seen. Its ID is empty if there was none.
	Record Record
	// Claimed reports whether the identity was granted to this submit. If so, fn
	// has run or, if the submit was detached, is running or about to run. If
	// not, fn never runs.
	Claimed bool
}

// Do runs fn once for the identity of s. If the identity is free, Do runs fn and
// records its result. If it is completed, Do returns the recorded result and does
// not run fn. Otherwise the error is an *Error that says why.
//
// fn runs in the calling goroutine. Its context has the values of ctx but not its
// cancellation, so that fn goes on even if the caller no longer waits. The
// context is canceled at the policy's Deadline, and when the claim is lost.
// CurrentExecution returns the identity and the fence from it.
//
// The error of fn decides what is recorded: a nil error and Final complete the
// record, NoEffect releases it, and any other error leaves the outcome unknown.
// So does a panic and runtime.Goexit, which Do then passes on.
//
// If s is Detached, fn runs in a goroutine of the guard. If ctx ends before fn
// returns, the answer is AnswerInProgress and fn goes on. If fn panics, the
// answer is AnswerUnknown and the panic is not passed on.
//
// If ctx ends before the claim, the answer is AnswerUnavailable and fn does not
// run. A nil error means that the record is durable. A recorded failure is
// returned as a *RecordedError with AnswerExecuted or AnswerReplayed. Every other
// error is an *Error.
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
