package semel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrStepRepeated is the error of Execution.ChildKey if the execution has already
// named the step.
var ErrStepRepeated = errors.New("semel: the step already has a child key in this execution")

// childKeyVersion is part of every child key. A change of what goes into one
// would give calls that are under way another key, and so a second effect.
const childKeyVersion = "1"

// ChildKey returns the key for a call that the operation makes to another service,
// which is idempotent under it. Every execution of the identity gets the same key
// for the same step, and different identities or steps never share one. A
// Policy.Reconcile can use it to ask the service what became of the call.
//
// A child key is a digest that reveals neither the identity nor the step. It does
// not depend on what is sent.
//
// The name of the step has 1 to 255 bytes of UTF-8 without control characters.
func (id Identity) ChildKey(step string) (string, error) {
	if err := errors.Join(id.Validate(), checkPart("step", step, MaxKeyBytes, false)); err != nil {
		return "", fmt.Errorf("semel: child key: %w", err)
	}
	return "ck_" + digestKey("semel child key", childKeyVersion, id.Tenant, id.Actor, id.Operation, id.Key, step), nil
}

// ChildKey returns Identity.ChildKey for the identity that is being executed. It
// can be called once for each step, because two calls under one key would be one
// effect; after that the error is ErrStepRepeated. Name the steps of a loop by what
// they are about and not by their number, since another execution may take them in
// another order. ChildKey is safe for concurrent use.
func (x *Execution) ChildKey(step string) (string, error) {
	key, err := x.Identity().ChildKey(step)
	if err != nil {
		return "", err
	}
	if !x.steps.take(step) {
		return "", fmt.Errorf("%w: %q", ErrStepRepeated, step)
	}
	return key, nil
}

// InDoubt reports whether an earlier execution may have had the effect, or a part
// of it, and may have used the child keys. If an error of this execution says that
// there was no effect, it says so of this execution only.
func (x *Execution) InDoubt() bool { return x.doubt }

// takenSteps are the steps of an execution that have a child key.
type takenSteps struct {
	mu    sync.Mutex
	names map[string]struct{}
}

// take reports whether nobody has taken the name before.
func (t *takenSteps) take(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.names[name]; taken {
		return false
	}
	if t.names == nil {
		t.names = make(map[string]struct{})
	}
	t.names[name] = struct{}{}
	return true
}

// Step is a named part of an execution that makes a call to another service.
type Step struct {
	// Key is the child key of the call.
	Key string
	// At is when the step was first begun, in this execution or one before it.
	At time.Time
	// InDoubt reports whether a call of an earlier execution may have had an effect.
	InDoubt bool

	called *atomic.Bool // with what may have been an effect
}

// MayHaveEffect reports whether a call under the key may have had an effect, in an
// earlier execution or, if a client has called SetCalled, in this one.
func (s *Step) MayHaveEffect() bool { return s.InDoubt || s.called.Load() }

// SetCalled records that a call under the key may have had an effect. It is called
// by clients.
func (s *Step) SetCalled() { s.called.Store(true) }

type stepKey struct{}

type currentStep struct {
	step      *Step
	execution *Execution
}

// WithStep returns a context for calls to another service under the key of s. The
// clients of package semelclient use it. All calls with the context must be the
// same call. WithStep is for packages that name the steps of a handler, as package
// steps does. Handlers use semelclient.WithStep.
func WithStep(ctx context.Context, s Step) context.Context {
	x, _ := CurrentExecution(ctx)
	s.called = new(atomic.Bool)
	return context.WithValue(ctx, stepKey{}, &currentStep{&s, x})
}

// CurrentStep returns the step that calls with ctx belong to, or nil. An execution
// inside of another does not inherit the step of the other.
func CurrentStep(ctx context.Context) *Step {
	s, ok := ctx.Value(stepKey{}).(*currentStep)
	if !ok {
		return nil
	}
	if x, _ := CurrentExecution(ctx); x != s.execution {
		return nil
	}
	return s.step
}
