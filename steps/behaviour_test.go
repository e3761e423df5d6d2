package steps_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/memory"
)

// table is a journal and a guard with a program that each test writes.
type table struct {
	*testing.T
	journal   *steps.Journal
	store     steps.Store
	guard     *semel.Guard
	completer *steps.Completer
	program   func(ctx context.Context, in string) (string, error)
	id        semel.Identity
}

// play runs a test in a bubble.
func play(t *testing.T, c steps.Config, p semel.Policy, test func(x *table)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		m, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		x := &table{T: t, id: stepstest.OrderIdentity("k"), store: c.Store}
		if x.store == nil {
			x.store = memory.NewSteps()
			c.Store = x.store
		}
		if x.journal, err = steps.New(c); err != nil {
			t.Fatal(err)
		}
		if x.guard, err = semel.New(semel.Config{Store: m, Policy: p}); err != nil {
			t.Fatal(err)
		}
		run := func(ctx context.Context, in string) (string, error) { return x.program(ctx, in) }
		if x.completer, err = steps.NewCompleter(steps.CompleterConfig{
			Journal: x.journal, Guard: x.guard, MaxAttempts: 3,
			Operations: map[string]steps.Handler{"orders.create": steps.Handle(x.journal, run, nil)},
		}); err != nil {
			t.Fatal(err)
		}
		test(x)
	})
}

func (x *table) submit() (string, error) {
	out, _, err := semel.Call(x.Context(), x.guard, semel.Submit{Identity: x.id}, func(ctx context.Context) (string, error) {
		return steps.Run(ctx, x.journal, "in", x.program)
	})
	return out, err
}

// want submits and wants an error, or the result "ok".
func (x *table) want(want error) {
	x.Helper()
	if out, err := x.submit(); !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil && out != "ok" {
		x.Errorf("%q, %v; want %v", out, err, want)
	}
}

func (x *table) find() steps.Operation {
	x.Helper()
	o, err := x.journal.Find(x.Context(), x.id)
	if err != nil {
		x.Fatal(err)
	}
	return o
}

// round has the completer look when everything is due.
func (x *table) round() steps.Report {
	time.Sleep(time.Hour)
	r := x.completer.Round(x.Context())
	if r.Err != nil {
		x.Error(r.Err)
	}
	return r
}

var errFails = errors.New("it fails")

// remote is a step that fails with err.
func remote(ctx context.Context, name string, p steps.Policy, err error) error {
	_, err = steps.Remote(ctx, name, p, "in", func(context.Context, string) (string, error) { return "out of " + name, err })
	return err
}

func local(ctx context.Context, name string, err error) error {
	_, err = steps.Local(ctx, name, "in", func(context.Context, string) (string, error) { return "out of " + name, err })
	return err
}

// What an error of a step's does to the step, to the record, and whether the next
// execution calls it again.
func TestErrorsOfSteps(t *testing.T) {
	retry, reconcile := steps.Policy{OnCrash: semel.CrashRetry}, steps.Policy{OnCrash: semel.CrashReconcile, Reconcile: func(context.Context, steps.Call) (steps.Finding, error) { return steps.Undecided(), nil }}
	final, none := semel.Final(errFails), semel.NoEffect(errFails)
	for name, c := range map[string]struct {
		local  bool
		policy steps.Policy
		err    error
		state  steps.State // of the step; empty if it has none
		told   error
		again  int // calls after the next execution
	}{
		"remote, no effect":              {err: none, state: steps.StateFree, told: semel.ErrNoEffect, again: 2},
		"remote, final":                  {err: final, state: steps.StateFailed, told: semel.ErrRecorded, again: 1},
		"remote, hold":                   {err: errFails, state: steps.StateUnknown, told: steps.ErrUnknown, again: 1},
		"remote, hold, declared so":      {err: semel.Indeterminate("why", errFails), state: steps.StateUnknown, told: semel.ErrUnknown, again: 1},
		"remote, retry":                  {policy: retry, err: errFails, state: steps.StateStarted, told: semel.ErrUnknown, again: 2},
		"remote, retry, no effect":       {policy: retry, err: none, state: steps.StateFree, told: semel.ErrNoEffect, again: 2},
		"remote, reconcile, not decided": {policy: reconcile, err: errFails, state: steps.StateStarted, told: semel.ErrUnknown, again: 1},
		"local":                          {local: true, err: errFails, told: errFails, again: 2},
		"local, final":                   {local: true, err: final, state: steps.StateFailed, told: semel.ErrRecorded, again: 1},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, steps.Config{}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
				calls := 0
				do := func(context.Context, string) (string, error) { calls++; return "", c.err }
				x.program = func(ctx context.Context, _ string) (string, error) {
					var err error
					if c.local {
						_, err = steps.Local(ctx, "s", 1, func(ctx context.Context, _ int) (string, error) { return do(ctx, "") })
					} else {
						_, err = steps.Remote(ctx, "s", c.policy, "in", do)
					}
					// Whatever the program makes of it, no other step is begun.
					if answer, _ := semel.Declared(err); answer != semel.AnswerExecuted {
						if err := remote(ctx, "next", retry, nil); err == nil {
							t.Error("the operation went on")
						}
						return "wrong", nil
					}
					return "", err
				}
				x.want(c.told)
				all := x.find().Steps
				if c.state == "" && len(all) != 0 || c.state != "" && (len(all) != 1 || all[0].State != c.state) {
					t.Errorf("steps: %+v; want %q", all, c.state)
				}
				if calls != 1 {
					t.Errorf("%d calls", calls)
				}
				_, _ = x.submit()
				if calls != c.again {
					t.Errorf("%d calls after another execution; want %d", calls, c.again)
				}
			})
		})
	}
}

