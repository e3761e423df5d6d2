package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// shop is a service with a database of its own.
type shop struct {
	url    string
	direct *pgxpool.Pool
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{url: testenv.Postgres(t)}
	s.direct = connect(t, s.url, nil)
	exec(t, s.direct, "CREATE TABLE account (name text PRIMARY KEY)")
	exec(t, s.direct, "INSERT INTO account VALUES ('alice')")
	exec(t, s.direct, `CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY, key text,
		account text NOT NULL DEFAULT 'alice' REFERENCES account DEFERRABLE INITIALLY DEFERRED)`)
	return s
}

// payments counts the effects under a key.
func (s *shop) payments(t testing.TB, key string) (n int) {
	t.Helper()
	if err := s.direct.QueryRow(context.Background(), "SELECT count(*) FROM payment WHERE key = $1", key).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *shop) want(t testing.TB, key string, want int) {
	t.Helper()
	if n := s.payments(t, key); n != want {
		t.Fatalf("%d payments under %q; want %d", n, key, want)
	}
}

func pay(ctx context.Context, key string) error {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		return errors.New("no transaction")
	}
	_, err := tx.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key)
	return err
}

func attempt(key string) semel.Attempt {
	id := semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "payments.create"}, Key: key}
	return semel.NewAttempt(id, semel.FingerprintOf([]byte("request")), 15*time.Second, 24*time.Hour)
}

func result(body string) semel.Result {
	return semel.Result{Codec: "test/1", Body: []byte(body), Label: "201"}
}

func begin(t testing.TB, s *postgres.Store, key string) semel.Claim {
	t.Helper()
	c, err := s.Begin(t.Context(), attempt(key))
	if err != nil {
		t.Fatalf("Begin: %v; want a claim", err)
	}
	return c
}

func conflict(t testing.TB, err error, want semel.State) semel.Record {
	t.Helper()
	e, ok := errors.AsType[*semel.ConflictError](err)
	if !ok || e.Record.State != want {
		t.Fatalf("%v; want a conflict with a record %v", err, want)
	}
	return e.Record
}

func submit(key string) semel.Submit {
	a := attempt(key)
	return semel.Submit{Identity: a.Identity, Fingerprint: a.Fingerprint}
}

func guard(t testing.TB, s semel.Store, p semel.Policy) *semel.Guard {
	t.Helper()
	g, err := semel.New(semel.Config{Store: s, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func transactional() postgres.Config { return postgres.Config{Mode: postgres.ModeTransactional} }

// levels are the ways in which a transaction can be begun.
var levels = map[string]func(*postgres.Config){
	"read committed":    func(*postgres.Config) {},
	"repeatable read":   func(c *postgres.Config) { c.Isolation = pgx.RepeatableRead },
	"serializable":      func(c *postgres.Config) { c.Isolation = pgx.Serializable },
	"no advisory locks": func(c *postgres.Config) { c.NoAdvisoryLocks = true },
	"no locks, repeatable read": func(c *postgres.Config) {
		c.NoAdvisoryLocks, c.Isolation = true, pgx.RepeatableRead
	},
}

// await polls until ready.
func await(t testing.TB, ready func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waited for 30 s in vain")
		}
	}
}
