// Package stepstest is the contract of steps.Store in executable form, and an order in
// three steps for tests that kill processes between and within the steps.
//
//	func TestSteps(t *testing.T) {
//		stepstest.Run(t, stepstest.Config{New: newHarness})
//	}
package stepstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/steps"
)

// Harness is a store set up for one rule.
type Harness struct {
	// Store is fresh and empty.
	Store steps.Store
	// Open returns another handle on the same journals, as another process would have.
	Open func() steps.Store
	// Effect counts an effect of that name in the transaction that ctx carries.
	Effect func(ctx context.Context, name string) error
	// Effects returns how often each effect has been committed.
	Effects func() map[string]int
	// Advance moves the store's time forward.
	Advance func(d time.Duration)
}

// Config says how to test a store.
type Config struct {
	// New returns a harness; it registers its clean-up with t.
	New func(t testing.TB) Harness
	// Virtual runs each rule in a bubble of package testing/synctest: for stores
	// whose clock is time.Now and that do no I/O.
	Virtual bool
}

// Run tests a store against every rule, each as a subtest.
func Run(t *testing.T, c Config) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			check := func(t *testing.T) { r.check(&bench{TB: t, Harness: c.New(t)}) }
			if c.Virtual {
				synctest.Test(t, check)
			} else {
				check(t)
			}
		})
	}
}

// Check tests a store against every rule and returns those that it breaks. It is
// for tests of this suite with stores that are known to be wrong.
func Check(t *testing.T, c Config) map[string]bool {
	broken := map[string]bool{}
	for _, r := range rules {
		synctest.Test(t, func(t *testing.T) {
			var rec recorder.Recorder
			rec.Run(t, func(tb testing.TB) { r.check(&bench{TB: tb, Harness: c.New(t)}) })
			if rec.Failed() {
				broken[r.name] = true
			}
		})
	}
	return broken
}

type bench struct {
	testing.TB
	Harness
}

func identity(key string) semel.Identity {
	return semel.Identity{Scope: semel.Scope{Tenant: "acme", Actor: "ann", Operation: "orders.create"}, Key: key}
}

func (b *bench) open(key string, fence uint64) steps.Operation {
	b.Helper()
	o, err := b.Store.Open(b.Context(), steps.Opening{Identity: identity(key), Input: []byte(fmt.Sprintf(`"%s %d"`, key, fence)), Fence: fence})
	if err != nil {
		b.Fatalf("open %s with fence %d: %v", key, fence, err)
	}
	return o
}

func (b *bench) find(key string) steps.Operation {
	b.Helper()
	o, err := b.Store.Find(b.Context(), identity(key))
	if err != nil {
		b.Fatalf("find %s: %v", key, err)
	}
	return o
}

// put puts a step of that name and state, and wants the error.
func (b *bench) put(o steps.Operation, position int, name string, state steps.State, want error) {
	b.Helper()
	err := b.Store.Put(b.Context(), o.Number, o.Fence, steps.Step{
		Position: position, Name: name, Input: []byte("\x00\xff"), State: state, Result: []byte(state), Cause: "of " + string(state),
	})
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		b.Errorf("put %s as %s: %v; want %v", name, state, err, want)
	}
}

// transact executes a local step with an effect, and wants the error.
func (b *bench) transact(s steps.Store, o steps.Operation, name string, failure, want error) {
	b.Helper()
	err := s.Transact(b.Context(), o.Number, o.Fence, steps.Step{Name: name, Input: []byte("in")}, func(ctx context.Context) ([]byte, error) {
		return []byte("out"), errors.Join(b.Effect(ctx, name), failure)
	})
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		b.Errorf("transact %s: %v; want %v", name, err, want)
	}
}

func (b *bench) wantEffects(name string, n int) {
	b.Helper()
	if got := b.Effects()[name]; got != n {
		b.Errorf("%d effects of %s; want %d", got, name, n)
	}
}

// keys are those of the operations that a filter selects.
func (b *bench) keys(f steps.Filter) (keys string) {
	b.Helper()
	all, err := b.Store.List(b.Context(), f)
	if err != nil {
		b.Fatalf("list: %v", err)
	}
	for _, o := range all {
		if o.Steps != nil {
			b.Errorf("the listing of %s has steps", o.Identity.Key)
		}
		keys += o.Identity.Key
	}
	return keys
}

