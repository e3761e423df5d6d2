package postgres

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/outbox"
)

// counter answers as a table that holds so many messages and takes so long to count.
type counter struct {
	there int
	cost  time.Duration
	calls int
}

func (c *counter) count(string, int) interface{ Scan(...any) error } { return c }

func (c *counter) Scan(dest ...any) error {
	c.calls++
	there := c.there
	time.Sleep(c.cost)
	*dest[0].(*int) = there
	return nil
}

// What is counted for the bound of pending messages takes at most a tenth of the time,
// and half of it where more would be refused.
func TestCountingPendingTakesAPartOfTheTime(t *testing.T) {
	for name, c := range map[string]struct {
		there    int
		cost     time.Duration
		min, max int // counts within a minute
		want     error
	}{
		"cheap":           {10, time.Millisecond, 50, 61, nil},
		"costly":          {10, time.Second, 4, 7, nil},
		"costly and full": {1000, 2 * time.Second, 12, 16, outbox.ErrFull},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &counter{there: c.there, cost: c.cost}
				s := &Store{config: Config{MaxPending: 1000}}
				for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(100 * time.Millisecond) {
					if err := s.admit(1, table.count); !errors.Is(err, c.want) {
						t.Fatalf("after %v: %v; want %v", time.Since(start), err, c.want)
					}
				}
				if table.calls < c.min || table.calls > c.max {
					t.Errorf("counted %d times in a minute; want %d to %d", table.calls, c.min, c.max)
				}
			})
		})
	}
}

// While one counts, others go by the count before, and what they enqueue is added to
// what is found.
func TestOthersDoNotWaitForACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &counter{there: 5, cost: time.Second}
		s := &Store{config: Config{MaxPending: 10}}
		if err := s.admit(1, table.count); err != nil { // 6
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		table.there = 7
		done := make(chan error)
		go func() { done <- s.admit(1, table.count) }() // 7, 2 of others, and 1
		synctest.Wait()
		began := time.Now()
		for range 2 {
			if err := s.admit(1, table.count); err != nil {
				t.Errorf("beside a count: %v", err)
			}
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited %v for a count of another's", waited)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.admit(1, table.count); !errors.Is(err, outbox.ErrFull) {
			t.Errorf("the eleventh: %v; want ErrFull", err)
		}
	})
}
