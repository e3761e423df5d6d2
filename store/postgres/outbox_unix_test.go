//go:build unix

package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/postgres"
)

// relayVariable makes this test binary a relay on the database that it names.
const relayVariable = "SEMEL_TEST_RELAY_ON"

// relayProcess is another process.
type relayProcess struct {
	cmd *osexec.Cmd
	in  io.WriteCloser
}

func startRelay(t *testing.T, server, url string, lease time.Duration) *relayProcess {
	t.Helper()
	r := &relayProcess{cmd: osexec.Command(os.Args[0], "-test.run=^TestRelaysKilledAndPaused$")}
	r.cmd.Env = append(os.Environ(), relayVariable+"="+server)
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	if _, err := fmt.Fprintln(r.in, url, lease); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *relayProcess) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// numbered has the server number what is inserted into a lane, behind the lane's
// lock: the numbers are those of the commits, and none comes twice.
const numbered = `
	CREATE TABLE business (key text, n bigint, UNIQUE (key, n));
	CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE number bigint = 0;
	BEGIN
		IF new.key IS NOT NULL THEN
			INSERT INTO public.business SELECT new.key, coalesce(max(n), 0) + 1 FROM public.business WHERE key = new.key RETURNING n INTO number;
		END IF;
		new.headers = jsonb_build_object('` + outboxtest.NumberHeader + `', number::text);
		RETURN new;
	END $$;
	CREATE TRIGGER zz_number BEFORE INSERT ON semel.outbox FOR EACH ROW EXECUTE FUNCTION number();`

// writeLanes has a writer commit messages, the keys in its own order, one statement
// for each; in every fourth round in one call, and in every tenth it rolls back. A
// deadlock has no effect, so it tries again.
func writeLanes(ctx context.Context, pool *pgxpool.Pool, o *postgres.Outbox, writer, round int) (committed int, deadlocks int, err error) {
	keys := outboxtest.Keys(writer)
	for ; ; deadlocks++ {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if round%4 == 0 {
				return o.EnqueueTx(ctx, tx, lanes("t", keys)...)
			}
			for _, key := range keys {
				err := o.EnqueueTx(ctx, tx, lanes("t", []string{key})...)
				if key == "" { // as a program in another language does it
					_, err = tx.Exec(ctx, "INSERT INTO semel.outbox (topic, payload) VALUES ('t', convert_to('text', 'UTF8'))")
				}
				if err != nil {
					return err
				}
			}
			if round%10 == 9 {
				return errRolledBack
			}
			return nil
		})
		e, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case ok && e.Code == "40P01":
			continue
		case errors.Is(err, errRolledBack):
			return 0, deadlocks, nil
		case err != nil:
			return 0, deadlocks, err
		case round%4 == 0:
			return len(keys), deadlocks, nil
		}
		return 6 + 3, deadlocks, nil // those without a key are enqueued twice
	}
}

// Four relay processes deliver what eight writers commit, who lock three lanes in
// opposite orders. The relays are killed, paused for longer than their leases, and
// lose their sessions, again and again. Nothing is lost, every lane is delivered in
// the order of its commits, and what comes twice is what was under way.
func TestRelaysKilledAndPaused(t *testing.T) {
	if server := os.Getenv(relayVariable); server != "" {
		pool := connect(t, server, nil)
		if err := outboxtest.RunHTTPRelay(bufio.NewScanner(os.Stdin), open(t, pool, postgres.Config{}).Outbox()); err != nil {
			t.Fatal(err)
		}
		return
	}
	server := testenv.StartPostgres(t, testenv.PostgresOptions{Parameters: map[string]string{"deadlock_timeout": "50ms"}}).NewDatabase(t)
	pool := connect(t, server, nil)
	o := open(t, pool, postgres.Config{}).Outbox()
	exec(t, pool, numbered)
	r := outboxtest.NewReceiver(t, true)
	const lease = 2 * time.Second
	relays := make([]*relayProcess, 4)
	for i := range relays {
		relays[i] = startRelay(t, server, r.URL, lease)
	}
	kills, pauses := 0, 0
	kill := func(i int) {
		kills++
		relays[i].kill()
		relays[i] = startRelay(t, server, r.URL, lease)
	}
	var done atomic.Bool
	nemesis := make(chan struct{})
	go func() {
		defer close(nemesis)
		defer done.Store(true)
		r.Torment(4, len(relays), lease, kill, func(i int, on bool) {
			signal := syscall.SIGCONT
			if on {
				pauses++
				signal = syscall.SIGSTOP
			}
			_ = relays[i].cmd.Process.Signal(signal)
		}, func() {
			// Sessions end in the middle of whatever they do: it is as if it had not
			// been, or its answer is lost.
			if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND query LIKE '%outbox_queue%' AND pid <> pg_backend_pid() AND state <> 'idle in transaction'`); err != nil {
				t.Log(err) // its own may be among them
			}
		})
	}()
	var (
		wg                   sync.WaitGroup
		committed, deadlocks atomic.Int64
	)
	for w := range 8 {
		wg.Go(func() {
			for round := 0; !done.Load() || round < 4; round++ {
				n, d, err := writeLanes(t.Context(), pool, o, w, round)
				deadlocks.Add(int64(d))
				committed.Add(int64(n))
				if err != nil {
					t.Error(err)
					return
				}
				r.Await(1+rand.IntN(20), 200*time.Millisecond)
			}
		})
	}
	wg.Wait()
	<-nemesis
	outboxtest.AllDelivered(t, func() (left int) {
		// In the queue, and of all that is not settled as delivered.
		if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM semel.outbox_queue) +
			(SELECT count(*) FROM semel.outbox) - (SELECT count(*) FROM semel.outbox_settled WHERE state = 2)`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left
	})
	for _, relay := range relays {
		_ = relay.in.Close()
		if err := relay.cmd.Wait(); err != nil {
			t.Errorf("a relay failed: %v", err)
		}
	}
	// A session that was ended may have been one whose settlements are tried again.
	r.WantAllInOrder(t, int(committed.Load()), (kills+pauses+4*len(relays))*outboxtest.RelayInFlight)
	if deadlocks.Load() == 0 {
		t.Error("there was no deadlock")
	}
	t.Logf("%d kills, %d pauses, %d deadlocks", kills, pauses, deadlocks.Load())
}
