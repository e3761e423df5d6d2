package steps_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
)

// A step whose outcome nobody knows waits for a person; then the operation goes
// on by itself.
func TestHeldUntilResolved(t *testing.T) {
	for to, want := range map[steps.State]error{steps.StateDone: nil, steps.StateFree: nil, steps.StateFailed: semel.ErrRecorded} {
		t.Run(string(to), func(t *testing.T) {
			play(t, steps.Config{}, semel.Policy{}, func(x *table) {
				var keys []string
				fails := errFails
				x.program = func(ctx context.Context, _ string) (string, error) {
					return steps.Remote(ctx, "charge", steps.Policy{}, 17, func(ctx context.Context, _ int) (string, error) {
						keys = append(keys, semel.CurrentStep(ctx).Key)
						return "ok", fails
					})
				}
				x.want(steps.ErrUnknown)
				fails = nil
				if r := x.round(); r.Held != 1 || len(keys) != 1 {
					t.Errorf("%+v, %d calls", r, len(keys))
				}
				held, err := x.journal.List(x.Context(), steps.Filter{Phases: []steps.Phase{steps.PhaseHeld}})
				if err != nil || len(held) != 1 || held[0].Identity != x.id {
					t.Fatalf("%+v, %v", held, err)
				}
				result := []byte(`"ok"`)
				if to == steps.StateFree {
					result = nil
				}
				good := steps.Resolution{Step: "charge", To: to, Result: result, By: "ada", Because: "looked it up"}
				for i, bad := range []func(r *steps.Resolution){
					func(r *steps.Resolution) { r.Step = "other" },
					func(r *steps.Resolution) { r.To = steps.StateStarted },
					func(r *steps.Resolution) { r.To, r.Result = steps.StateDone, []byte(`{`) },
					func(r *steps.Resolution) { r.To, r.Result = steps.StateFree, []byte(`1`) },
					func(r *steps.Resolution) { r.By = "" },
					func(r *steps.Resolution) { r.Because = strings.Repeat("x", 501) },
					func(r *steps.Resolution) { r.Result = []byte(`"` + strings.Repeat("x", 1<<17) + `"`) },
				} {
					r := good
					if bad(&r); x.journal.Resolve(x.Context(), x.id, r) == nil {
						t.Errorf("resolution %d was not refused", i)
					}
				}
				if err := x.journal.Resolve(x.Context(), stepstest.OrderIdentity("x"), good); !errors.Is(err, steps.ErrNotFound) {
					t.Error(err)
				}
				if err := x.journal.Resolve(x.Context(), x.id, good); err != nil {
					t.Fatal(err)
				}
				if err := x.journal.Resolve(x.Context(), x.id, good); !errors.Is(err, steps.ErrNotUnknown) {
					t.Errorf("resolved twice: %v", err)
				}
				if d := x.find().Decisions; len(d) != 1 || d[0].Kind != semel.TrailStepResolved || d[0].RequestID != "operator:ada" ||
					d[0].Label != "charge: unknown to "+string(to) || d[0].Cause != "looked it up" || d[0].Key != x.id.Key || d[0].Fence == 0 {
					t.Errorf("on record is %+v", d)
				}
				if r := x.round(); r.Finished != 1 {
					t.Errorf("%+v", r)
				}
				x.want(want) // the client comes back
				if to == steps.StateFree && (len(keys) != 2 || keys[0] != keys[1]) || to != steps.StateFree && len(keys) != 1 {
					t.Errorf("called with the keys %q", keys)
				}
			})
		})
	}
}