func (b *bench) mark(o steps.Operation, m steps.Mark, want error) {
	b.Helper()
	m.Number, m.Fence = o.Number, o.Fence
	if err := b.Store.Mark(b.Context(), m); !errors.Is(err, want) || (err == nil) != (want == nil) {
		b.Errorf("mark %s %s: %v; want %v", o.Identity.Key, m.Phase, err, want)
	}
}

var errWork = errors.New("on purpose")

var rules = []struct {
	name  string
	check func(b *bench)
}{
	{"the-first-to-open-records-the-others-find", func(b *bench) {
		first := b.open("a", 7)
		b.put(first, 0, "one", steps.StateDone, nil)
		o := b.open("a", 9)
		if o.Number != first.Number || o.Fence != 9 || string(o.Input) != `"a 7"` || o.Phase != steps.PhaseOpen || o.Identity != identity("a") || len(o.Steps) != 1 {
			b.Errorf("opened again: %+v", o)
		}
		if other := b.open("b", 1); other.Number == o.Number || len(other.Steps) != 0 {
			b.Errorf("another operation: %+v", other)
		}
		_, err := b.Store.Open(b.Context(), steps.Opening{Identity: identity("a"), Fence: 8})
		if !errors.Is(err, steps.ErrStale) {
			b.Errorf("open with a lower fence: %v", err)
		}
		if b.find("a").Fence != 9 || b.open("a", 9).Fence != 9 {
			b.Errorf("the fence is no longer 9")
		}
		if _, err := b.Store.Find(b.Context(), identity("c")); !errors.Is(err, steps.ErrNotFound) {
			b.Errorf("find what is not there: %v", err)
		}
	}},
	{"no-part-of-an-identity-is-mistaken-for-another", func(b *bench) {
		seen := map[uint64]bool{}
		for _, id := range []semel.Identity{
			{Scope: semel.Scope{Tenant: "a", Actor: "b", Operation: "c"}, Key: "d"},
			{Scope: semel.Scope{Tenant: "b", Actor: "a", Operation: "c"}, Key: "d"},
			{Scope: semel.Scope{Operation: "c"}, Key: "d"},
			{Scope: semel.Scope{Actor: "ab", Operation: "c"}, Key: "d"},
			{Scope: semel.Scope{Tenant: "a", Actor: "b", Operation: "C"}, Key: "d"},
			{Scope: semel.Scope{Tenant: "a", Actor: "b", Operation: "c"}, Key: "D"},
		} {
			o, err := b.Store.Open(b.Context(), steps.Opening{Identity: id, Fence: 1, Fingerprint: semel.FingerprintOf([]byte(id.Key))})
			if err != nil || o.Identity != id || seen[o.Number] || o.Fingerprint != semel.FingerprintOf([]byte(id.Key)) {
				b.Errorf("open %+v: %+v, %v", id, o, err)
			}
			seen[o.Number] = true
		}
	}},
	{"who-was-overtaken-writes-nothing", func(b *bench) {
		old := b.open("a", 1)
		b.put(old, 0, "one", steps.StateStarted, nil)
		now := b.open("a", 2)
		b.put(old, 0, "one", steps.StateDone, steps.ErrStale)
		b.put(old, 1, "two", steps.StateStarted, steps.ErrStale)
		before := b.open("b", 1) // of which no step is on record
		b.open("b", 2)
		b.transact(b.Store, before, "old", nil, steps.ErrStale)
		b.mark(old, steps.Mark{Phase: steps.PhaseFinished}, steps.ErrStale)
		b.wantEffects("old", 0)
		if o := b.find("a"); len(o.Steps) != 1 || o.Steps[0].State != steps.StateStarted || o.Phase != steps.PhaseOpen {
			b.Errorf("%+v", o)
		}
		b.put(now, 0, "one", steps.StateDone, nil)
	}},
	{"a-step-that-is-settled-stays-as-it-is", func(b *bench) {
		o := b.open("a", 1)
		for _, state := range []steps.State{steps.StateStarted, steps.StateUnknown, steps.StateFree, steps.StateStarted, steps.StateDone} {
			b.put(o, 0, "one", state, nil)
		}
		b.put(o, 1, "two", steps.StateFailed, nil)
		for _, state := range []steps.State{steps.StateStarted, steps.StateUnknown, steps.StateFree, steps.StateDone, steps.StateFailed} {
			b.put(o, 0, "one", state, steps.ErrStale)
			b.put(o, 1, "two", state, steps.ErrStale)
		}
		b.put(o, 2, "three", steps.StateStarted, nil)
		b.put(o, 2, "other", steps.StateDone, steps.ErrStale)
		all := b.find("a").Steps
		if len(all) != 3 || all[0].State != steps.StateDone || string(all[0].Result) != "done" || all[0].Cause != "of done" || !bytes.Equal(all[0].Input, []byte("\x00\xff")) ||
			all[1].State != steps.StateFailed || all[2].Name != "three" || all[2].State != steps.StateStarted || all[2].Position != 2 {
			b.Errorf("%+v", all)
		}
	}},
	{"a-local-step-commits-its-effect-and-its-result-together", func(b *bench) {
		o := b.open("a", 1)
		b.transact(b.Store, o, "one", errWork, errWork)
		b.wantEffects("one", 0)
		func() {
			defer func() { _ = recover() }()
			_ = b.Store.Transact(b.Context(), o.Number, o.Fence, steps.Step{Name: "one"}, func(ctx context.Context) ([]byte, error) {
				_ = b.Effect(ctx, "one")
				panic("on purpose")
			})
		}()
		b.wantEffects("one", 0)
		if n := len(b.find("a").Steps); n != 0 {
			b.Errorf("%d steps of what was rolled back", n)
		}
		b.transact(b.Store, o, "one", nil, nil)
		b.transact(b.Store, o, "one", nil, steps.ErrStale) // it is done
		b.wantEffects("one", 1)
		if all := b.find("a").Steps; len(all) != 1 || all[0].State != steps.StateDone || string(all[0].Result) != "out" || string(all[0].Input) != "in" {
			b.Errorf("%+v", all)
		}
	}},
	{"of-many-that-execute-a-local-step-one-does", func(b *bench) {
		other := b.Open()
		b.open("a", 1)
		var wg sync.WaitGroup
		var done atomic.Int64
		for i := range 16 {
			s := []steps.Store{b.Store, other}[i%2]
			wg.Go(func() {
				o, err := s.Open(b.Context(), steps.Opening{Identity: identity("a"), Fence: uint64(2 + i/2)}) // two have the same
				if err != nil {
					return
				}
				if s.Transact(b.Context(), o.Number, o.Fence, steps.Step{Name: "one"}, func(ctx context.Context) ([]byte, error) {
					return nil, b.Effect(ctx, "one")
				}) == nil {
					done.Add(1)
				}
			})
		}
		wg.Wait()
		if done.Load() == 0 && b.Effects()["one"] == 0 { // all were overtaken
			b.transact(b.Store, b.open("a", 99), "one", nil, nil)
			done.Add(1)
		}
		if done.Load() > 1 {
			b.Errorf("%d were told that they have done it", done.Load())
		}
		b.wantEffects("one", 1)
	}},
	{"a-listing-selects", func(b *bench) {
		for i, key := range []string{"a", "b", "c", "d", "e"} {
			o, err := b.Store.Open(b.Context(), steps.Opening{Identity: identity(key), Fence: uint64(i + 1), Due: time.Duration(i) * time.Hour})
			if err != nil {
				b.Fatalf("open: %v", err)
			}
			if key == "d" {
				b.mark(o, steps.Mark{Phase: steps.PhaseHeld, Attempts: 3, Cause: "why"}, nil)
			}
			if key == "e" {
				b.mark(o, steps.Mark{Phase: steps.PhaseFinished}, nil)
			}
		}
		if o := b.find("d"); o.Phase != steps.PhaseHeld || o.Attempts != 3 || o.Cause != "why" {
			b.Errorf("marked: %+v", o)
		}
		b.Advance(time.Minute)
		for _, c := range []struct {
			f    steps.Filter
			want string
		}{
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}}, "abc"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Due: true}, "a"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Limit: 2}, "ab"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, After: b.find("a").Number, Limit: 1}, "b"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseHeld}}, "d"},
			{steps.Filter{}, "abcde"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen, steps.PhaseHeld}, Key: "d"}, "d"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen, steps.PhaseHeld}, After: b.find("b").Number}, "cd"},
			{steps.Filter{Key: "e"}, "e"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseFinished}}, "e"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Operations: []string{"x", "orders.create"}}, "abc"},
			{steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Operations: []string{"x"}}, ""},
		} {
			if got := b.keys(c.f); got != c.want {
				b.Errorf("%+v selects %q; want %q", c.f, got, c.want)
			}
		}
		b.Advance(time.Hour)
		b.mark(b.find("a"), steps.Mark{Phase: steps.PhaseOpen, Due: time.Hour}, nil)
		if got := b.keys(steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Due: true}); got != "b" {
			b.Errorf("an hour later %q is due; want b", got)
		}
	}},
	{"an-age-begins-with-the-last-start", func(b *bench) {
		o := b.open("a", 1)
		b.put(o, 0, "one", steps.StateStarted, nil)
		at := b.find("a").Steps[0].At
		b.Advance(time.Hour)
		b.put(o, 0, "one", steps.StateUnknown, nil)
		if s := b.find("a").Steps[0]; s.Age < time.Hour || s.Age > 2*time.Hour {
			b.Errorf("unknown, its age is %v", s.Age)
		}
		now := b.find("a").Steps[0].At // Advance may move it too
		b.put(o, 0, "one", steps.StateStarted, nil)
		if s := b.find("a").Steps[0]; s.Age > time.Minute || !s.At.Equal(now) || s.At.After(at) {
			b.Errorf("started again, its age is %v, and it was recorded at %v", s.Age, s.At)
		}
	}},
	{"a-decision-and-its-entry-are-one-and-taken-once", func(b *bench) {
		o := b.open("a", 3)
		b.put(o, 0, "one", steps.StateDone, nil)
		b.put(o, 1, "two", steps.StateUnknown, nil)
		b.open("b", 3)
		b.mark(o, steps.Mark{Phase: steps.PhaseHeld, Attempts: 9, Cause: "why", Due: time.Hour}, nil)
		entry := func(kind semel.TrailKind, label string) semel.TrailEntry {
			id := o.Identity
			return semel.TrailEntry{
				Kind: kind, Tenant: id.Tenant, Actor: id.Actor, Operation: id.Operation, Key: id.Key, Fence: 3,
				Label: label, Cause: "because", Origin: semel.Origin{RequestID: "operator:ada"},
			}
		}
		decide := func(d steps.Decision, want error) {
			b.Helper()
			if err := b.Store.Decide(b.Context(), d); !errors.Is(err, want) || (err == nil) != (want == nil) {
				b.Errorf("decide on %q: %v; want %v", d.Step.Name, err, want)
			}
		}
		resolve := steps.Decision{Number: o.Number, Fence: 3, Step: steps.Step{Position: 1, Name: "two", Input: []byte("\x00\xff"), State: steps.StateDone, Result: []byte("found"), Cause: "looked"}, Entry: entry(semel.TrailStepResolved, "two: unknown to done")}
		retry := steps.Decision{Number: o.Number, Fence: 3, Entry: entry(semel.TrailRetried, "held to open")}
		for _, wrong := range []func(d *steps.Decision){
			func(d *steps.Decision) { d.Fence = 2 }, func(d *steps.Decision) { d.Fence = 4 }, func(d *steps.Decision) { d.Number = 1 << 40 },
			func(d *steps.Decision) { d.Step.Name, d.Step.Position = "one", 0 }, func(d *steps.Decision) { d.Step.Name = "three" },
		} {
			d := resolve
			wrong(&d)
			decide(d, steps.ErrStale)
		}
		ended, cancel := context.WithCancel(b.Context())
		cancel()
		if err := b.Store.Decide(ended, retry); err == nil {
			b.Error("a decision took no notice of its context")
		}
		if got := b.find("a"); len(got.Decisions) != 0 || got.Phase != steps.PhaseHeld || got.Steps[1].State != steps.StateUnknown {
			b.Errorf("what was refused has changed %+v", got)
		}
		// Of many that decide at the same time one does.
		var wg sync.WaitGroup
		var taken, refused atomic.Int64
		for _, s := range []steps.Store{b.Store, b.Open(), b.Store, b.Open(), b.Store, b.Store} {
			wg.Go(func() {
				switch err := s.Decide(b.Context(), resolve); {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, steps.ErrStale):
					refused.Add(1)
				default:
					b.Errorf("decide: %v", err)
				}
			})
		}
		wg.Wait()
		got := b.find("a")
		if taken.Load() != 1 || refused.Load() != 5 || got.Phase != steps.PhaseOpen || got.Attempts != 0 || got.Cause != "" || len(got.Decisions) != 1 {
			b.Errorf("%d decided, %d were refused: %+v", taken.Load(), refused.Load(), got)
		}
		if s := got.Steps[1]; s.State != steps.StateDone || string(s.Result) != "found" || s.Cause != "looked" || !bytes.Equal(s.Input, []byte("\x00\xff")) || got.Steps[0].State != steps.StateDone {
			b.Errorf("resolved it is %+v", got.Steps)
		}
		if due := b.keys(steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Due: true}); due != "ab" {
			b.Errorf("%q are due; want both", due)
		}
		decide(retry, steps.ErrStale) // it is not held
		b.mark(o, steps.Mark{Phase: steps.PhaseHeld}, nil)
		decide(retry, nil)
		decide(retry, steps.ErrStale)
		b.mark(o, steps.Mark{Phase: steps.PhaseFinished}, nil)
		decide(retry, steps.ErrStale)
		all := b.find("a").Decisions
		for i, want := range []semel.TrailEntry{resolve.Entry, retry.Entry} {
			if len(all) != 2 || all[i].Kind != want.Kind || all[i].Label != want.Label || all[i].Cause != want.Cause || all[i].RequestID != want.RequestID ||
				all[i].Fence != 3 || all[i].Key != "a" || all[i].At.IsZero() {
				b.Fatalf("on record are %+v", all)
			}
		}
		if n := len(b.find("b").Decisions); n != 0 {
			b.Errorf("%d decisions on another operation", n)
		}
		if o := b.open("a", 4); len(o.Steps) != 2 || o.Steps[1].State != steps.StateDone {
			b.Errorf("who goes on finds %+v", o)
		}
	}},
	{"a-sweep-takes-what-was-finished-long-ago", func(b *bench) {
		for i, key := range []string{"a", "b", "c", "d", "e"} {
			o := b.open(key, uint64(i+1))
			b.put(o, 0, "one", steps.StateDone, nil)
			phase := steps.PhaseFinished
			if key == "d" {
				phase = steps.PhaseHeld
			}
			if key != "e" {
				b.mark(o, steps.Mark{Phase: phase}, nil)
			}
		}
		sweep := func(retention time.Duration, limit, want int) {
			b.Helper()
			if n, err := b.Store.Sweep(b.Context(), retention, limit); n != want || err != nil {
				b.Errorf("%d swept, %v; want %d", n, err, want)
			}
		}
		sweep(time.Hour, 10, 0)
		b.Advance(2 * time.Hour)
		sweep(3*time.Hour, 10, 0)
		sweep(time.Hour, 2, 2)
		sweep(time.Hour, 10, 1)
		sweep(time.Hour, 10, 0)
		for _, key := range []string{"d", "e"} {
			if len(b.find(key).Steps) != 1 {
				b.Errorf("%s has lost its steps", key)
			}
		}
		if o := b.open("a", 1); len(o.Steps) != 0 {
			b.Errorf("what was swept has steps: %+v", o.Steps)
		}
	}},
	{"a-context-that-has-ended-changes-nothing", func(b *bench) {
		o := b.open("a", 1)
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		_, oerr := b.Store.Open(ctx, steps.Opening{Identity: identity("b"), Fence: 1})
		_, ferr := b.Store.Find(ctx, identity("a"))
		_, lerr := b.Store.List(ctx, steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}})
		_, serr := b.Store.Sweep(ctx, -time.Hour, 1)
		for i, err := range []error{
			oerr, ferr, lerr, serr, b.Store.Put(ctx, o.Number, 1, steps.Step{Name: "one", State: steps.StateDone}),
			b.Store.Mark(ctx, steps.Mark{Number: o.Number, Fence: 1, Phase: steps.PhaseFinished}),
		} {
			if err == nil {
				b.Errorf("call %d took no notice of it", i)
			}
		}
		if got := b.keys(steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}}); got != "a" || len(b.find("a").Steps) != 0 {
			b.Errorf("open are %q", got)
		}
	}},
}
