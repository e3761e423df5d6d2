package steps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// Errors of Run and of steps. In the guard's record they make the outcome unknown,
// because earlier steps may have had their effects.
var (
	// ErrUnknown reports that the outcome of a step's call is unknown, and that its
	// policy is CrashHold or could not find out.
	ErrUnknown = errors.New("steps: what became of the step is unknown")
	// ErrCorrupt reports that the journal was not written by this package, or does
	// not fit the program.
	ErrCorrupt = errors.New("steps: the journal is corrupt")
	// ErrTooLarge reports that an input or a result is larger than Config
	// allows.
	ErrTooLarge = errors.New("steps: too large")
	// ErrTooMany reports that the operation already has as many steps as Config
	// allows.
	ErrTooMany = errors.New("steps: too many steps")
	// ErrConcurrent reports that another step of the operation is running.
	// Steps run one after another.
	ErrConcurrent = errors.New("steps: another step is under way")
	// ErrOtherRequest reports that the journal holds a different request under
	// the identity.
	ErrOtherRequest = errors.New("steps: the operation on record is another request's")
	// ErrNoOperation reports that the context is not one that Run has passed to its
	// function, or that the function has returned.
	ErrNoOperation = errors.New("steps: a step needs the context that Run hands out")
	// ErrNotLeased reports that the execution is not under a leased claim. In a
	// transaction either all steps would be committed or none.
	ErrNotLeased = errors.New("steps: not in an execution under a leased claim")
)

// Errors of Resolve and Retry. Nothing was changed.
var (
	ErrNotUnknown = errors.New("steps: only an unknown step is resolved")
	ErrNotHeld    = errors.New("steps: only a held operation is retried")
	ErrInvalid    = errors.New("steps: no such decision")
)

// ChangedError reports that an execution differs from earlier executions of the
// operation. No call was made. Either restore the program that began the
// operation, or finish the operation by hand.
type ChangedError struct {
	Position int
	// Recorded is the name of the step on record. Asked is the name of the
	// program's step, or empty if the program has ended. If they are equal, the
	// inputs differ.
	Recorded, Asked string
}

func (e *ChangedError) Error() string {
	s := fmt.Sprintf("steps: the operation has changed: step %d is %q on record", e.Position, e.Recorded)
	switch e.Asked {
	case "":
		return s + ", and the program has ended before it"
	case e.Recorded:
		return s + ", with another input than the program's"
	}
	return s + fmt.Sprintf(", and %q in the program", e.Asked)
}

// Config configures a journal. Store is required.
type Config struct {
	Store Store
	// MaxSteps is the maximum number of steps of an operation. Default 100.
	MaxSteps int
	// MaxInput is the maximum size of the JSON of an operation's or a step's input,
	// and MaxResult that of a step's result, in bytes. Default 64 KiB.
	MaxInput, MaxResult int
	// LookAfter is how long after the beginning of an execution the operation is
	// due for a completer. Default 30 s.
	LookAfter time.Duration
	// Cipher, if not nil, encrypts inputs and results in the journal. What was
	// recorded without it can still be read. MaxInput and MaxResult are sizes before
	// encryption, which adds less than 200 bytes.
	Cipher *semel.Cipher
	// StoreTimeout limits each write of a step's outcome, which continues even if
	// the execution's context has ended. Default 5 s.
	StoreTimeout time.Duration
}

// Journal records the steps of operations. It is safe for concurrent use. New makes
// one.
type Journal struct{ config Config }

