//go:build linux

package postgres_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// A host loses its power in the middle of a transaction. Nobody tells the
// server, whose TCP waits for two hours where nothing is configured, and its
// idle timeout is an hour here. PeerTimeout is what frees the lock.
func TestHostWithoutPowerLosesItsLock(t *testing.T) {
	// Each returns once the server is where it is to be when the host vanishes.
	scenes := map[string]func(t *testing.T, ctx context.Context, h *testenv.Host){
		"the server waits to be asked": func(t *testing.T, _ context.Context, h *testenv.Host) {
			await(t, func() bool { return !h.Unheard(t) })
		},
		"the server is sending": func(t *testing.T, ctx context.Context, _ *testenv.Host) {
			tx, _ := postgres.Tx(ctx)
			rows, err := tx.Query(ctx, "SELECT repeat('x', 1000), generate_series(1, 1000000000)")
			if err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				if !rows.Next() {
					t.Fatal(rows.Err())
				}
			}
			ended := make(chan struct{})
			go func() { // until the host is gone
				defer close(ended)
				for rows.Next() {
				}
			}()
			t.Cleanup(func() { <-ended })
		},
	}
	ways := map[string]postgres.Config{"an advisory lock": {}, "no advisory locks": {NoAdvisoryLocks: true}}
	hosts := map[string]*testenv.Host{}
	var networks []netip.Prefix
	for scene := range scenes {
		for way := range ways {
			h := testenv.NewHost(t)
			hosts[scene+way] = h
			networks = append(networks, h.Network())
		}
	}
	server := testenv.StartPostgres(t, testenv.PostgresOptions{
		Networks: networks, Parameters: map[string]string{"log_line_prefix": "session %p: "},
	})
	for scene, reach := range scenes {
		for way, c := range ways {
			t.Run(scene+", "+way, func(t *testing.T) {
				t.Parallel()
				c.Mode, c.IdleTimeout, c.PeerTimeout = postgres.ModeTransactional, time.Hour, 2*time.Second
				local, host := server.NewDatabase(t), hosts[scene+way]
				direct := connect(t, local, nil)
				exec(t, direct, "CREATE TABLE payment (key text)")
				here := open(t, direct, c)
				there, err := postgres.New(t.Context(), connect(t, from(t, host, local), func(c *pgxpool.Config) { c.ConnConfig.DialFunc = host.Dial }), c)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					over, cancel := context.WithCancel(context.Background())
					cancel()
					_ = there.Close(over) // which has nobody to tell anything any more
				})

				claim := begin(t, there, "k")
				t.Cleanup(func() { _ = claim.Release(context.Background()) }) // gives the connection back
				ctx := claim.Context(t.Context())
				if err := pay(ctx, "k"); err != nil {
					t.Fatal(err)
				}
				tx, _ := postgres.Tx(ctx)
				var session int
				if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&session); err != nil {
					t.Fatal(err)
				}
				reach(t, ctx, host)
				_, err = here.Begin(t.Context(), attempt("k"))
				conflict(t, err, semel.StateInProgress)

				host.Vanish(t)
				var next semel.Claim
				await(t, func() bool {
					if next, err = here.Begin(t.Context(), attempt("k")); err != nil {
						conflict(t, err, semel.StateInProgress)
					}
					return err == nil
				})
				if err := pay(next.Context(t.Context()), "k"); err != nil {
					t.Fatal(err)
				}
				if _, err := next.Complete(t.Context(), result("paid")); err != nil {
					t.Fatal(err)
				}
				var payments int
				if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM payment").Scan(&payments); err != nil || payments != 1 {
					t.Fatalf("%d payments, %v; want 1", payments, err)
				}
				await(t, func() bool { // its log comes through a pipe
					for line := range strings.Lines(server.Log()) {
						if strings.HasPrefix(line, fmt.Sprintf("session %d: ", session)) && strings.Contains(line, "Connection timed out") {
							return true
						}
					}
					return false
				})
			})
		}
	}
}

// from returns the URL of a database as h reaches it.
func from(t *testing.T, h *testenv.Host, local string) string {
	t.Helper()
	u, err := url.Parse(local)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = net.JoinHostPort(h.Network().Addr().String(), u.Port())
	return u.String()
}
