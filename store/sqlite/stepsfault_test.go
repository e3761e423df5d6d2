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
	"testing"

	"github.com/semelhq/semel/steps/stepstest"
)

const stepsVariable = "SEMEL_SQLITE_TEST_STEPS" // the file to take an order in

func newStepsShop(s *Store) *stepstest.Shop {
	tx := s.Transactional()
	return &stepstest.Shop{Records: s, Journal: tx.Steps(), Reserve: func(ctx context.Context, order string) error {
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
	path := filepath.Join(t.TempDir(), "semel.db")
	shop, world := newStepsShop(openFaulty(t, &faults{}, Config{Path: path})), &stepstest.World{}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE reservation (order_id TEXT NOT NULL) STRICT"); err != nil {
		t.Fatal(err)
	}
	remote := httptest.NewServer(world)
	defer remote.Close()
	shop.URL = remote.URL
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprint("twice ", twice), func(t *testing.T) {
			stepstest.Killed(t, shop, world, func(order string) (n int) {
				if err := db.QueryRow("SELECT count(*) FROM reservation WHERE order_id = ?", order).Scan(&n); err != nil {
					t.Error(err)
				}
				return n
			}, twice, func() *exec.Cmd {
				c := exec.CommandContext(t.Context(), self, "-test.run=^TestStepsKilledAtEveryPoint$")
				c.Env = append(os.Environ(), stepsVariable+"="+path)
				return c
			})
		})
	}
}