// That the call of this execution had no effect says nothing about the one before.
func TestNoEffectSpeaksForOneCall(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
		var doubts []bool
		err := errFails
		x.program = func(ctx context.Context, _ string) (string, error) {
			return steps.Remote(ctx, "one", steps.Policy{OnCrash: semel.CrashRetry}, 1, func(ctx context.Context, _ int) (string, error) {
				doubts = append(doubts, semel.CurrentStep(ctx).InDoubt)
				return "ok", err
			})
		}
		x.want(semel.ErrUnknown)
		err = semel.NoEffect(errFails)
		x.want(semel.ErrUnknown)
		if s := x.find().Steps[0]; s.State != steps.StateStarted {
			t.Errorf("%+v", s)
		}
		err = nil
		x.want(nil)
		if fmt.Sprint(doubts) != "[false true true]" {
			t.Errorf("in doubt: %v", doubts)
		}
	})
}

// Whoever goes on with an operation does so with the input on record.
func TestInputOnRecord(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
		var got []string
		for _, in := range []string{"first", "second"} {
			_, _, err := semel.Call(x.Context(), x.guard, semel.Submit{Identity: x.id}, func(ctx context.Context) (string, error) {
				return steps.Run(ctx, x.journal, in, func(ctx context.Context, in string) (string, error) {
					got = append(got, in)
					return in, errFails
				})
			})
			if !errors.Is(err, semel.ErrUnknown) {
				t.Error(err)
			}
		}
		if fmt.Sprint(got) != "[first first]" {
			t.Errorf("executed with %q", got)
		}
	})
}

// A failure for good is a result: the operation takes the same way again.
func TestCompensation(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
		crash, undone := errFails, 0
		x.program = func(ctx context.Context, _ string) (string, error) {
			if err := local(ctx, "reserve", nil); err != nil {
				return "", err
			}
			declined := remote(ctx, "charge", steps.Policy{}, semel.Final(errors.New("declined")))
			if !errors.Is(declined, semel.ErrRecorded) || declined.Error() != "declined" {
				t.Errorf("charge: %v", declined)
			}
			if _, err := steps.Remote(ctx, "unreserve", steps.Policy{OnCrash: semel.CrashRetry}, "in", func(context.Context, string) (int, error) { undone++; return 1, crash }); err != nil {
				return "", err
			}
			return "", declined
		}
		x.want(semel.ErrUnknown)
		crash = nil
		x.want(semel.ErrRecorded)
		x.want(semel.ErrRecorded)
		if undone != 2 {
			t.Errorf("undone %d times", undone)
		}
		if r := x.round(); r.Finished != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// Steps before have had their effects, so no effect of one that follows frees nothing.
func TestNoEffectBehindAStepIsNoNoEffect(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
		err := semel.NoEffect(errFails)
		x.program = func(ctx context.Context, _ string) (string, error) {
			return "ok", errors.Join(local(ctx, "one", nil), remote(ctx, "two", steps.Policy{}, err))
		}
		x.want(semel.ErrUnknown)
		err = nil
		if r := x.round(); r.Finished != 1 || x.find().Phase != steps.PhaseFinished {
			t.Errorf("%+v", r)
		}
		x.want(nil)
	})
}

