package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestConflictDoesNotSpin: a statement that fails while another transaction is
// open is repeated with pauses, for a while, and not beyond its context.
func TestConflictDoesNotSpin(t *testing.T) {
	conflict := &pgconn.PgError{Code: "40001"}
	for _, tt := range []struct {
		name      string
		open      time.Duration // how long the other transaction is
		timeout   time.Duration // of the context
		atLeast   time.Duration
		atMost    time.Duration
		mostTries int
		err       error
	}{
		{"short", 50 * time.Millisecond, time.Hour, 50 * time.Millisecond, 250 * time.Millisecond, 40, nil},
		{"for ever", time.Hour, time.Hour, time.Second, 6 * time.Second, 61, conflict},
		{"beyond the context", time.Hour, 500 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond, 60, conflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
				defer cancel()
				begin, tries := time.Now(), 0
				n, err := again(ctx, &Store{}, func() (int, error) {
					if tries++; tries > 1000 {
						t.Fatal("it spins")
					}
					if time.Since(begin) < tt.open {
						return 0, conflict
					}
					return 7, nil
				})
				took := time.Since(begin)
				if !errors.Is(err, tt.err) || (err == nil) != (n == 7) || took < tt.atLeast || took > tt.atMost || tries > tt.mostTries {
					t.Errorf("%d, %v after %v and %d tries", n, err, took, tries)
				}
			})
		})
	}
	t.Run("another error", func(t *testing.T) {
		other, tries := errors.New("other"), 0
		_, err := again(t.Context(), &Store{}, func() (int, error) { tries++; return 0, other })
		if !errors.Is(err, other) || tries != 1 {
			t.Errorf("%v after %d tries", err, tries)
		}
	})
}
