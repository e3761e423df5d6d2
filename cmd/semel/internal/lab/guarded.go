package lab

import (
	"context"
	"net/http"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/webhook"
)

// lease is how long a claim holds without being renewed: short, so that a crash can be
// watched to its end.
const lease = 3 * time.Second

// guards returns that of the operations and that of jobs that are accepted.
//
// The work of an operation can take seconds, for which a transaction of SQLite would
// keep everybody else waiting. So claims are leased, and the effect carries a key that
// only this execution has: after a crash the table of effects is asked whether it was
// done, and a claim's owner that was late cannot do it a second time.
func (p *app) guards() (operations, accepts *semel.Guard, err error) {
	operations, err = semel.New(semel.Config{
		Store: p.records,
		Policy: semel.Policy{
			Lease: lease, OnCrash: semel.CrashReconcile, SettleAfter: time.Second,
			Reconcile: func(ctx context.Context, r semel.Record) (semel.Finding, error) { return p.lookUp(ctx, r.Identity) },
		},
		Observer: &semel.Observer{Answered: func(ctx context.Context, e semel.Answered) {
			if a := attemptOf(ctx); a != nil && a.Decision == "" {
				a.Decision = e.Answer.String()
			}
		}},
	})
	if err != nil {
		return nil, nil, err
	}
	// To accept a job twice is to enqueue it twice under one id, which is once.
	accepts, err = operations.With(semel.Policy{Lease: lease, OnCrash: semel.CrashRetry})
	return operations, accepts, err
}

// lookUp finds what an execution that was not brought to its end has done.
func (p *app) lookUp(ctx context.Context, id semel.Identity) (semel.Finding, error) {
	key, err := id.ChildKey("effect")
	if err != nil {
		return semel.FoundUndecided(), err
	}
	for _, o := range Operations {
		if o.Name != id.Operation && id.Operation != everything {
			continue
		}
		made, err := p.madeBy(ctx, o, key)
		if err != nil {
			return semel.FoundUndecided(), err
		}
		if len(made) == 0 {
			continue
		}
		c := &capture{header: http.Header{}, status: http.StatusOK}
		created(c, o, made[0])
		result, err := semelhttp.EncodeResult(http.MethodPost, c.status, c.header, nil, c.body.Bytes())
		return semel.FoundPresent(result), err
	}
	return semel.FoundAbsent(), nil
}

// everything is the operation of keys that are of no operation in particular.
const everything = "everything"

// guarded protects next with semel, as a user would wire it: a middleware behind
// the authentication. Only what a user can get wrong is left to s.
func (p *app) guarded(k wiring, next http.Handler) (http.Handler, error) {
	s, operation, guard := k.switches, k.operation, p.guard
	if k.job {
		operation, guard = operation+".job", p.accepts
	}
	config := semelhttp.Config{
		Guard:      guard,
		RequireKey: s.Key == KeyRequired,
		Scope: func(r *http.Request) (semel.Scope, error) {
			a := attemptOf(r.Context())
			if !s.Scope {
				// DEFECT(scope): all callers share the keys of all operations. Lesson: the scope
				// comes from who is signed in.
				return semel.Scope{Actor: "everybody", Operation: everything}, nil
			}
			return semel.Scope{Tenant: a.Tenant, Actor: a.Actor, Operation: operation}, nil
		},
	}
	if !s.Fingerprint {
		// DEFECT(fingerprint): whatever is asked for counts as the same request. Lesson: leave out
		// of the fingerprint what changes from try to try, and nothing else.
		config.KeyOf = func(r *http.Request, _ []byte) (string, semel.Fingerprint, error) {
			key, err := semelhttp.ParseKey(r.Header[semelhttp.HeaderKey], false)
			return key, semel.FingerprintOf([]byte("anything")), err
		}
	}
	protect, err := semelhttp.New(config)
	if err != nil {
		return nil, err
	}
	return protect(next), nil
}

// guardedEvents is guarded for webhooks: the id of the event is the key, and all its
// deliveries are one request.
func (p *app) guardedEvents(operation string, next http.Handler) (http.Handler, error) {
	once, err := webhook.New(webhook.Config{Guard: p.guard, Scheme: p.scheme, Name: operation, Sender: provider.Actor, Tenant: provider.Tenant})
	if err != nil {
		return nil, err
	}
	return once(next), nil
}
