package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// escapes are ways in which a handler ends its claim's transaction that are not
// refused.
var escapes = map[string]func(ctx context.Context, tx pgx.Tx) error{
	"second statement": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1; COMMIT")
		return err
	},
	"into another transaction": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1; COMMIT; BEGIN")
		return err
	},
	"chained": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1; COMMIT AND CHAIN")
		return err
	},
	"on the connection": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, "COMMIT")
		return err
	},
	// What the transaction did is gone, but not what else the statement did.
	"rollback": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1; ROLLBACK; INSERT INTO payment (key) VALUES ('beside')")
		return err
	},
	"and then the connection breaks": func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Conn().Exec(ctx, "COMMIT"); err != nil {
			return err
		}
		return tx.Conn().PgConn().Conn().Close()
	},
	"and a new transaction breaks": func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT 1; COMMIT; BEGIN"); err != nil {
			return err
		}
		return tx.Conn().PgConn().Conn().Close()
	},
}

// A handler that commits by itself was told that the outcome is unknown, and the
// next submit executed it again: nothing was on record.
func TestEscapeIsOnRecordAsUnknown(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	for level, set := range levels {
		c := transactional()
		set(&c)
		s := open(t, pool, c)
		g := guard(t, s, semel.Policy{})
		for how, escape := range escapes {
			for end, settle := range map[string]func() (semel.Result, error){
				"completes": func() (semel.Result, error) { return result("paid"), nil },
				"fails":     func() (semel.Result, error) { return semel.Result{}, semel.Final(errors.New("declined")) },
				"says no":   func() (semel.Result, error) { return semel.Result{}, semel.NoEffect(errors.New("not sent")) },
				"says when": func() (semel.Result, error) { return semel.Result{}, errors.New("broken") },
			} {
				t.Run(level+", "+how+", "+end, func(t *testing.T) {
					key := t.Name()
					for i := range 3 {
						_, err := g.Do(t.Context(), submit(key), func(ctx context.Context) (semel.Result, error) {
							if i > 0 {
								t.Error("it is executed again")
							}
							if err := pay(ctx, key); err != nil {
								return semel.Result{}, err
							}
							tx, _ := postgres.Tx(ctx)
							if err := escape(ctx, tx); err != nil {
								return semel.Result{}, err
							}
							return settle()
						})
						if !errors.Is(err, semel.ErrUnknown) {
							t.Errorf("submit %d: %v; want unknown", i, err)
						}
					}
					r, err := s.Find(t.Context(), submit(key).Identity)
					if err != nil || r.State != semel.StateUnknown || !strings.Contains(r.Cause, "ended its transaction itself") {
						t.Errorf("on record is %v, %q, %v", r.State, r.Cause, err)
					}
					entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: key, Kind: semel.TrailHeld})
					if err != nil || len(entries) != 1 || entries[0].Fence != r.Fence {
						t.Errorf("the trail tells %+v, %v", entries, err)
					}
					// An operator looks, and sees to it.
					if _, err := s.Resolve(t.Context(), semel.Resolution{
						Identity: r.Identity, Fence: r.Fence, Decision: semel.DecideResult, Result: result("paid"),
					}); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// escaped returns a claim whose handler has paid and committed that.
func escaped(t *testing.T, s *postgres.Store, a semel.Attempt) semel.Claim {
	t.Helper()
	claim, err := s.Begin(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	ctx := claim.Context(t.Context())
	if err := pay(ctx, a.Identity.Key); err != nil {
		t.Fatal(err)
	}
	tx, _ := postgres.Tx(ctx)
	if err := escapes["second statement"](ctx, tx); err != nil {
		t.Fatal(err)
	}
	return claim
}

// What a handler did after it had ended its transaction was committed, statement
// by statement.
func TestNothingIsExecutedBehindAnEscape(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	claim := escaped(t, s, attempt("k"))
	ctx := claim.Context(t.Context())
	tx, _ := postgres.Tx(ctx)
	std, _ := postgres.SQLTx(ctx)
	const insert = "INSERT INTO payment (key) VALUES ('late')"
	for name, late := range map[string]func() error{
		"Exec":     func() error { _, err := tx.Exec(ctx, insert); return err },
		"Query":    func() error { _, err := tx.Query(ctx, insert); return err },
		"QueryRow": func() error { return tx.QueryRow(ctx, insert+" RETURNING id").Scan(new(int)) },
		"Begin":    func() error { _, err := tx.Begin(ctx); return err },
		"CopyFrom": func() error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"payment"}, []string{"key"}, pgx.CopyFromRows([][]any{{"late"}}))
			return err
		},
		"SendBatch": func() error {
			b := &pgx.Batch{}
			b.Queue(insert)
			return tx.SendBatch(ctx, b).Close()
		},
		"database/sql": func() error { _, err := std.ExecContext(ctx, insert); return err },
	} {
		if late() == nil {
			t.Errorf("%s goes on outside of the transaction", name)
		}
	}
	shop.want(t, "late", 0)
	if err := claim.Renew(t.Context()); !errors.Is(err, semel.ErrLostClaim) {
		t.Errorf("Renew: %v; want ErrLostClaim", err)
	}
}

// Until the escape is on record others can claim the identity. Who does is
// rolled back; or, where they were faster, it is their record that counts.
func TestOthersBetweenAnEscapeAndItsRecord(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	for _, faster := range []bool{false, true} {
		key := fmt.Sprint("faster: ", faster)
		claim := escaped(t, s, attempt(key))
		other := begin(t, s, key)
		if err := pay(other.Context(t.Context()), "other "+key); err != nil {
			t.Fatal(err)
		}
		if faster {
			if _, err := other.Complete(t.Context(), result("other")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := claim.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrLostClaim) {
			t.Errorf("%s: Complete after an escape: %v; want ErrLostClaim", key, err)
		}
		_, err := s.Begin(t.Context(), attempt(key))
		if faster {
			if r := conflict(t, err, semel.StateCompleted); r.Fence != other.Fence() {
				t.Errorf("the record has fence %d; want the other's, %d", r.Fence, other.Fence())
			}
			continue
		}
		if r := conflict(t, err, semel.StateUnknown); r.Fence != claim.Fence() {
			t.Errorf("the record has fence %d; want %d", r.Fence, claim.Fence())
		}
		if _, err := other.Complete(t.Context(), result("other")); !errors.Is(err, semel.ErrRolledBack) {
			t.Errorf("Complete of who came between: %v; want it rolled back", err)
		}
		shop.want(t, "other "+key, 0)
		_, err = s.Begin(t.Context(), attempt(key))
		conflict(t, err, semel.StateUnknown)
	}
}

// The record that was taken over is replaced, and cannot be taken over again.
func TestEscapeAfterATakeover(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	leased := open(t, pool, postgres.Config{})
	for name, level := range levels {
		c := transactional()
		level(&c)
		s := open(t, pool, c)
		old := begin(t, leased, name)
		if err := old.Hold(t.Context(), "lost contact"); err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve(t.Context(), semel.Resolution{Identity: attempt(name).Identity, Fence: old.Fence(), Decision: semel.DecideExecuteAgain})
		if err != nil {
			t.Fatal(err)
		}
		a := attempt(name)
		a.Takeover = r.Fence
		claim := escaped(t, s, a)
		if err := claim.Hold(t.Context(), "broken"); err != nil {
			t.Errorf("%s: Hold: %v", name, err)
		}
		_, err = s.Begin(t.Context(), a)
		if r := conflict(t, err, semel.StateUnknown); r.Fence != claim.Fence() || r.ID != old.RecordID() || r.Reopened {
			t.Errorf("%s: on record is %+v", name, r)
		}
	}
}

// An escape that cannot be recorded at once is recorded when it can.
func TestEscapeDuringAnOutage(t *testing.T) {
	shop := newShop(t)
	proxied, proxy := through(t, shop.url)
	s := open(t, connect(t, proxied, func(c *pgxpool.Config) { unprepared(c); c.MinIdleConns = 0 }), transactional())
	claim := escaped(t, s, attempt("k"))
	proxy.OnWrite(func([]byte) testenv.Verdict { return testenv.CutBefore })
	for range 2 {
		if _, err := claim.Complete(t.Context(), result("paid")); err == nil || errors.Is(err, semel.ErrRolledBack) || errors.Is(err, semel.ErrLostClaim) {
			t.Fatalf("Complete during an outage: %v; want an error that leaves it open", err)
		}
	}
	proxy.OnWrite(nil)
	if _, err := claim.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrLostClaim) {
		t.Fatalf("Complete after the outage: %v; want ErrLostClaim", err)
	}
	_, err := s.Begin(t.Context(), attempt("k"))
	conflict(t, err, semel.StateUnknown)
	shop.want(t, "k", 1)
}

// A caller whose transaction was ended under it cannot commit what comes after.
func TestEscapeFromAJoinedTransaction(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	s := open(t, pool, transactional())
	for how, escape := range escapes {
		key := "joined " + how
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		claim, err := s.Begin(postgres.WithTx(t.Context(), tx), attempt(key))
		if err != nil {
			t.Fatal(err)
		}
		ctx := claim.Context(t.Context())
		inner, _ := postgres.Tx(ctx)
		if err := errors.Join(pay(ctx, key), escape(ctx, inner)); err != nil {
			t.Fatal(err)
		}
		if _, err := claim.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrLostClaim) {
			t.Errorf("%s: Complete: %v; want ErrLostClaim", how, err)
		}
		if _, err := tx.Exec(t.Context(), "INSERT INTO payment (key) VALUES ('after')"); err == nil {
			t.Errorf("%s: the caller goes on", how)
		}
		_ = tx.Rollback(t.Context())
		_, err = s.Begin(t.Context(), attempt(key))
		conflict(t, err, semel.StateUnknown)
	}
	shop.want(t, "after", 0)
}
