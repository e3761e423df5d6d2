package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
)

const stepsVariable = "SEMEL_SQLITE_TEST_STEPS" // the file to take an order in

func newStepsShop(s *Store) *stepstest.Shop {
	return &stepstest.Shop{Records: s, Journal: s.Steps(), Reserve: func(ctx context.Context, order string) error {
		q, ok := Tx(ctx)
		if !ok {
			return errors.New("no transaction")
		}
		_, err := q.ExecContext(ctx, "INSERT INTO reservation VALUES (?)", order)
		return err
	}}
}

// Processes that take an order are killed before every statement, and between and in
// the steps.
func TestStepsKilledAtEveryPoint(t *testing.T) {
	quick.LeaveOut(t)
	if c := stepstest.CurrentChild(); c != nil {
		f := &faults{}
		s, err := open(t.Context(), Config{Path: os.Getenv(stepsVariable)}, f.dial)
		if err != nil {
			t.Fatal(err)
		}
		f.arm(func(_ int, query string, _ []driver.Value) (bool, bool) {
			c.Point("before " + query)
			return false, false
		})
		if err := c.Main(newStepsShop(s)); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	}
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := func(t *testing.T) stepstest.Victim {
		path := filepath.Join(t.TempDir(), "semel.db")
		shop, world := newStepsShop(openFaulty(t, &faults{}, Config{Path: path})), &stepstest.World{}
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := db.Exec("CREATE TABLE reservation (order_id TEXT NOT NULL) STRICT"); err != nil {
			t.Fatal(err)
		}
		remote := httptest.NewServer(world)
		t.Cleanup(remote.Close)
		shop.URL = remote.URL
		return stepstest.Victim{
			Shop: shop, World: world,
			Reservations: func(order string) (n int) {
				if err := db.QueryRow("SELECT count(*) FROM reservation WHERE order_id = ?", order).Scan(&n); err != nil {
					t.Error(err)
				}
				return n
			},
			Command: func() *exec.Cmd {
				c := exec.CommandContext(t.Context(), self, "-test.run=^TestStepsKilledAtEveryPoint$")
				c.Env = append(os.Environ(), stepsVariable+"="+path)
				return c
			},
		}
	}
	t.Run("deciding", func(t *testing.T) { stepstest.KilledDeciding(t, victim(t)) })
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprint("twice ", twice), func(t *testing.T) { stepstest.Killed(t, twice, victim) })
	}
}

// Every statement of an order fails once, or is carried out and its answer lost.
func TestStepsEveryFault(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("answer lost ", lost), func(t *testing.T) {
			t.Parallel()
			world := &stepstest.World{}
			remote := httptest.NewServer(world)
			defer remote.Close()
			f := &faults{}
			shop := newStepsShop(openFaulty(t, f, Config{}))
			shop.URL, shop.Charge, shop.Policy.OnCrash = remote.URL, steps.Policy{OnCrash: semel.CrashRetry}, semel.CrashRetry
			ctx := t.Context()
			write1 := func(query string) {
				if _, err := write(ctx, shop.Records.(*Store), 0, func(tx *tx) (int64, error) { return tx.exec(query) }); err != nil {
					t.Fatal(err)
				}
			}
			write1("CREATE TABLE reservation (order_id TEXT NOT NULL) STRICT")
			n := 1
			for hit := true; hit; n++ {
				if quick.Skips(n, 4) {
					continue
				}
				hit = false
				where, order := "", fmt.Sprint("o", n)
				f.arm(func(call int, query string, _ []driver.Value) (before, after bool) {
					if call != n {
						return false, false
					}
					hit, where = true, query
					return !lost, lost
				})
				_, answer, err := shop.Place(ctx, order)
				for try := 0; err != nil && try < 5; try++ {
					_, answer, err = shop.Place(ctx, order) // the client comes back
				}
				f.arm(nil)
				var reserved int
				if rerr := shop.Records.(*Store).read(ctx, func(c *conn) error {
					return c.queryOnce(ctx, "SELECT count(*) FROM reservation WHERE order_id = ?", func(r *row) { reserved = int(r.int()) }, order)
				}); err != nil || rerr != nil || answer == 0 {
					t.Errorf("%v, %v, %v", answer, err, rerr)
				}
				world.WantOnce(t, order, reserved)
				if t.Failed() {
					t.Fatalf("at call %d, %s", n, where)
				}
			}
			if n < 30 {
				t.Errorf("only %d points", n-1)
			}
		})
	}
}

// No query of the journal reads through the table.
func TestStepsQueriesUseTheirIndexes(t *testing.T) {
	due, _, err := journals(steps.Filter{Phases: []steps.Phase{steps.PhaseOpen}, Due: true, Operations: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	s := openFaulty(t, &faults{}, Config{})
	if err := s.read(t.Context(), func(c *conn) error {
		for query, index := range map[string]string{
			selectJournal: "journal_identity", selectSteps: "sqlite_autoindex_journal_step_1", due: "journal_due", selectFinished: "journal_due",
			deleteJournals: "INTEGER PRIMARY KEY", deleteStepsWith: "sqlite_autoindex_journal_step_1",
		} {
			var plan []string
			if err := c.queryOnce(t.Context(), "EXPLAIN QUERY PLAN "+strings.ReplaceAll(query, "?", "'1'"), func(r *row) { _, _, _ = r.int(), r.int(), r.int(); plan = append(plan, r.text()) }); err != nil {
				return fmt.Errorf("%s: %w", query, err)
			}
			if all := strings.Join(plan, "\n"); !strings.Contains(all, index) || strings.Contains(all, "SCAN journal") {
				t.Errorf("%s\n%s", query, all)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Steps of an operation whose claim is a transaction would all be one commit.
func TestStepsNeedALeasedClaim(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{Mode: ModeTransactional})
	j, err := steps.New(steps.Config{Store: s.Steps()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := semel.New(semel.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	_, answer, err := semel.Call(t.Context(), g, semel.Submit{Identity: identity("k")}, func(ctx context.Context) (int, error) {
		return steps.Run(ctx, j, 1, func(context.Context, int) (int, error) { return 1, nil })
	})
	if answer != semel.AnswerReleased || !errors.Is(err, steps.ErrNotLeased) {
		t.Errorf("%v, %v", answer, err)
	}
}
