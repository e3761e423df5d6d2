package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// CrashPolicy says what a submit does when it meets a record whose outcome is
// unknown: the lease has lapsed, or the handler could not tell.
type CrashPolicy uint8

const (
	// CrashHold marks the record unknown: nothing executes until it is resolved.
	// It is the default, and the only one that needs nothing of the effect.
	CrashHold CrashPolicy = iota
	// CrashRetry takes the record over and executes again. Only for effects whose
	// owner is itself idempotent: hand it the key and the fence, which
	// CurrentExecution tells.
	CrashRetry
	// CrashReconcile asks Policy.CrashReconcile what became of the effect.
	CrashReconcile
)

var crashPolicyNames = [...]string{CrashHold: "hold", CrashRetry: "retry", CrashReconcile: "reconcile"}

func (p CrashPolicy) String() string {
	if int(p) < len(crashPolicyNames) {
		return crashPolicyNames[p]
	}
	return fmt.Sprintf("CrashPolicy(%d)", uint8(p))
}

// Finding is what a reconciliation learned about an effect.
type Finding struct {
	kind   findingKind
	result Result
}

type findingKind uint8

const (
	findingUndecided findingKind = iota
	findingPresent
	findingAbsent
)

// FoundPresent: the effect happened, and r answers replays from now on.
func FoundPresent(r Result) Finding { return Finding{kind: findingPresent, result: r} }

// FoundAbsent: the effect is not to be seen. That is taken for *no effect* only
// once Policy.SettleAfter has passed since the lease lapsed.
func FoundAbsent() Finding { return Finding{kind: findingAbsent} }

// FoundUndecided: it cannot be told; the outcome stays unknown.
func FoundUndecided() Finding { return Finding{} }

// Policy is how an operation is protected. The zero value means the defaults
// named at each field.
type Policy struct {
	// Lease is how long a claim holds without renewal. It is not the longest
	// running time: owners renew. Default 15 s.
	Lease time.Duration
	// Heartbeat is how often an owner renews. At most half the lease.
	// Default a third of the lease.
	Heartbeat time.Duration
	// Deadline bounds one execution. At the deadline its context is
	// cancelled; if the handler does not return within one heartbeat renewal
	// ends and the record becomes unknown, which a result that comes later
	// still settles. At most the Retention. Default 10 min, or the Retention
	// where that is shorter.
	Deadline time.Duration
	// Retention is how long a result answers replays after completion.
	// RetryPlan.Retention computes one. It is not shorter than the Deadline:
	// else a request that waited for an execution could find its record gone
	// already. Default 24 h.
	Retention time.Duration
	// OnCrash says what to do about lapsed claims and unknown outcomes.
	// Default Hold.
	OnCrash CrashPolicy
	// Reconcile looks up what became of the effect of a lapsed or unknown
	// record. It must not cause effects, may run several times at once, and
	// is given at most one lease of time. Needed with OnCrash Reconcile.
	Reconcile func(ctx context.Context, r Record) (Finding, error)
	// SettleAfter is the longest time, counted from the lapse of the lease,
	// that the effect can take to show. Zero means that it cannot be
	// bounded: an absent effect stays unknown.
	SettleAfter time.Duration
	// StoreTimeout bounds each call of the store. Completing a large result is
	// given another second for each MiB. Default 5 s, at most the lease.
	StoreTimeout time.Duration
	// MaxWaiters is how many submits of one identity may wait at the same
	// time for an execution that is not theirs; see Submit.Wait. Default 16.
	MaxWaiters int
}

func (p Policy) withDefaults() Policy {
	if p.Lease == 0 {
		p.Lease = 15 * time.Second
	}
	if p.Heartbeat == 0 {
		p.Heartbeat = p.Lease / 3
	}
	if p.Retention == 0 {
		p.Retention = 24 * time.Hour
	}
	if p.Deadline == 0 {
		p.Deadline = 10 * time.Minute
		if p.Retention > 0 {
			p.Deadline = min(p.Deadline, p.Retention)
		}
	}
	if p.StoreTimeout == 0 {
		p.StoreTimeout = min(5*time.Second, p.Lease)
	}
	if p.MaxWaiters == 0 {
		p.MaxWaiters = 16
	}
	return p
}