// What fails again and again is tried less and less often, and then held, until somebody
// has mended it.
func TestAttemptsAreBounded(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{}, func(x *table) {
		calls, fails := 0, errFails
		x.program = func(ctx context.Context, _ string) (string, error) {
			calls++
			if calls == 3 {
				panic("on purpose")
			}
			return "ok", remote(ctx, "one", steps.Policy{OnCrash: semel.CrashRetry}, fails)
		}
		x.want(semel.ErrUnknown)
		for range 20 {
			x.round()
		}
		if o := x.find(); calls != 4 || o.Phase != steps.PhaseHeld || o.Attempts != 3 {
			t.Errorf("%d calls, %+v", calls, o)
		}
		fails = nil
		if err := x.journal.Retry(x.Context(), x.id, "ada", ""); err == nil {
			t.Error("retried without a reason")
		}
		if err := x.journal.Retry(x.Context(), x.id, "ada", "the network is back"); err != nil {
			t.Fatal(err)
		}
		if d := x.find().Decisions; len(d) != 1 || d[0].Kind != semel.TrailRetried || d[0].Label != "held to open" || d[0].Cause != "the network is back" {
			t.Errorf("on record is %+v", d)
		}
		if r := x.round(); r.Finished != 1 {
			t.Errorf("%+v", r)
		}
		if err := x.journal.Retry(x.Context(), x.id, "ada", "again"); !errors.Is(err, steps.ErrNotHeld) {
			t.Errorf("what is finished was retried: %v", err)
		}
		x.want(nil)
		if r := x.round(); r.Swept != 0 {
			t.Errorf("%+v", r)
		}
		time.Sleep(24 * time.Hour)
		if r := x.round(); r.Swept != 1 {
			t.Errorf("a day later: %+v", r)
		}
	})
}

// An attempt that fails before it opens the journal counts too.
func TestAttemptsCountWithoutTheJournal(t *testing.T) {
	play(t, steps.Config{}, semel.Policy{}, func(x *table) {
		x.program = func(ctx context.Context, _ string) (string, error) { return "", errFails }
		x.want(errFails)
		k, err := steps.NewCompleter(steps.CompleterConfig{
			Journal: x.journal, Guard: x.guard, MaxAttempts: 3,
			Operations: map[string]steps.Handler{"orders.create": func(context.Context, []byte) (semel.Result, error) { return semel.Result{}, errFails }},
		})
		if err != nil {
			t.Fatal(err)
		}
		x.completer = k
		for range 5 {
			x.round()
		}
		if o := x.find(); o.Phase != steps.PhaseHeld || o.Attempts != 3 {
			t.Errorf("%+v", o)
		}
	})
}

func TestReconcile(t *testing.T) {
	for name, c := range map[string]struct {
		found       steps.Finding
		err         error
		settleAfter time.Duration
		calls       int
		finished    int
	}{
		"present":            {found: steps.Present("ok"), calls: 1, finished: 1},
		"absent, settled":    {found: steps.Absent(), settleAfter: time.Minute, calls: 2, finished: 1},
		"absent, too early":  {found: steps.Absent(), settleAfter: 24 * time.Hour, calls: 1},
		"absent, never":      {found: steps.Absent(), calls: 1},
		"undecided":          {found: steps.Undecided(), settleAfter: time.Minute, calls: 1},
		"present, but fails": {found: steps.Finding{}, err: errFails, settleAfter: time.Minute, calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, steps.Config{}, semel.Policy{}, func(x *table) {
				var keys []string
				p := steps.Policy{OnCrash: semel.CrashReconcile, SettleAfter: c.settleAfter, Reconcile: func(ctx context.Context, call steps.Call) (steps.Finding, error) {
					if call.Step != "charge" || call.Identity != x.id || string(call.Input) != "17" || call.Key != keys[0] {
						t.Errorf("asked about %+v", call)
					}
					return c.found, c.err
				}}
				x.program = func(ctx context.Context, _ string) (string, error) {
					return steps.Remote(ctx, "charge", p, 17, func(ctx context.Context, _ int) (string, error) {
						if keys = append(keys, semel.CurrentStep(ctx).Key); len(keys) == 1 {
							return "", errFails
						}
						return "ok", nil
					})
				}
				x.want(semel.ErrUnknown)
				if r := x.round(); r.Finished != c.finished || len(keys) != c.calls {
					t.Errorf("%+v after %d calls", r, len(keys))
				}
				if c.finished == 1 {
					x.want(nil)
				}
			})
		})
	}
}