// New returns a journal.
func New(c Config) (*Journal, error) {
	for _, f := range []struct {
		v *int
		n int
	}{{&c.MaxSteps, 100}, {&c.MaxInput, 64 << 10}, {&c.MaxResult, 64 << 10}} {
		if *f.v == 0 {
			*f.v = f.n
		}
	}
	if c.LookAfter == 0 {
		c.LookAfter = 30 * time.Second
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = 5 * time.Second
	}
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("field Store is nil"))
	}
	if c.MaxSteps < 0 || c.MaxInput < 0 || c.MaxResult < 0 || c.LookAfter < 0 || c.StoreTimeout < 0 {
		errs = append(errs, errors.New("field MaxSteps, MaxInput, MaxResult, LookAfter or StoreTimeout is negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("steps: config: %w", err)
	}
	return &Journal{c}, nil
}

// Find returns the operation with this identity, or ErrNotFound, or
// semel.ErrUnreadable if it cannot be decrypted.
func (j *Journal) Find(ctx context.Context, id semel.Identity) (Operation, error) {
	o, err := j.config.Store.Find(ctx, id)
	if err == nil {
		err = j.open(&o)
	}
	return o, err
}

// List returns operations without their steps: Filter{Phases: []Phase{Held}} selects
// those that wait for a person. Inputs that cannot be decrypted are left out.
func (j *Journal) List(ctx context.Context, f Filter) ([]Operation, error) {
	all, err := j.config.Store.List(ctx, f)
	for i := range all {
		if j.open(&all[i]) != nil {
			all[i].Input = nil
		}
	}
	return all, err
}

// seal encrypts an input or a result.
func (j *Journal) seal(id semel.Identity, what string, b []byte) []byte {
	if len(b) == 0 { // a step has no result yet
		return b
	}
	return j.config.Cipher.Encrypt(id, what, b)
}

// open decrypts what the store has of an operation.
func (j *Journal) open(o *Operation) (err error) {
	decrypt := func(what string, b []byte) (text []byte) {
		text, failed := j.config.Cipher.Decrypt(o.Identity, what, b)
		err = errors.Join(err, failed)
		return text
	}
	o.Input = decrypt("input", o.Input)
	for i := range o.Steps {
		s := &o.Steps[i]
		s.stored = s.Input
		s.Input, s.Result = decrypt("input of "+s.Name, s.Input), decrypt("result of "+s.Name, s.Result)
	}
	if err != nil {
		return fmt.Errorf("steps: %w", err)
	}
	return nil
}

// sealed returns s as it is stored. Its input stays what it was, byte by byte.
func (j *Journal) sealed(id semel.Identity, s Step) Step {
	s.Input, s.Result = s.stored, j.seal(id, "result of "+s.Name, s.Result)
	return s
}

// Resolution is what a person has found out about an unknown step.
type Resolution struct {
	Step string
	// To is StateDone, with Result in JSON; StateFailed, with Result as the text of
	// the error; or StateFree, so that the step is called again with the same child
	// key.
	To     State
	Result []byte
	// By says who decided, and Because how they know, each in 1 to 500 bytes. Both
	// are recorded in the trail.
	By, Because string
}

// Resolve settles an unknown step with what a person has found out, and records who
// decided and why in the same commit. The completer then continues the operation. If
// the operation has been continued in the meantime, Resolve fails with ErrStale and
// changes nothing.
//
// A call may still be running when its step becomes unknown. So look for its
// effect only after the longest time that the call can take.
func (j *Journal) Resolve(ctx context.Context, id semel.Identity, r Resolution) error {
	o, err := j.decidable(ctx, id, r.By, r.Because)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	i := slices.IndexFunc(o.Steps, func(s Step) bool { return s.Name == r.Step })
	switch {
	case i < 0:
		return fmt.Errorf("%w: the operation has no step %q on record", ErrInvalid, r.Step)
	case o.Steps[i].State != StateUnknown:
		return fmt.Errorf("%w: step %q is %s", ErrNotUnknown, r.Step, o.Steps[i].State)
	case r.To == StateDone && !json.Valid(r.Result), r.To != StateDone && r.To != StateFailed && r.To != StateFree, r.To == StateFree && len(r.Result) > 0:
		return fmt.Errorf("%w: use done with a result in JSON, failed with a text, or free with neither", ErrInvalid)
	case len(r.Result) > j.config.MaxResult:
		return fmt.Errorf("%w: a result of %d bytes; at most %d are allowed", ErrTooLarge, len(r.Result), j.config.MaxResult)
	}
	s := o.Steps[i]
	s.State, s.Result, s.Cause = r.To, r.Result, fmt.Sprintf("resolved by %s: %s", r.By, r.Because)
	return j.decide(ctx, o, s, semel.TrailStepResolved, fmt.Sprintf("%s: %s to %s", s.Name, StateUnknown, s.State), r.By, r.Because)
}

// Retry makes the completer continue a held operation, after its cause has been
// fixed. by and because, of 1 to 500 bytes each, are recorded with it. If the
// operation has been continued in the meantime, Retry fails with ErrStale and
// changes nothing.
func (j *Journal) Retry(ctx context.Context, id semel.Identity, by, because string) error {
	o, err := j.decidable(ctx, id, by, because)
	if err != nil {
		return err
	}
	if o.Phase != PhaseHeld {
		return fmt.Errorf("%w: it is %s", ErrNotHeld, o.Phase)
	}
	return j.decide(ctx, o, Step{}, semel.TrailRetried, fmt.Sprintf("%s to %s", PhaseHeld, PhaseOpen), by, because)
}

func (j *Journal) decidable(ctx context.Context, id semel.Identity, by, because string) (Operation, error) {
	for name, text := range map[string]string{"who decides": by, "the reason": because} {
		if text == "" || len(text) > 500 || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return Operation{}, fmt.Errorf("%w: %s must be 1 to 500 bytes of UTF-8 without zero bytes", ErrInvalid, name)
		}
	}
	return j.config.Store.Find(ctx, id)
}

