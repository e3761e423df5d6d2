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

// Operation is a client's logical operation: what it sends, however often it
// has to, under one key.
type Operation struct {
	// Key is the key itself, without the quotes it has on the wire.
	Key string
	// FirstSent is when the request was first sent, by the client's clock. It
	// goes out as Repeatability-First-Sent. Zero means that the first try will
	// set it.
	FirstSent time.Time
}

// String does not tell the key.
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

// WithOperation returns a context whose requests are tries of op: each request
// that needs a key and has none gets op's, in any number of calls, from any
// number of goroutines. So they must all be the same request. Two requests that
// mean two things need two contexts.
//
// Within an execution (semel.CurrentExecution) a context counts that was made
// there, and none from outside: the key of the whole is not that of its parts. So
// it is within a step of package steps, whose context has a key of its own.
//
// The key may have been used before, so no error of these requests says
// certainly no effect (see Error).
func WithOperation(ctx context.Context, op Operation) context.Context {
	return newOperation(ctx, &operation{key: op.Key, firstSent: op.FirstSent, doubt: true})
}

func newOperation(ctx context.Context, op *operation) context.Context {
	op.execution, _ = semel.CurrentExecution(ctx)
	op.step = semel.CurrentStep(ctx)
	return withOperation(ctx, op)
}

// WithKey is WithOperation for a key that the caller made or kept: before a
// process may end, store the key, and come back with it.
func WithKey(ctx context.Context, key string) context.Context {
	return WithOperation(ctx, Operation{Key: key})
}

// NewOperation is WithOperation for a fresh key. It makes the calls of whoever
// retries above the transport, an SDK for one, one operation. CurrentOperation
// tells the key to whoever wants to store it before the first try.
//
// In an execution, use WithStep: a fresh key is another one in the next
// execution.
func NewOperation(ctx context.Context) context.Context {
	return newOperation(ctx, &operation{key: semel.NewKey()})
}

// WithStep is WithOperation for a call that a protected operation makes to
// another service. Its key is derived from the identity being executed and the
// name of the step, as semel.Execution.ChildKey says: should the operation be
// executed again, the call is made under the same key again.
//
// The error is ErrNoExecution, semel.ErrStepRepeated if the execution has named
// the step before, or says what is wrong with the name.
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
	// ErrNoExecution is WithStep's answer to a context that is in no execution.
	ErrNoExecution = errors.New("semelclient: a step needs the context of an execution")
	// ErrNoStep: a request in an execution needs a key, and none was given. A
	// fresh key would be another one if the operation is executed again, and the
	// call would take effect twice.
	ErrNoStep = errors.New("semelclient: the request is part of an execution and has no key; name its step with WithStep, or set its key")
)

// CurrentOperation returns the operation that the requests of ctx are tries of.
// The context of a response's request (http.Response.Request) tells the key
// that a Transport used.
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
