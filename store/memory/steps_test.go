package memory_test

import (
	"testing"
	"time"

	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/memory"
)

func TestSteps(t *testing.T) {
	stepstest.Run(t, stepstest.Config{Virtual: true, New: func(testing.TB) stepstest.Harness {
		s := memory.NewSteps()
		e := &recorder.Effects{OnCommit: memory.OnCommit}
		return stepstest.Harness{Store: s, Open: func() steps.Store { return s }, Advance: time.Sleep, Effect: e.Effect, Effects: e.Effects}
	}})
}
