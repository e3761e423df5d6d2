package semel_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// renewalStore notes when claims are renewed, by their fence.
type renewalStore struct {
	*memory.Store
	mu      sync.Mutex
	renewed map[uint64][]time.Time
}

type renewalClaim struct {
	semel.Claim
	store *renewalStore
}

func (s *renewalStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	return &renewalClaim{c, s}, err
}

func (c *renewalClaim) Renew(ctx context.Context) error {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.renewed[c.Fence()] = append(c.store.renewed[c.Fence()], time.Now())
	return c.Claim.Renew(ctx)
}

// Each of many executions, of several policies, is renewed at its own time,
// whoever else begins and ends meanwhile.
func TestEachIsRenewedAtItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &renewalStore{Store: newStore(t), renewed: map[uint64][]time.Time{}}
		g := newGuard(t, s, semel.Policy{})
		other, err := g.With(semel.Policy{Lease: 6 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 500 {
			g, heartbeat := g, 5*time.Second
			if i%3 == 0 {
				g, heartbeat = other, 2*time.Second
			}
			start, takes := rand.N(20*time.Second), rand.N(12*time.Second)
			wg.Go(func() {
				time.Sleep(start)
				_, err := g.Do(t.Context(), submit(fmt.Sprint(i)), func(ctx context.Context) (semel.Result, error) {
					x, _ := semel.CurrentExecution(ctx)
					var want []time.Time
					for at := heartbeat; at < takes; at += heartbeat {
						want = append(want, time.Now().Add(at))
					}
					time.Sleep(takes)
					s.mu.Lock()
					defer s.mu.Unlock()
					if got := s.renewed[x.Fence()]; !slices.EqualFunc(got, want, time.Time.Equal) {
						t.Errorf("an execution of %v with a heartbeat of %v was renewed at %v; want %v", takes, heartbeat, got, want)
					}
					return semel.Result{}, nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
