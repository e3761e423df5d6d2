package semel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrStepRepeated is Execution.ChildKey's answer to a step that it has given a
// key before.
var ErrStepRepeated = errors.New("semel: the step already has a child key in this execution")

// childKeyVersion is part of every child key. A change of what goes into one
// would give calls that are under way another key, and so a second effect.
const childKeyVersion = "1"

// ChildKey derives the key for a call that the identity's operation makes to
// another service, which is itself idempotent under it. Every execution of the
// identity gets the same key for the same step, and different identities or
// steps never share one. So it also tells a Policy.Reconcile under which key
// to ask that service.
//
// A child key is a digest: it reveals neither the identity nor the step. It
// does not depend on what is sent.
//
// The step is a name of 1 to 255 bytes of UTF-8 without control characters.
func (id Identity) ChildKey(step string) (string, error) {
	if err := errors.Join(id.Validate(), checkPart("step", step, MaxKeyBytes, false)); err != nil {
		return "", fmt.Errorf("semel: child key: %w", err)
	}
	return "ck_" + digestKey("semel child key", childKeyVersion, id.Tenant, id.Actor, id.Operation, id.Key, step), nil
}

// ChildKey is Identity.ChildKey for the identity being executed, once for each
// step: two calls under one key would be one effect, so a step that repeats is
// ErrStepRepeated. Steps of a loop need names of their own, by what they are
// about and not by their turn: an execution after this one may take them in
// another order. Safe for concurrent use.
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

// InDoubt reports whether an execution before this one may have had the effect,
// or a part of it: its child keys may have been used. An error of this execution
// that says no effect speaks for this execution alone.
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
	// InDoubt says that a call of an execution before may have had an effect.
	InDoubt bool

	called *atomic.Bool // with what may have been an effect
}

// MayHaveEffect reports whether a call under the key may have had an effect, in an
// execution before or, as far as clients have told SetCalled, in this one.
func (s *Step) MayHaveEffect() bool { return s.InDoubt || s.called.Load() }

// SetCalled says that a call under the key may have had an effect. Clients call it.
func (s *Step) SetCalled() { s.called.Store(true) }

type stepKey struct{}

type currentStep struct {
	step      *Step
	execution *Execution
}

// WithStep returns a context whose calls to other services are made under the
// step's key, by clients that know of it, such as those of package semelclient.
// They must all be the same call. It is for packages that name steps for a
// handler, as package steps does; handlers use semelclient.WithStep.
func WithStep(ctx context.Context, s Step) context.Context {
	x, _ := CurrentExecution(ctx)
	s.called = new(atomic.Bool)
	return context.WithValue(ctx, stepKey{}, &currentStep{&s, x})
}

// CurrentStep returns the step that calls with ctx belong to, or nil. The step of
// an execution is not that of another inside of it.
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