// An execution that does not do what the one before it did ends with an error that says
// so, calls nothing, and is held for a person.
func TestChanged(t *testing.T) {
	both := func(first, second string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			return errors.Join(local(ctx, first, nil), remote(ctx, second, steps.Policy{}, nil))
		}
	}
	for name, c := range map[string]struct {
		program func(ctx context.Context) error
		want    string
	}{
		"another name":   {both("one", "deux"), `step 1 is "two" on record, and "deux" in the program`},
		"another order":  {func(ctx context.Context) error { return remote(ctx, "two", steps.Policy{}, nil) }, `step 0 is "one" on record, and "two" in the program`},
		"one before":     {both("zero", "one"), `step 0 is "one" on record, and "zero" in the program`},
		"fewer":          {func(ctx context.Context) error { return local(ctx, "one", nil) }, `step 1 is "two" on record, and the program has ended before it`},
		"none":           {func(context.Context) error { return nil }, `step 0 is "one" on record, and the program has ended before it`},
		"failed earlier": {func(context.Context) error { return semel.Final(errFails) }, `step 0 is "one" on record, and the program has ended before it`},
		"another input": {func(ctx context.Context) error {
			_, err := steps.Local(ctx, "one", "other", func(context.Context, string) (string, error) { return "", nil })
			return err
		}, `step 0 is "one" on record, with another input than the program's`},
		"local for remote": {func(ctx context.Context) error {
			return errors.Join(local(ctx, "one", nil), local(ctx, "two", nil))
		}, `step 1 is "two (remote)" on record, and "two (local)" in the program`},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, steps.Config{}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
				x.program = func(ctx context.Context, _ string) (string, error) {
					_ = local(ctx, "one", nil)
					return "ok", remote(ctx, "two", steps.Policy{OnCrash: semel.CrashRetry}, errFails)
				}
				x.want(errFails)
				before := x.find().Steps
				x.program = func(ctx context.Context, _ string) (string, error) { return "ok", c.program(ctx) }
				if _, err := x.submit(); err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, semel.ErrUnknown) {
					t.Errorf("%v; want %s", err, c.want)
				}
				if r := x.round(); r.Held != 1 || x.find().Phase != steps.PhaseHeld || !strings.Contains(x.find().Cause, c.want) {
					t.Errorf("%+v, %+v", r, x.find())
				}
				if after := x.find().Steps; len(after) != len(before) || after[len(after)-1].State == steps.StateDone {
					t.Errorf("steps %+v; were %+v", after, before)
				}
				if r := x.round(); r != (steps.Report{}) {
					t.Errorf("what is held was looked at: %+v", r)
				}
			})
		})
	}
}

