package steps_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/memory"
)

var errDead = errors.New("the process is dead")

// life is that of a process: after so many points nothing that it does reaches anybody.
type life struct {
	mu     sync.Mutex
	left   int
	passed []string
}

func (l *life) at(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 {
		return errDead
	}
	l.left--
	l.passed = append(l.passed, name)
	return nil
}

// both is a call between two points.
func both[T any](l *life, name string, call func() (T, error)) (v T, err error) {
	if err := l.at("before " + name); err != nil {
		return v, err
	}
	got, err := call()
	if derr := l.at("after " + name); derr != nil {
		return v, derr
	}
	return got, err
}

func one(l *life, name string, call func() error) error {
	_, err := both(l, name, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// records is a store of records in such a process.
type records struct {
	*memory.Store
	life *life
}

type claim struct {
	semel.Claim
	life *life
}

func (r records) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	return both(r.life, "begin", func() (semel.Claim, error) {
		c, err := r.Store.Begin(ctx, a)
		return claim{c, r.life}, err
	})
}

func (r records) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	return both(r.life, "find", func() (semel.Record, error) { return r.Store.Find(ctx, id) })
}

func (c claim) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	return both(c.life, "complete", func() (time.Time, error) { return c.Claim.Complete(ctx, r) })
}

func (c claim) Release(ctx context.Context) error {
	return one(c.life, "release", func() error { return c.Claim.Release(ctx) })
}

func (c claim) Hold(ctx context.Context, cause string) error {
	return one(c.life, "hold", func() error { return c.Claim.Hold(ctx, cause) })
}

func (c claim) Renew(ctx context.Context) error {
	return one(c.life, "renew", func() error { return c.Claim.Renew(ctx) })
}

// journal is a journal in such a process.
type journal struct {
	steps.Store
	life *life
}

func (j journal) Open(ctx context.Context, o steps.Opening) (steps.Operation, error) {
	return both(j.life, "open", func() (steps.Operation, error) { return j.Store.Open(ctx, o) })
}

func (j journal) Put(ctx context.Context, number, fence uint64, s steps.Step) error {
	return one(j.life, "put "+string(s.State), func() error { return j.Store.Put(ctx, number, fence, s) })
}

func (j journal) Transact(ctx context.Context, number, fence uint64, s steps.Step, work func(context.Context) ([]byte, error)) error {
	return one(j.life, "transact", func() error {
		return j.Store.Transact(ctx, number, fence, s, func(ctx context.Context) ([]byte, error) {
			b, err := work(ctx)
			return b, errors.Join(err, j.life.at("before commit"))
		})
	})
}

func (j journal) List(ctx context.Context, f steps.Filter) ([]steps.Operation, error) {
	return both(j.life, "list", func() ([]steps.Operation, error) { return j.Store.List(ctx, f) })
}

func (j journal) Mark(ctx context.Context, m steps.Mark) error {
	return one(j.life, "mark "+string(m.Phase), func() error { return j.Store.Mark(ctx, m) })
}

// shop is a service, its database and the world around it.
type shop struct {
	*testing.T
	records *memory.Store
	journal steps.Store
	world   *stepstest.World
	mu      sync.Mutex
	stock   map[string]int
	charge  steps.Policy
}

func newShop(t *testing.T) *shop {
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &shop{
		T: t, records: m, journal: memory.NewSteps(), world: &stepstest.World{}, stock: map[string]int{},
		charge: steps.Policy{OnCrash: semel.CrashRetry},
	}
}

// process is one of the service, with so long a life.
func (s *shop) process(points int) (*stepstest.Shop, *life) {
	l := &life{left: points}
	return &stepstest.Shop{
		Records: records{s.records, l}, Journal: journal{s.journal, l}, Charge: s.charge, URL: "http://world",
		Reserve: func(ctx context.Context, order string) error {
			memory.OnCommit(ctx, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.stock[order]++
			})
			return l.at("reserve")
		},
		Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			return both(l, "send", func() (*http.Response, error) {
				w := httptest.NewRecorder()
				s.world.ServeHTTP(w, r)
				return w.Result(), nil
			})
		}),
		Point: func(name string) { _ = l.at(name) },
	}, l
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// settle has a process complete what is to be completed.
func (s *shop) settle(p *stepstest.Shop) (total steps.Report) {
	s.Helper()
	k, err := p.Completer()
	if err != nil {
		s.Fatal(err)
	}
	for range 40 {
		time.Sleep(time.Second)
		r := k.Round(s.Context())
		total.Finished += r.Finished
		total.Held += r.Held
		if r.Finished+r.Held > 0 || errors.Is(r.Err, errDead) {
			break
		}
	}
	return total
}

const forever = 1 << 30

// A process that takes an order dies at each point that it comes to, the one that goes
// on with it at each point that it comes to, and a third completes it.
func TestDiesTwiceAtEveryPoint(t *testing.T) {
	pairs, points := 0, map[string]bool{}
	for n := 1; ; n++ {
		first := true
		survived := false
		for m := 1; ; m++ {
			more := false
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute) // until what the dead have begun has given up
				s := newShop(t)
				p, l := s.process(n)
				_, _, err := p.Place(t.Context(), "o")
				survived = err == nil && l.at("more") == nil
				if first {
					points[l.passed[len(l.passed)-1]] = true
				}
				p, l = s.process(m)
				s.settle(p)
				more = l.at("more") != nil // it died
				last, _ := s.process(forever)
				s.settle(last)
				if _, err := s.journal.Find(t.Context(), stepstest.OrderIdentity("o")); err == nil {
					if r, err := s.records.Find(t.Context(), stepstest.OrderIdentity("o")); err != nil || r.State != semel.StateCompleted {
						t.Errorf("nobody has completed it: %v, %v", r.State, err)
					}
				}
				last.Policy.OnCrash = semel.CrashRetry // the client comes back
				if _, _, err := last.Place(t.Context(), "o"); err != nil {
					t.Error(err)
				}
				s.world.WantOnce(t, "o", s.stock["o"])
				if t.Failed() {
					t.Fatalf("died at points %d and %d, %s", n, m, l.passed)
				}
			})
			first = false
			pairs++
			if !more || t.Failed() {
				break
			}
		}
		if survived || t.Failed() {
			break
		}
	}
	for _, name := range []string{
		"after begin", "before open", "after open", "before transact", "reserve", "before commit", "after transact", "before put started", "after put started",
		"before send", "after send", "charge has answered", "before put done", "after put done", "before complete", "after complete",
	} {
		if !points[name] {
			t.Errorf("no process died behind the point %q", name)
		}
	}
	t.Logf("%d pairs", pairs)
}
