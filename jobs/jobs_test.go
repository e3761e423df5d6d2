package jobs_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"

	"github.com/semelhq/semel/jobs/jobstest"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

func harness(testing.TB) jobstest.Harness {
	o, in := memory.NewOutbox(), memory.NewInbox()
	var mu sync.Mutex
	effects := map[string]int{}
	inside := func(ctx context.Context, fn func()) error {
		if !memory.OnCommit(ctx, fn) {
			return errors.New("no transaction")
		}
		return nil
	}
	return jobstest.Harness{
		Store: o, Inbox: in, Enqueue: o.Enqueue,
		EnqueueInside: func(ctx context.Context, m ...outbox.Message) error {
			return inside(ctx, func() { _ = o.Enqueue(context.WithoutCancel(ctx), m...) })
		},
		Effect: func(ctx context.Context, name string) error {
			return inside(ctx, func() {
				mu.Lock()
				defer mu.Unlock()
				effects[name]++
			})
		},
		Effects: func() map[string]int {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(effects)
		},
	}
}

func TestJobs(t *testing.T) {
	jobstest.Run(t, jobstest.Config{New: harness, Virtual: true})
}