func (j *Journal) decide(ctx context.Context, o Operation, s Step, kind semel.TrailKind, label, by, because string) error {
	s.Result = j.seal(o.Identity, "result of "+s.Name, s.Result)
	return j.config.Store.Decide(ctx, Decision{o.Number, o.Fence, s, semel.TrailEntry{
		Kind: kind, Tenant: o.Identity.Tenant, Actor: o.Identity.Actor, Operation: o.Identity.Operation, Key: o.Identity.Key, Fence: o.Fence,
		Label: label, Cause: because, Origin: semel.Origin{RequestID: "operator:" + by},
	}})
}

// run is an operation being executed.
type run struct {
	*Journal
	x  *semel.Execution
	op Operation

	mu     sync.Mutex
	busy   bool // a step is under way
	closed bool // the function has returned
	next   int  // position
	err    error
}

type runKey struct{}

// Run executes fn as the operation of the execution in ctx. fn is called with a
// context for Local and Remote, and with the recorded input, which is in unless an
// earlier execution has recorded its own. After a crash fn starts from the
// beginning. So between steps it must depend only on its input and the results of
// steps, and it must reach the same steps in the same order with the same inputs.
//
// The handler must return Run's error to its guard. If a step has failed and the
// failure is not final, Run returns that step's error, whatever fn returns. The
// error reports no effect to the guard only if no step has had an effect.
func Run[In, Out any](ctx context.Context, j *Journal, in In, fn func(ctx context.Context, in In) (Out, error)) (Out, error) {
	var zero Out
	x, ok := semel.CurrentExecution(ctx)
	if !ok || x.Transactional() {
		return zero, semel.NoEffect(ErrNotLeased)
	}
	input, err := encode(in, j.config.MaxInput)
	if err != nil {
		return zero, semel.NoEffect(err)
	}
	op, err := j.config.Store.Open(ctx, Opening{
		Identity: x.Identity(), Fingerprint: x.Fingerprint(), Input: j.seal(x.Identity(), "input", input), Fence: x.Fence(), Due: j.config.LookAfter,
	})
	switch {
	case errors.Is(err, ErrStale):
		return zero, semel.Indeterminate("another execution has gone on with the operation", err)
	case err != nil: // no step was begun; of an execution before, the guard knows
		return zero, semel.NoEffect(err)
	}
	if op.Fingerprint.Differs(x.Fingerprint()) {
		return zero, semel.NoEffect(ErrOtherRequest)
	}
	if err := op.check(); err != nil {
		return zero, semel.Indeterminate("the journal is corrupt", err)
	}
	if err := j.open(&op); err != nil {
		return zero, semel.Indeterminate("the journal cannot be decrypted", err)
	}
	if in, err = decode[In](op.Input); err != nil {
		return zero, semel.Indeterminate("the journal's input does not fit", err)
	}
	r := &run{Journal: j, x: x, op: op}
	out, err := fn(context.WithValue(ctx, runKey{}, r), in)
	if err = r.end(err); err != nil {
		return zero, err
	}
	return out, nil
}

