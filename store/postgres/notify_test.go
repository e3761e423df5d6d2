package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

func hear(t testing.TB, what string, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: no word of it", what)
	}
}

// Whatever settles a record, another store hears of it, and only of that record.
func TestChangesAreHeardByOthers(t *testing.T) {
	shop := newShop(t)
	other := open(t, connect(t, shop.url, nil), postgres.Config{Notify: true})
	ctx := t.Context()
	for _, exec := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pool := connect(t, shop.url, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = exec })
		stores := map[string]*postgres.Store{"leased": open(t, pool, postgres.Config{Notify: true})}
		for level, tune := range levels {
			c := transactional()
			c.Notify = true
			tune(&c)
			stores[level] = open(t, pool, c)
		}
		for mode, s := range stores {
			ends := map[string]func(c semel.Claim) error{
				"complete": func(c semel.Claim) error { _, err := c.Complete(ctx, result("done")); return err },
				"pieces":   func(c semel.Claim) error { _, err := c.Complete(ctx, inPieces('x', nil)); return err },
				"release":  func(c semel.Claim) error { return c.Release(ctx) },
				"hold": func(c semel.Claim) error {
					if err := c.Hold(ctx, "lost contact"); !errors.Is(err, semel.ErrRolledBack) {
						return err
					}
					return nil
				},
			}
			for what, end := range ends {
				key := exec.String() + " " + mode + " " + what
				c := begin(t, s, key)
				changed, stop := other.Watch(attempt(key).Identity)
				quiet, stopQuiet := other.Watch(attempt(key + " not").Identity)
				if err := end(c); err != nil {
					t.Fatalf("%s: %v", key, err)
				}
				hear(t, key, changed)
				if mode == "leased" && what == "hold" {
					if _, err := s.Resolve(ctx, semel.Resolution{Identity: attempt(key).Identity, Fence: c.Fence(), Decision: semel.DecideNoEffect}); err != nil {
						t.Fatal(err)
					}
					hear(t, key+" resolved", changed)
				}
				select {
				case <-quiet:
					t.Fatalf("%s was told to who watches another identity", key)
				default:
				}
				stop()
				stopQuiet()
			}
		}
	}
}

// hinted looks for a record only after it was told to.
type hinted struct {
	*postgres.Store
	watched chan struct{} // closed once somebody watches
	heard   atomic.Bool
}

func (h *hinted) Watch(id semel.Identity) (<-chan struct{}, func()) {
	changed, stop := h.Store.Watch(id)
	out, end := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-changed:
				h.heard.Store(true)
				select {
				case out <- struct{}{}:
				default:
				}
			case <-end:
				return
			}
		}
	}()
	close(h.watched)
	return out, func() { close(end); stop() }
}

func (h *hinted) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	if !h.heard.Load() {
		return semel.Record{}, errors.New("nobody has said that there is anything to see")
	}
	return h.Store.Find(ctx, id)
}

// A duplicate that waits in one process is woken when the owner in another is
// done. It cannot find out in any other way: its looks fail.
func TestWaiterIsWokenByAnotherProcess(t *testing.T) {
	shop := newShop(t)
	owner := guard(t, open(t, connect(t, shop.url, nil), postgres.Config{Notify: true}), semel.Policy{})
	h := &hinted{Store: open(t, connect(t, shop.url, nil), postgres.Config{Notify: true}), watched: make(chan struct{})}
	begun, finish := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = owner.Do(context.WithoutCancel(t.Context()), submit("k"), func(context.Context) (semel.Result, error) {
			close(begun)
			<-finish
			return result("done"), nil
		})
	}()
	<-begun
	go func() {
		<-h.watched
		close(finish)
	}()
	waiting := submit("k")
	waiting.Wait = time.Minute
	out, err := guard(t, h, semel.Policy{}).Do(t.Context(), waiting, nil)
	if err != nil || out.Answer != semel.AnswerReplayed || string(out.Result.Body) != "done" {
		t.Fatalf("answer %v, %q, %v; want the owner's result", out.Answer, out.Result.Body, err)
	}
}

// A connection that is cut wakes everybody, as does the next one: something may
// have been missed. Then all goes on.
func TestListeningOutlastsACut(t *testing.T) {
	shop := newShop(t)
	proxied, proxy := through(t, shop.url)
	s := open(t, shop.direct, postgres.Config{Notify: true})
	other := open(t, connect(t, proxied, nil), postgres.Config{Notify: true})
	changed, stop := other.Watch(attempt("k").Identity)
	defer stop()
	proxy.Refuse(true)
	proxy.Cut()
	hear(t, "the cut", changed)
	c := begin(t, s, "k")
	proxy.Refuse(false)
	hear(t, "the new connection", changed)
	if _, err := c.Complete(t.Context(), result("done")); err != nil {
		t.Fatal(err)
	}
	hear(t, "a change behind it", changed)
}