// Misuse by a program is refused before anything is called.
func TestRefused(t *testing.T) {
	large := strings.Repeat("x", 100)
	for name, c := range map[string]struct {
		program func(x *table, ctx context.Context) error
		want    error
	}{
		"a step twice": {func(_ *table, ctx context.Context) error {
			return errors.Join(local(ctx, "one", nil), remote(ctx, "one", steps.Policy{}, nil))
		}, semel.ErrStepRepeated},
		"a step that a call has the key of": {func(_ *table, ctx context.Context) error {
			if _, err := semelclient.WithStep(ctx, "one"); err != nil {
				return err
			}
			return remote(ctx, "one", steps.Policy{}, nil)
		}, semel.ErrStepRepeated},
		"too many": {func(_ *table, ctx context.Context) (err error) {
			for i := range 6 {
				err = errors.Join(err, local(ctx, fmt.Sprint("n", i), nil))
			}
			return err
		}, steps.ErrTooMany},
		"a large input": {func(_ *table, ctx context.Context) error {
			_, err := steps.Local(ctx, "one", large, func(context.Context, string) (int, error) { return 0, errors.New("called") })
			return err
		}, steps.ErrTooLarge},
		"a large local result": {func(_ *table, ctx context.Context) error {
			_, err := steps.Local(ctx, "one", 1, func(context.Context, int) (string, error) { return large, nil })
			return err
		}, steps.ErrTooLarge},
		"a large remote result": {func(_ *table, ctx context.Context) error {
			_, err := steps.Remote(ctx, "one", steps.Policy{}, 1, func(context.Context, int) (string, error) { return large, nil })
			return err
		}, steps.ErrUnknown},
		"two at the same time": {func(_ *table, ctx context.Context) error {
			_, err := steps.Remote(ctx, "one", steps.Policy{}, 1, func(context.Context, int) (int, error) { return 1, remote(ctx, "two", steps.Policy{}, nil) })
			return err
		}, steps.ErrConcurrent},
		"one that is left behind": {func(x *table, ctx context.Context) error {
			go func() {
				_, err := steps.Remote(ctx, "one", steps.Policy{}, 1, func(context.Context, int) (int, error) { time.Sleep(time.Second); return 1, nil })
				if err == nil {
					err = remote(ctx, "two", steps.Policy{}, nil)
				}
				if !errors.Is(err, steps.ErrNoOperation) {
					x.Errorf("a step behind the operation's end: %v", err)
				}
			}()
			synctest.Wait()
			return nil
		}, steps.ErrConcurrent},
		"a step's name": {func(_ *table, ctx context.Context) error { return local(ctx, "a\nb", nil) }, semel.ErrNoEffect},
		"a policy": {func(_ *table, ctx context.Context) error {
			return remote(ctx, "a", steps.Policy{OnCrash: semel.CrashReconcile}, nil)
		}, semel.ErrNoEffect},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, steps.Config{MaxSteps: 5, MaxInput: 90, MaxResult: 90}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
				x.program = func(ctx context.Context, _ string) (string, error) { return "ok", c.program(x, ctx) }
				x.want(c.want)
			})
		})
	}
	play(t, steps.Config{MaxInput: 3}, semel.Policy{}, func(x *table) {
		x.want(steps.ErrTooLarge)
		if err := local(x.Context(), "one", nil); !errors.Is(err, steps.ErrNoOperation) {
			t.Errorf("a step without an operation: %v", err)
		}
		if _, err := steps.Run(x.Context(), x.journal, 1, func(context.Context, int) (int, error) { return 1, nil }); !errors.Is(err, steps.ErrNotLeased) {
			t.Errorf("an operation without an execution: %v", err)
		}
	})
}

// corrupt changes what a journal returns.
type corrupt struct {
	steps.Store
	change func(o *steps.Operation)
}

func (c corrupt) Open(ctx context.Context, o steps.Opening) (steps.Operation, error) {
	op, err := c.Store.Open(ctx, o)
	c.change(&op)
	return op, err
}

