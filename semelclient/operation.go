package semelclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// Operation identifies a logical operation of a client: a request that is sent
// under one key, in one or more attempts.
type Operation struct {
	// Key is the key, without the quotes that it has on the wire.
	Key string
	// FirstSent is when the request was first sent, by the clock of the client. It
	// is sent as Repeatability-First-Sent. If it is zero, the first attempt sets it.
	FirstSent time.Time
}

// String returns a text that does not contain the key.
func (o Operation) String() string { return "an operation" }

// operation is an Operation in a context, shared by all calls of it.
type operation struct {
	key       string
	execution *semel.Execution // the one that it is part of, or nil
	step      *semel.Step      // and of that
	ofStep    bool             // its key is the step's

	mu        sync.Mutex
	firstSent time.Time
	doubt     bool // a try may have had the effect, or the key was used by who knows whom
}

type operationKey struct{}

// WithOperation returns a context whose requests are attempts of op. Each request
// that needs a key and has none gets that of op, in any number of calls and
// goroutines. They must all be the same request; different requests need different
// contexts.
//
// In an execution (see semel.CurrentExecution), only an operation that was put into
// the context there counts, because the key of the execution is not that of the
// calls it makes. The same holds in a step of package steps, whose context has its
// own key.
//
// The key may have been used before. So no error of these requests matches
// semel.ErrNoEffect. See Error.
func WithOperation(ctx context.Context, op Operation) context.Context {
	return newOperation(ctx, &operation{key: op.Key, firstSent: op.FirstSent, doubt: true})
}

func newOperation(ctx context.Context, op *operation) context.Context {
	op.execution, _ = semel.CurrentExecution(ctx)
	op.step = semel.CurrentStep(ctx)
	return withOperation(ctx, op)
}

// WithKey is WithOperation for a key that the caller has made or kept. A program
// that may have to retry after a restart stores the key before it sends.
func WithKey(ctx context.Context, key string) context.Context {
	return WithOperation(ctx, Operation{Key: key})
}

// NewOperation is WithOperation for a fresh key. It makes all calls with the context
// one operation, such as those of an SDK that retries by itself. CurrentOperation
// returns the key, for callers that store it before the first attempt.
//
// In an execution, use WithStep instead, because the next execution would get
// another key.
func NewOperation(ctx context.Context) context.Context {
	return newOperation(ctx, &operation{key: semel.NewKey()})
}

// WithStep is WithOperation for a call that a protected operation makes to another
// service. The key is semel.Execution.ChildKey of the step: if the operation is
// executed again, the call is made under the same key.
//
// The error is ErrNoExecution if ctx is not that of an execution,
// semel.ErrStepRepeated if the execution has already named the step, or says what
// is wrong with the name.
func WithStep(ctx context.Context, step string) (context.Context, error) {
	x, ok := semel.CurrentExecution(ctx)
	if !ok {
		return nil, ErrNoExecution
	}
	key, err := x.ChildKey(step)
	if err != nil {
		return nil, fmt.Errorf("semelclient: %w", err)
	}
	return newOperation(ctx, &operation{key: key, doubt: x.InDoubt()}), nil
}

// Errors of requests within and without executions.
var (
	// ErrNoExecution is the error of WithStep for a context that is not that of an
	// execution.
	ErrNoExecution = errors.New("semelclient: a step needs the context of an execution")
	// ErrNoStep means that a request in an execution needs a key and has none.
	// Under a fresh key, the call would take effect twice if the operation is
	// executed again.
	ErrNoStep = errors.New("semelclient: the request is part of an execution and has no key; name its step with WithStep, or set its key")
)

// CurrentOperation returns the operation that requests with ctx are attempts of, if
// any. The context of http.Response.Request has the operation of the response.
func CurrentOperation(ctx context.Context) (Operation, bool) {
	op := currentOperation(ctx)
	if op == nil {
		return Operation{}, false
	}
	return op.Operation(), true
}

func currentOperation(ctx context.Context) *operation {
	x, _ := semel.CurrentExecution(ctx)
	step := semel.CurrentStep(ctx)
	if op, _ := ctx.Value(operationKey{}).(*operation); op != nil && op.execution == x && op.step == step {
		return op
	}
	if step != nil {
		return &operation{key: step.Key, firstSent: step.At, execution: x, step: step, doubt: step.MayHaveEffect(), ofStep: true}
	}
	return nil
}

func withOperation(ctx context.Context, op *operation) context.Context {
	return context.WithValue(ctx, operationKey{}, op)
}

// Operation tells what the operation is by now.
func (o *operation) Operation() Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Operation{Key: o.key, FirstSent: o.firstSent}
}

// sent returns when the operation was first sent, which is now if it was not.
func (o *operation) sent() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.firstSent.IsZero() {
		o.firstSent = time.Now()
	}
	return o.firstSent
}

func (o *operation) setDoubt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.doubt = true
	if o.ofStep {
		o.step.SetCalled()
	}
}

func (o *operation) inDoubt() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.doubt
}

// operationOf returns the operation of a request that needs a key: that of its
// context, else that of the request it was redirected from, else a new one.
func operationOf(r *http.Request) (*operation, error) {
	ctx := r.Context()
	if op := currentOperation(ctx); op != nil {
		return op, nil
	}
	if r.Response != nil && r.Response.Request != nil {
		if op := currentOperation(r.Response.Request.Context()); op != nil {
			return op, nil
		}
	}
	x, ok := semel.CurrentExecution(ctx)
	if ok {
		return nil, ErrNoStep
	}
	return &operation{key: semel.NewKey(), execution: x}, nil
}