// A process that was paused in a step, and wakes when another has gone on with the
// operation, commits nothing, and is told what the other has come to.
func TestPausedProcessWakes(t *testing.T) {
	for _, where := range []string{"local", "remote"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute)
				s := newShop(t)
				paused, _ := s.process(forever)
				asleep, wake := make(chan struct{}), make(chan struct{})
				first := true
				paused.Point = func(name string) {
					if first && name == map[string]string{"local": "reserve has its effect", "remote": "charge has answered"}[where] {
						first = false
						close(asleep)
						<-wake
					}
				}
				// Its claim is not renewed meanwhile, as that of a stopped process is not.
				stopped := &life{left: 1 << 20}
				paused.Records = records{s.records, stopped}
				var wg sync.WaitGroup
				var got stepstest.Receipt
				var answer semel.Answer
				var err error
				wg.Go(func() { got, answer, err = paused.Place(t.Context(), "o") })
				<-asleep
				stopped.mu.Lock()
				stopped.left = 0
				stopped.mu.Unlock()
				other, _ := s.process(forever)
				if r := s.settle(other); r.Finished != 1 {
					t.Errorf("%+v", r)
				}
				stopped.mu.Lock()
				stopped.left = 1 << 20
				stopped.mu.Unlock()
				close(wake)
				wg.Wait()
				if err != nil || answer != semel.AnswerReplayed || got.Charge != "/charge for o" {
					t.Errorf("it is told %+v, %v, %v", got, answer, err)
				}
				s.world.WantOnce(t, "o", s.stock["o"])
			})
		})
	}
}

// Many completers and clients at once: each order takes effect once.
func TestCompletersRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		s := newShop(t)
		var orders []string
		for i := range 20 {
			order := fmt.Sprint("o", i)
			orders = append(orders, order)
			p, _ := s.process(6 + i)
			_, _, _ = p.Place(t.Context(), order)
		}
		var wg sync.WaitGroup
		for range 8 {
			p, _ := s.process(forever)
			k, err := p.Completer()
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for range 30 {
					time.Sleep(time.Second)
					k.Round(t.Context())
				}
			})
			wg.Go(func() {
				p.Policy.OnCrash = semel.CrashRetry
				for range 30 {
					time.Sleep(time.Second)
					for _, order := range orders {
						_, _, _ = p.Place(t.Context(), order)
					}
				}
			})
		}
		wg.Wait()
		for _, order := range orders {
			s.world.WantOnce(t, order, s.stock[order])
		}
	})
}

// A completer's Run ends with its context, and waits for what is under way.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		s := newShop(t)
		dead, _ := s.process(9)
		_, _, _ = dead.Place(t.Context(), "o")
		p, _ := s.process(forever)
		ctx, cancel := context.WithCancel(t.Context())
		p.Point = func(name string) {
			if name == "charge is called" {
				cancel()
				time.Sleep(time.Second)
			}
		}
		k, err := p.Completer()
		if err != nil {
			t.Fatal(err)
		}
		k.Run(ctx)
		if r, err := s.records.Find(t.Context(), stepstest.OrderIdentity("o")); err != nil || r.State != semel.StateCompleted {
			t.Errorf("%v, %v", r.State, err)
		}
		s.world.WantOnce(t, "o", s.stock["o"])
	})
}

// An operation without a record is not executed by a completer: a person has said that
// it had no effect, or it was released.
func TestCompleterExecutesNoneWithoutRecord(t *testing.T) {
	for name, c := range map[string]struct {
		step error
		want steps.Phase
	}{
		"released":                   {semel.NoEffect(errFails), steps.PhaseFinished},
		"resolved as without effect": {errFails, steps.PhaseHeld},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, steps.Config{}, semel.Policy{}, func(x *table) {
				calls := 0
				x.program = func(ctx context.Context, _ string) (string, error) {
					calls++
					return "ok", remote(ctx, "one", steps.Policy{OnCrash: semel.CrashRetry}, c.step)
				}
				_, err := x.submit()
				if e, ok := errors.AsType[*semel.Error](err); ok && e.Answer == semel.AnswerUnknown {
					if _, err := x.guard.Resolve(x.Context(), semel.Resolution{Identity: x.id, Fence: e.Record.Fence, Decision: semel.DecideNoEffect}); err != nil {
						t.Fatal(err)
					}
				}
				x.round()
				if o := x.find(); calls != 1 || o.Phase != c.want {
					t.Errorf("%d calls, %+v", calls, o)
				}
			})
		})
	}
}
