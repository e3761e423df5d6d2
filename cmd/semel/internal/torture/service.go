package torture

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/postgres"
)

// ServiceConfig says how a service with a ledger of its own behaves.
type ServiceConfig struct {
	// Database is the URL of a PostgreSQL database.
	Database string
	// Listen is the address to listen on.
	Listen string
	Manner
	// Listening is called with the address when the service listens.
	Listening func(addr string)
}

// ServeService runs, until ctx ends, a service that responds like a ledger and
// writes its effects in the transaction of their records.
func ServeService(ctx context.Context, c ServiceConfig) (err error) {
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.New(ctx, pool, postgres.Config{Mode: postgres.ModeTransactional})
	if err != nil {
		return err
	}
	closing := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, store.Close(closing)) }()
	if err := makeEffects(ctx, pool); err != nil {
		return err
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		return err
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard, RequireKey: true, MaxInline: maxInline, MaxResult: maxResult,
		Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: protect(&service{newPlanner(c.Manner)}), ReadHeaderTimeout: 10 * time.Second}
	c.Listening(listener.Addr().String())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(closing, 30*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ending), guard.Drain(ending))
}

// makeEffects creates the table of effects. Several services may start at once.
func makeEffects(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(7292)")
		if err == nil {
			_, err = tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS torture_effects (id TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL)")
		}
		return err
	})
}

type service struct{ planner *planner }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := newEffect(r)
	s.planner.plan(e.Key).respond(w, e, func(e Effect) {
		tx, ok := postgres.Tx(r.Context())
		if !ok {
			panic("torture: a request without a transaction")
		}
		if _, err := tx.Exec(r.Context(), "INSERT INTO torture_effects VALUES ($1, $2, $3)", e.ID, e.Key, e.Digest); err != nil {
			// The response may have begun, and has become false.
			panic(http.ErrAbortHandler)
		}
	})
}
