package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// Handlers that read a row, compute and write it lose no update with LockRow; who waits
// for too long, or in a circle, has had no effect, and comes again under the same key.
func TestLockRow(t *testing.T) {
	t.Parallel()
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{Mode: postgres.ModeTransactional})
	exec(t, pool, "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
	exec(t, pool, "INSERT INTO account VALUES (1, 0), (2, 0)")
	guard, err := semel.New(semel.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	call := func(key string, fn func(ctx context.Context) error) (semel.Answer, error) {
		_, answer, err := semel.Call(t.Context(), guard, semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "transfer"}, Key: key}}, func(ctx context.Context) (int, error) { return 0, fn(ctx) })
		return answer, err
	}
	add := func(wait time.Duration, ids ...int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			tx, _ := postgres.Tx(ctx)
			for _, id := range ids {
				var balance int
				if err := postgres.LockRow(ctx, wait, []any{&balance}, "SELECT balance FROM account WHERE id = $1 FOR UPDATE", id); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, "UPDATE account SET balance = $2 WHERE id = $1", id, balance+1); err != nil {
					return err
				}
			}
			return nil
		}
	}
	balance := func(id int) (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT balance FROM account WHERE id = $1", id).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	const many = 20
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			if answer, err := call("add"+string(rune('a'+i)), add(time.Minute, 1)); err != nil || answer != semel.AnswerExecuted {
				t.Error(answer, err)
			}
		})
	}
	wg.Wait()
	if n := balance(1); n != many {
		t.Errorf("%d of %d additions were kept", n, many)
	}

	// Somebody holds the row for longer than is waited.
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "SELECT FROM account WHERE id = 2 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
		if answer, err := call("late", add(wait, 1, 2)); answer != semel.AnswerReleased || !errors.Is(err, postgres.ErrLocked) {
			t.Errorf("waited for %v: %v, %v", wait, answer, err)
		}
	}
	if n := balance(1); n != many {
		t.Errorf("what gave up has left %d", n-many)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if answer, err := call("late", add(time.Minute, 1, 2)); answer != semel.AnswerExecuted || err != nil {
		t.Errorf("the same key again: %v, %v", answer, err)
	}

	// Two that lock in opposite orders: the server ends one of them, which has no effect.
	var both sync.WaitGroup
	both.Add(2)
	cross := func(first, second int) func(context.Context) error {
		tried := false
		return func(ctx context.Context) error {
			if err := add(time.Minute, first)(ctx); err != nil {
				return err
			}
			if !tried {
				tried = true
				both.Done()
				both.Wait()
			}
			return add(time.Minute, second)(ctx)
		}
	}
	before := balance(1)
	for key, fn := range map[string]func(context.Context) error{"there": cross(1, 2), "back": cross(2, 1)} {
		wg.Go(func() {
			answer, err := call(key, fn)
			for range 10 {
				if !errors.Is(err, postgres.ErrLocked) {
					break
				}
				if answer != semel.AnswerReleased {
					t.Errorf("%s: %v, %v", key, answer, err)
				}
				answer, err = call(key, fn)
			}
			if err != nil {
				t.Errorf("%s: %v, %v", key, answer, err)
			}
		})
	}
	wg.Wait()
	if balance(1) != before+2 || balance(2) != 1+2 {
		t.Errorf("balances are %d and %d", balance(1), balance(2))
	}

	// No row, no transaction; and the setting is as it was.
	if _, err := call("none", func(ctx context.Context) error {
		tx, _ := postgres.Tx(ctx)
		var was, is string
		if err := tx.QueryRow(ctx, "SHOW lock_timeout").Scan(&was); err != nil {
			return err
		}
		if err := postgres.LockRow(ctx, time.Second, nil, "SELECT FROM account WHERE id = 3 FOR UPDATE"); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("of a row that is not there: %v", err)
		}
		if err := add(time.Second, 1)(ctx); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SHOW lock_timeout").Scan(&is); err != nil || is != was {
			t.Errorf("lock_timeout is %s, and was %s: %v", is, was, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := postgres.LockRow(t.Context(), time.Second, nil, "SELECT"); !errors.Is(err, postgres.ErrNoTransaction) {
		t.Errorf("without a transaction: %v", err)
	}
}
