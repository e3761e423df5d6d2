package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/sqlite"
)

func TestSteps(t *testing.T) {
	t.Parallel()
	stepstest.Run(t, stepstest.Config{New: func(t testing.TB) stepstest.Harness {
		path := filepath.Join(t.TempDir(), "semel.db")
		store := func() steps.Store { return openTx(t, sqlite.Config{Path: path, BusyTimeout: time.Minute}).Steps() }
		h := stepstest.Harness{Store: store(), Open: store, Effect: effect}
		db := raw(t, path)
		mustExec(t, db, effectTable)
		h.Effects = func() map[string]int { return effects(t, db) }
		h.Advance = func(d time.Duration) {
			mustExec(t, db, "UPDATE journal SET due = due - ?", d.Microseconds())
			mustExec(t, db, "UPDATE journal_step SET at = at - ?1, started = started - ?1", d.Microseconds())
		}
		return h
	}})
}
