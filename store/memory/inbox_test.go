package memory_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/store/memory"
)

func TestInbox(t *testing.T) {
	inboxtest.Run(t, inboxtest.Config{Virtual: true, New: func(testing.TB) inboxtest.Harness {
		b := memory.NewInbox()
		var mu sync.Mutex
		effects := map[string]int{}
		return inboxtest.Harness{
			Store: b, Open: func() inbox.Store { return b },
			Advance: time.Sleep,
			Effect: func(ctx context.Context, name string) error {
				done := memory.OnCommit(ctx, func() {
					mu.Lock()
					defer mu.Unlock()
					effects[name]++
				})
				if !done {
					return errors.New("no transaction")
				}
				return nil
			},
			Effects: func() map[string]int {
				mu.Lock()
				defer mu.Unlock()
				return maps.Clone(effects)
			},
		}
	}})
}
