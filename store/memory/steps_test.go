package memory_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/memory"
)

func TestSteps(t *testing.T) {
	stepstest.Run(t, stepstest.Config{Virtual: true, New: func(testing.TB) stepstest.Harness {
		s := memory.NewSteps()
		var mu sync.Mutex
		effects := map[string]int{}
		return stepstest.Harness{
			Store: s, Open: func() steps.Store { return s },
			Advance: time.Sleep,
			Effect: func(ctx context.Context, name string) error {
				if !memory.OnCommit(ctx, func() {
					mu.Lock()
					defer mu.Unlock()
					effects[name]++
				}) {
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
