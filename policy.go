package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// CrashPolicy says what a submit does about a record whose lease has lapsed or
// whose outcome is unknown.
type CrashPolicy uint8

const (
	// CrashHold marks the record as unknown. Nothing executes until it is
	// resolved. This is the default, and the only policy that suits any effect.
	CrashHold CrashPolicy = iota
	// CrashRetry takes the record over and executes again. It is only for effects
	// that are idempotent themselves, under the key or the fence that
	// CurrentExecution returns.
	CrashRetry
	// CrashReconcile calls Policy.Reconcile to find out what became of the effect.
	CrashReconcile
)

var crashPolicyNames = [...]string{CrashHold: "hold", CrashRetry: "retry", CrashReconcile: "reconcile"}

func (p CrashPolicy) String() string {
	if int(p) < len(crashPolicyNames) {
		return crashPolicyNames[p]
	}
	return fmt.Sprintf("CrashPolicy(%d)", uint8(p))
}

// Finding is what Policy.Reconcile found out about an effect. The zero value is
// that of FoundUndecided.
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

// FoundPresent returns the finding that the effect happened. Its result r is
// replayed from now on.
func FoundPresent(r Result) Finding { return Finding{kind: findingPresent, result: r} }

// FoundAbsent returns the finding that there is no effect to be seen. It counts as
// no effect if Policy.SettleAfter has passed since the lease lapsed.
func FoundAbsent() Finding { return Finding{kind: findingAbsent} }

// FoundUndecided returns the finding that nothing can be said. The outcome stays
// unknown.
func FoundUndecided() Finding { return Finding{} }

// Policy says how operations are protected. Zero fields have the defaults named
// below.
type Policy struct {
	// Lease is how long a claim is valid without renewal. It does not limit the
	// running time, because owners renew. Default 15 s.
	Lease time.Duration
	// Heartbeat is the time between renewals, at most half the lease. Default a
	// third of the lease.
	Heartbeat time.Duration
	// Deadline limits the time of one execution. At the deadline its context is
	// canceled. If the handler does not return within a heartbeat, renewal ends
	// and the record becomes unknown; a result that comes later still settles it.
	// Deadline is at most the Retention. Default 10 min, or the Retention if that
	// is shorter.
	Deadline time.Duration
	// Retention is how long a result is replayed after completion.
	// RetryPlan.Retention computes one. It must not be shorter than the Deadline,
	// so that a request that waits for an execution finds its record. Default 24 h.
	Retention time.Duration
	// OnCrash says what to do about lapsed claims and unknown outcomes. Default
	// CrashHold.
	OnCrash CrashPolicy
	// Reconcile finds out what became of the effect of a lapsed or unknown record.
	// It must not have effects, may be called concurrently, and has at most one
	// lease of time. It is required if OnCrash is CrashReconcile.
	Reconcile func(ctx context.Context, r Record) (Finding, error)
	// SettleAfter is the longest time after the lapse of the lease in which the
	// effect can still appear. Zero means that there is no such limit; the outcome
	// then stays unknown if the effect is absent.
	SettleAfter time.Duration
	// StoreTimeout limits the time of each call of the store. Completing a large
	// result may take another second for each MiB. Default 5 s, at most the lease.
	StoreTimeout time.Duration
	// MaxWaiters limits how many submits of one identity wait at the same time for
	// the execution of another. See Submit.Wait. Default 16.
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
		errs = append(errs, fmt.Errorf("field OnCrash is %v; use CrashHold, CrashRetry or CrashReconcile", p.OnCrash))
	}
	if p.SettleAfter < 0 {
		errs = append(errs, fmt.Errorf("field SettleAfter is %v; it must not be negative", p.SettleAfter))
	}
	if p.MaxWaiters < 0 {
		errs = append(errs, fmt.Errorf("field MaxWaiters is %d; it must not be negative", p.MaxWaiters))
	}
	return errors.Join(errs...)
}

// RetryPlan describes the retries of a client, for which a record must be kept.
type RetryPlan struct {
	// Window is the time from the first attempt of a client to its last, through
	// every layer that retries: an SDK, a queue, a person who comes back.
	Window time.Duration
	// Timeout is how long the client waits for the last response.
	Timeout time.Duration
	// Skew is the largest difference between the clocks involved: those of store
	// replicas, and of clients that date their keys.
	Skew time.Duration
	// Factor multiplies Window and Timeout. It is at least 1. Default 2.
	Factor float64
}

// Retention returns the shortest retention in which every retry of the plan finds
// the record: Factor × (Window + Timeout) + Skew, rounded up to a second. Skew is
// not multiplied because it is a limit already.
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