func (p Policy) validate() error {
	var errs []error
	positive := func(name string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("field %s is %v; it must be positive", name, d))
		}
	}
	positive("Lease", p.Lease)
	positive("Heartbeat", p.Heartbeat)
	positive("Deadline", p.Deadline)
	positive("Retention", p.Retention)
	positive("StoreTimeout", p.StoreTimeout)
	if p.Heartbeat > p.Lease/2 {
		errs = append(errs, fmt.Errorf("field Heartbeat %v is more than half the Lease %v: one lost renewal would lose the claim", p.Heartbeat, p.Lease))
	}
	if p.Retention < p.Deadline {
		errs = append(errs, fmt.Errorf("field Retention %v is shorter than the Deadline %v of one execution", p.Retention, p.Deadline))
	}
	if p.StoreTimeout > p.Lease {
		errs = append(errs, fmt.Errorf("field StoreTimeout %v is longer than the Lease %v", p.StoreTimeout, p.Lease))
	}
	switch p.OnCrash {
	case CrashHold, CrashRetry:
		if p.Reconcile != nil {
			errs = append(errs, fmt.Errorf("field Reconcile is set, but OnCrash is %v", p.OnCrash))
		}
	case CrashReconcile:
		if p.Reconcile == nil {
			errs = append(errs, errors.New("field OnCrash is reconcile, but Reconcile is nil"))
		}
	default:
		errs = append(errs, fmt.Errorf("field OnCrash is %v; use Hold, Retry or Reconcile", p.OnCrash))
	}
	if p.SettleAfter < 0 {
		errs = append(errs, fmt.Errorf("field SettleAfter is %v; it must not be negative", p.SettleAfter))
	}
	if p.MaxWaiters < 0 {
		errs = append(errs, fmt.Errorf("field MaxWaiters is %d; it must not be negative", p.MaxWaiters))
	}
	return errors.Join(errs...)
}

// RetryPlan is what a retention must outlast.
type RetryPlan struct {
	// Window is the time from a client's first send to its last retry,
	// through every layer that retries: SDK, queue, a person coming back.
	Window time.Duration
	// Timeout is how long the client waits for the last answer.
	Timeout time.Duration
	// Skew is the largest difference between the clocks that take part:
	// store replicas, and clients that date their keys.
	Skew time.Duration
	// Factor multiplies window and timeout for safety. Default 2; at least 1.
	Factor float64
}

// Retention is the shortest retention under which no retry of the plan can
// come too late: Factor × (Window + Timeout) + Skew, rounded up to a second.
// Skew counts once and unmultiplied: it is a bound already.
func (p RetryPlan) Retention() (time.Duration, error) {
	if p.Factor == 0 {
		p.Factor = 2
	}
	var errs []error
	if p.Window <= 0 {
		errs = append(errs, fmt.Errorf("field Window is %v; it must be positive", p.Window))
	}
	if p.Timeout < 0 || p.Skew < 0 {
		errs = append(errs, errors.New("field Timeout and Skew must not be negative"))
	}
	if !(p.Factor >= 1) { // written so that NaN fails
		errs = append(errs, fmt.Errorf("field Factor is %v; it must be at least 1", p.Factor))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("semel: retry plan: %w", err)
	}
	total := p.Factor*(float64(p.Window)+float64(p.Timeout)) + float64(p.Skew)
	const longest = 100 * 365 * 24 * time.Hour
	if total > float64(longest) {
		return 0, fmt.Errorf("semel: retry plan: the retention would exceed 100 years")
	}
	seconds := time.Duration(total + float64(time.Second) - 1).Truncate(time.Second)
	return seconds, nil
}