// What everybody in the database can hear tells no key; and nothing is said
// unless it is asked for.
func TestNotificationsTellNoKey(t *testing.T) {
	shop := newShop(t)
	loud, quiet := open(t, shop.direct, postgres.Config{Notify: true}), open(t, shop.direct, postgres.Config{})
	ear, err := pgx.Connect(t.Context(), shop.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ear.Close(context.Background()) }()
	channel := postgres.ChannelName("semel")
	if _, err := ear.Exec(t.Context(), "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	complete := func(s *postgres.Store, key string) {
		t.Helper()
		if _, err := begin(t, s, key).Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
	}
	complete(quiet, "quiet")
	complete(loud, "secret")
	exec(t, shop.direct, "SELECT pg_notify($1, 'end')", channel)
	var heard []string
	for len(heard) == 0 || heard[len(heard)-1] != "end" {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		n, err := ear.WaitForNotification(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		heard = append(heard, n.Payload)
	}
	if len(heard) != 2 || strings.Contains(heard[0], "secret") || strings.Contains(heard[0], "payments") || len(heard[0]) > 20 {
		t.Errorf("heard %q; want one digest, and the end", heard)
	}
	if changed, stop := quiet.Watch(attempt("k").Identity); changed != nil {
		stop()
		t.Error("a store that does not listen hands out a channel")
	}
}

// Listening takes a session of the server. Who has only a pooler is told, and can
// name another way for that alone.
func TestListeningThroughPgBouncer(t *testing.T) {
	server := testenv.Postgres(t)
	pool := connect(t, testenv.PgBouncer(t, server), unprepared)
	if s, err := postgres.New(t.Context(), pool, postgres.Config{Notify: true}); !errors.Is(err, postgres.ErrPooler) {
		if err == nil {
			_ = s.Close(t.Context())
		}
		t.Fatalf("New with a pooler to listen on: %v; want ErrPooler", err)
	}
	direct, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, pool, postgres.Config{Notify: true, Listen: direct})
	changed, stop := s.Watch(attempt("k").Identity)
	defer stop()
	if _, err := begin(t, s, "k").Complete(t.Context(), result("done")); err != nil {
		t.Fatal(err)
	}
	hear(t, "a completion through the pooler", changed)
}

// Close ends the session that listens.
func TestCloseStopsListening(t *testing.T) {
	shop := newShop(t)
	s := open(t, shop.direct, postgres.Config{Notify: true})
	var pid int
	if err := shop.direct.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, func() (gone bool) {
		if err := shop.direct.QueryRow(t.Context(), "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&gone); err != nil {
			t.Fatal(err)
		}
		return gone
	})
}

// A store whose pool was closed before it says what it could not write, whatever time
// it has.
func TestCloseAfterThePool(t *testing.T) {
	config, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.New(t.Context(), pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed})
	for range 2 {
		if err := s.Close(context.Background()); err == nil || !strings.Contains(err.Error(), "1 audit entries were not written") {
			t.Errorf("Close: %v", err)
		}
	}
}

// A store that is closed by somebody in a hurry gives its connections back all
// the same, so that the pool can be closed.
func TestCloseInAHurryGivesConnectionsBack(t *testing.T) {
	shop := newShop(t)
	for name, during := range map[string]func(claim semel.Claim){
		"an idle handler": func(semel.Claim) {},
		"a busy handler": func(claim semel.Claim) {
			busy := make(chan struct{})
			go func() {
				tx, _ := postgres.Tx(claim.Context(context.WithoutCancel(t.Context())))
				close(busy)
				_, _ = tx.Exec(context.Background(), "SELECT pg_sleep(60)")
			}()
			<-busy
			await(t, func() (at bool) {
				if err := shop.direct.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)')").Scan(&at); err != nil {
					t.Fatal(err)
				}
				return at
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := pgxpool.ParseConfig(shop.url)
			if err != nil {
				t.Fatal(err)
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			s, err := postgres.New(t.Context(), pool, transactional())
			if err != nil {
				t.Fatal(err)
			}
			claim := begin(t, s, name)
			if err := pay(claim.Context(t.Context()), name); err != nil {
				t.Fatal(err)
			}
			during(claim)
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_ = s.Close(over)
			closed := make(chan struct{})
			go func() {
				pool.Close()
				close(closed)
			}()
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Fatal("the pool waits for a connection that nobody gives back")
			}
			if _, err := claim.Complete(t.Context(), result("late")); !errors.Is(err, semel.ErrRolledBack) {
				t.Errorf("Complete after that: %v; want ErrRolledBack", err)
			}
			shop.want(t, name, 0)
		})
	}
}