func TestCorruptJournal(t *testing.T) {
	for name, change := range map[string]func(o *steps.Operation){
		"state":     func(o *steps.Operation) { o.Steps[0].State = "later" },
		"gap":       func(o *steps.Operation) { o.Steps = o.Steps[1:] },
		"same name": func(o *steps.Operation) { o.Steps[1].Name = o.Steps[0].Name },
		"input":     func(o *steps.Operation) { o.Input = []byte(`{"a":`) },
		"result":    func(o *steps.Operation) { o.Steps[0].Result = []byte(`7`) },
	} {
		t.Run(name, func(t *testing.T) {
			spoiled := false
			store := corrupt{memory.NewSteps(), func(o *steps.Operation) {
				if spoiled {
					change(o)
				}
			}}
			play(t, steps.Config{Store: store}, semel.Policy{OnCrash: semel.CrashRetry}, func(x *table) {
				calls := 0
				x.program = func(ctx context.Context, _ string) (string, error) {
					_ = local(ctx, "one", nil)
					calls++
					return "ok", remote(ctx, "two", steps.Policy{OnCrash: semel.CrashRetry}, errFails)
				}
				x.want(errFails)
				spoiled = true
				x.want(steps.ErrCorrupt)
				x.round()
				if o := x.find(); o.Phase != steps.PhaseHeld || o.Steps[1].State != steps.StateStarted {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// Another request under an identity that the journal knows is no execution of it.
func TestOtherRequest(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{Retention: 11 * time.Minute}, func(x *table) {
		x.program = func(ctx context.Context, _ string) (string, error) { return "ok", local(ctx, "one", nil) }
		submit := func(body string) error {
			_, _, err := semel.Call(x.Context(), x.guard, semel.Submit{Identity: x.id, Fingerprint: semel.FingerprintOf([]byte(body))}, func(ctx context.Context) (string, error) {
				return steps.Run(ctx, x.journal, body, x.program)
			})
			return err
		}
		if err := submit("a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // its record is gone
		if err := submit("b"); !errors.Is(err, steps.ErrOtherRequest) || !errors.Is(err, semel.ErrNoEffect) {
			t.Error(err)
		}
		if err := submit("a"); err != nil || len(x.find().Steps) != 1 {
			t.Error(err)
		}
	})
}

// Behind the middleware: whatever its guard makes of a crash, the client that comes
// back is answered as the first time, by the completer's work or by its own.
func TestBehindTheMiddleware(t *testing.T) {
	for _, onCrash := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
		for _, completed := range []bool{true, false} {
			t.Run(fmt.Sprint(onCrash, ", completed ", completed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					defer time.Sleep(time.Minute)
					s := newShop(t)
					respond := func(r stepstest.Receipt) (semel.Result, error) {
						return semelhttp.EncodeResult(http.MethodPost, http.StatusCreated, http.Header{"Content-Type": {"text/plain"}}, nil, []byte(r.Charge))
					}
					var k *steps.Completer
					start := func(points int) http.Handler {
						p, l := s.process(points)
						g, err := semel.New(semel.Config{Store: records{s.records, l}, Policy: semel.Policy{OnCrash: onCrash}})
						if err != nil {
							t.Fatal(err)
						}
						j, err := steps.New(steps.Config{Store: p.Journal})
						if err != nil {
							t.Fatal(err)
						}
						protect, err := semelhttp.New(semelhttp.Config{Guard: g, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Operation: "orders.create"}, nil }})
						if err != nil {
							t.Fatal(err)
						}
						if k, err = steps.NewCompleter(steps.CompleterConfig{Journal: j, Guard: g, Operations: map[string]steps.Handler{"orders.create": steps.Handle(j, p.Order, respond)}}); err != nil {
							t.Fatal(err)
						}
						return protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							var body bytes.Buffer
							_, _ = body.ReadFrom(r.Body)
							receipt, err := steps.Run(r.Context(), j, body.String(), p.Order)
							if err != nil {
								semelhttp.DeclareIndeterminate(r.Context(), "a step failed")
								http.Error(w, "try again", http.StatusInternalServerError)
								return
							}
							w.Header().Set("Content-Type", "text/plain")
							w.WriteHeader(http.StatusCreated)
							_, _ = w.Write([]byte(receipt.Charge))
						}))
					}
					post := func(h http.Handler) *httptest.ResponseRecorder {
						w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("o"))
						r.Header.Set("Idempotency-Key", "k")
						h.ServeHTTP(w, r)
						return w
					}
					if w := post(start(15)); w.Code < 500 {
						t.Errorf("%d %s", w.Code, w.Body)
					}
					time.Sleep(time.Hour)
					h := start(forever)
					if completed {
						if r := k.Round(t.Context()); r.Finished != 1 {
							t.Errorf("%+v", r)
						}
					}
					w := post(h)
					if onCrash == semel.CrashHold && !completed { // the record answers first, and says that it does not know
						if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "outcome-unknown") {
							t.Errorf("%d %s", w.Code, w.Body)
						}
						if r := k.Round(t.Context()); r.Finished != 1 {
							t.Errorf("%+v", r)
						}
						w = post(h)
					}
					if w.Code != http.StatusCreated || w.Body.String() != "/charge for o" || w.Header().Get("Content-Type") != "text/plain" {
						t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
					}
					s.world.WantOnce(t, "o", s.stock["o"])
				})
			})
		}
	}
}

func TestConfigs(t *testing.T) {
	if _, err := steps.New(steps.Config{MaxSteps: -1}); err == nil || !strings.Contains(err.Error(), "Store") || !strings.Contains(err.Error(), "MaxSteps") {
		t.Error(err)
	}
	if _, err := steps.NewCompleter(steps.CompleterConfig{Parallel: -1, Operations: map[string]steps.Handler{"a": nil}}); err == nil ||
		!strings.Contains(err.Error(), "Guard") || !strings.Contains(err.Error(), "Parallel") || !strings.Contains(err.Error(), `"a"`) {
		t.Error(err)
	}
	play(t, steps.Config{}, semel.Policy{}, func(x *table) {
		_, err := steps.NewCompleter(steps.CompleterConfig{Journal: x.journal, Guard: x.guard, Retention: time.Minute, Operations: map[string]steps.Handler{"a": steps.Handle(x.journal, x.program, nil)}})
		if err == nil || !strings.Contains(err.Error(), "Retention") {
			t.Error(err)
		}
	})
}
