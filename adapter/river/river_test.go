package river_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/semelhq/semel"
	semelriver "github.com/semelhq/semel/adapter/river"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

type args struct {
	Name string `json:"name"`
}

func (args) Kind() string { return "work" }

type database struct {
	testing.TB
	pool  *pgxpool.Pool
	store *postgres.Store
	inbox *inbox.Inbox
	ended chan<- error // if not nil, how each attempt ended
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	d := &database{TB: t, pool: pool}
	if d.store, err = postgres.New(ctx, pool, postgres.Config{Mode: postgres.ModeTransactional}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if d.inbox, err = inbox.New(inbox.Config{Store: d.store.Inbox(), Consumer: "river", RetrySpan: 48 * time.Hour, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE effect (name text)"); err != nil {
		t.Fatal(err)
	}
	return d
}

func effect(ctx context.Context, name string) error {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		return errors.New("no transaction")
	}
	_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", name)
	return err
}

func (d *database) want(query string, want int, args ...any) {
	d.Helper()
	var n int
	if err := d.pool.QueryRow(d.Context(), query, args...).Scan(&n); err != nil || n != want {
		d.Errorf("%s: %d, %v; want %d", query, n, err, want)
	}
}

// client returns a client, which works if handle is not nil.
func (d *database) client(handle func(ctx context.Context, job *river.Job[args]) error) (*river.Client[pgx.Tx], <-chan *river.Event) {
	d.Helper()
	c := &river.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond}
	if handle != nil {
		c.Workers = river.NewWorkers()
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}}
		c.Middleware = []rivertype.Middleware{river.WorkerMiddlewareFunc(func(ctx context.Context, _ *rivertype.JobRow, work func(context.Context) error) error {
			err := work(ctx)
			if d.ended != nil {
				d.ended <- err
			}
			return err
		})}
		river.AddWorker(c.Workers, &semelriver.Worker[args]{Inbox: d.inbox, Handle: handle})
	}
	client, err := river.NewClient(riverpgxv5.New(d.pool), c)
	if err != nil {
		d.Fatal(err)
	}
	if handle == nil {
		return client, nil
	}
	events, cancel := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed, river.EventKindJobCancelled)
	d.Cleanup(cancel)
	if err := client.Start(d.Context()); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := client.StopAndCancel(context.Background()); err != nil {
			d.Error(err)
		}
	})
	return client, events
}

func (d *database) hear(events <-chan *river.Event) *river.Event {
	d.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(time.Minute):
		d.Fatal("nothing happens")
	}
	return nil
}

// A job is enqueued in the transaction of a protected handler, or not at all.
func TestInsertedWithTheRecord(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	client, _ := d.client(nil)
	guard, err := semel.New(semel.Config{Store: d.store})
	if err != nil {
		t.Fatal(err)
	}
	submit := func(key string, fail error) error {
		_, err := guard.Do(t.Context(), semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Actor: "a", Operation: "o"}, Key: key}},
			func(ctx context.Context) (semel.Result, error) {
				if _, err := semelriver.InsertTx(ctx, client, args{key}, nil); err != nil {
					return semel.Result{}, err
				}
				return semel.Result{}, fail
			})
		return err
	}
	if err := submit("fails", semel.NoEffect(errors.New("no"))); err == nil {
		t.Error("it did not fail")
	}
	d.want("SELECT count(*) FROM river_job", 0)
	for range 2 {
		if err := submit("works", nil); err != nil {
			t.Error(err)
		}
	}
	d.want("SELECT count(*) FROM river_job WHERE args ->> 'name' = 'works'", 1)
	if _, err := semelriver.InsertTx(t.Context(), client, args{"x"}, nil); !errors.Is(err, postgres.ErrNoTransaction) {
		t.Errorf("outside of a transaction: %v", err)
	}
}

// A handler that fails or panics leaves nothing; one that succeeds has its effect with
// the completion, once, even if the job comes again.
func TestCompletedWithTheEffect(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	client, events := d.client(func(ctx context.Context, job *river.Job[args]) error {
		if err := effect(ctx, job.Args.Name); err != nil {
			return err
		}
		switch job.Attempt {
		case 1:
			return errors.New("on purpose")
		case 2:
			panic("on purpose")
		}
		return nil
	})
	r, err := client.Insert(t.Context(), args{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := func() {
		t.Helper()
		if _, err := d.pool.Exec(t.Context(), "UPDATE river_job SET state = 'available', finalized_at = NULL, scheduled_at = now() WHERE id = $1", r.Job.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if e := d.hear(events); e.Kind != river.EventKindJobFailed {
			t.Errorf("event %s", e.Kind)
		}
		d.want("SELECT count(*) FROM effect", 0)
		again()
	}
	for range 2 {
		if e := d.hear(events); e.Kind != river.EventKindJobCompleted {
			t.Errorf("event %s: %v", e.Kind, e.Job.Errors)
		}
		d.want("SELECT count(*) FROM effect", 1)
		d.want("SELECT count(*) FROM river_job WHERE state = 'completed'", 1)
		again()
	}
}

// River takes a job from a worker that is alive, as its rescuer does with what takes
// longer than it likes (River 1302). The first and the next have one effect.
func TestRescuedFromALivingWorker(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"before the next has it": false, "while the next has it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			began, finish, ended := make(chan struct{}, 10), make(chan struct{}), make(chan error, 10)
			d.ended = ended
			var runs atomic.Int64
			client, events := d.client(func(ctx context.Context, job *river.Job[args]) error {
				if runs.Add(1) == 1 {
					began <- struct{}{}
					<-finish
				}
				return effect(ctx, job.Args.Name)
			})
			r, err := client.Insert(t.Context(), args{"a"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			<-began
			if running { // as another client would have it by now
				_, err = d.pool.Exec(t.Context(), "UPDATE river_job SET attempt = attempt + 1 WHERE id = $1", r.Job.ID)
			} else {
				_, err = d.pool.Exec(t.Context(), "UPDATE river_job SET state = 'retryable', scheduled_at = now() + interval '1 hour' WHERE id = $1", r.Job.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
			close(finish)
			if err := <-ended; !errors.Is(err, semelriver.ErrTaken) {
				t.Errorf("the first ended with %v", err)
			}
			d.want("SELECT count(*) FROM effect", 0)
			if _, err := d.pool.Exec(t.Context(), "UPDATE river_job SET state = 'available', finalized_at = NULL, scheduled_at = now() WHERE id = $1", r.Job.ID); err != nil {
				t.Fatal(err)
			}
			for e := d.hear(events); e.Kind != river.EventKindJobCompleted; {
				e = d.hear(events)
			}
			d.want("SELECT count(*) FROM effect", 1)
		})
	}
}