// end is what fn's error comes to.
func (r *run) end(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.busy { // in a goroutine that fn has left behind
		return semel.Indeterminate("a step is still under way", ErrConcurrent)
	}
	if r.err != nil {
		err = r.err
	}
	answer, declared := semel.Declared(err)
	if (err == nil || declared && answer == semel.AnswerExecuted) && r.next < len(r.op.Steps) {
		return changed(r.next, r.op.Steps[r.next].Name, "")
	}
	if declared && answer == semel.AnswerReleased {
		for _, s := range r.op.Steps {
			if s.State != StateFree {
				return semel.Indeterminate("steps before have been done", err)
			}
		}
	}
	return err
}

func changed(position int, recorded, asked string) error {
	return semel.Indeterminate("the operation's steps have changed", &ChangedError{position, recorded, asked})
}

func encode(v any, most int) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("steps: %w", err)
	}
	if len(b) > most {
		return nil, fmt.Errorf("%w: %T of %d bytes; at most %d are allowed", ErrTooLarge, v, len(b), most)
	}
	return b, nil
}

func decode[T any](b []byte) (v T, err error) {
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%w: the recorded value is not a %T", ErrCorrupt, v)
	}
	return v, nil
}

// enter begins the next step, and returns what is on record of it.
func enter(ctx context.Context, name string, in any) (_ *run, _ *Step, err error) {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return nil, nil, semel.Indeterminate("a step outside of its operation", ErrNoOperation)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if x, _ := semel.CurrentExecution(ctx); r.closed || x != r.x {
		return nil, nil, semel.Indeterminate("a step outside of its operation", ErrNoOperation)
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	defer func() {
		if err != nil {
			r.err = err
		}
	}()
	if r.busy {
		return nil, nil, semel.Indeterminate("two steps at the same time", ErrConcurrent)
	}
	if ctx.Err() != nil {
		return nil, nil, semel.Indeterminate("the execution was ended between two steps", context.Cause(ctx))
	}
	if _, err := r.x.Identity().ChildKey(name); err != nil { // which tells what is wrong with a name
		return nil, nil, semel.NoEffect(err)
	}
	for _, s := range r.op.Steps[:r.next] {
		if s.Name == name {
			return nil, nil, semel.NoEffect(fmt.Errorf("%w: %q", semel.ErrStepRepeated, name))
		}
	}
	input, err := encode(in, r.config.MaxInput)
	if err != nil {
		return nil, nil, semel.NoEffect(err)
	}
	if r.next == len(r.op.Steps) {
		if r.next >= r.config.MaxSteps {
			return nil, nil, semel.NoEffect(fmt.Errorf("%w: %d", ErrTooMany, r.config.MaxSteps))
		}
		r.op.Steps = append(r.op.Steps, Step{Position: r.next, Name: name, Input: input, State: StateFree, stored: r.seal(r.op.Identity, "input of "+name, input)})
	}
	s := &r.op.Steps[r.next]
	if s.Name != name || !bytes.Equal(s.Input, input) {
		return nil, nil, changed(r.next, s.Name, name)
	}
	r.next++
	r.busy = true
	return r, s, nil
}

// leave ends a step. err, unless it is nil or final, ends the execution.
func (r *run) leave(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	if answer, _ := semel.Declared(err); err != nil && answer != semel.AnswerExecuted {
		r.err = err
	}
}

// put writes a step, for as long as the store takes to answer, within bounds.
func (r *run) put(ctx context.Context, s *Step) (err error) {
	ctx = context.WithoutCancel(ctx)
	for try := range 3 {
		if try > 0 {
			t := time.NewTimer(50 * time.Millisecond << try)
			<-t.C
		}
		err = func() error {
			ctx, cancel := context.WithTimeout(ctx, r.config.StoreTimeout)
			defer cancel()
			return r.config.Store.Put(ctx, r.op.Number, r.op.Fence, r.sealed(r.op.Identity, *s))
		}()
		if err == nil || errors.Is(err, ErrStale) {
			return err
		}
	}
	return err
}
