//go:build linux || darwin

package sqlite_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/sqlite"
)

// Relay processes are killed and paused for longer than their leases, again and
// again, while eight writers commit. Nothing is lost, every lane is delivered in
// order, and what comes twice is what was under way at a kill or a pause.
func TestRelaysKilledAndPaused(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "semel.db")
	open(t, sqlite.Config{Path: path})
	r := outboxtest.NewReceiver(t, true)
	const lease = 1500 * time.Millisecond
	relays := make([]*child, 4)
	for i := range relays {
		relays[i] = relayProcess(t, path, r.URL, lease)
	}
	kills, pauses := 0, 0
	kill := func(i int) {
		kills++
		_ = relays[i].cmd.Process.Kill()
		_ = relays[i].cmd.Wait()
		relays[i] = relayProcess(t, path, r.URL, lease)
	}
	var done atomic.Bool
	nemesis := make(chan struct{})
	go func() {
		defer close(nemesis)
		defer done.Store(true)
		r.Torment(5, len(relays), lease, kill, func(i int, on bool) {
			signal := syscall.SIGCONT
			if on {
				pauses++
				signal = syscall.SIGSTOP
			}
			_ = relays[i].cmd.Process.Signal(signal)
		}, nil)
	}()
	committed := writeMessages(t, path, 8, func(int) bool {
		r.Await(1+rand.IntN(20), 200*time.Millisecond)
		return !done.Load()
	})
	<-nemesis
	allDelivered(t, path)
	for _, c := range relays {
		c.leave(t)
	}
	r.WantAllInOrder(t, committed, (kills+pauses)*outboxtest.RelayInFlight)
	wantWhole(t, path)
	t.Logf("%d kills, %d pauses", kills, pauses)
}

// Mail under killed and paused relays and a server that cuts off, over real
// connections. Under hold no mail is sent twice, and every one of which nobody
// knows is listed as unknown; under retry none is missing, and a copy has the
// Message-ID of the first.
func TestMailUnderKills(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	for _, policy := range []string{"hold", "retry"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			const mails = 1200
			path := filepath.Join(t.TempDir(), "semel.db")
			o := open(t, sqlite.Config{Path: path}).Outbox()
			server := spawn(t, "smtpd", path)
			addr := server.hear(t)
			const lease = 800 * time.Millisecond
			mailer := func() *child {
				c := spawn(t, "mailer", path)
				c.say(t, addr+" "+lease.String()+" "+policy)
				return c
			}
			relays := []*child{mailer(), mailer(), mailer()}
			db := raw(t, path)
			ids := map[string]string{} // by Message-ID
			var all []outbox.Message
			for i := range mails {
				m := outbox.Message{ID: fmt.Sprint("mail-", i), Topic: "mail", Headers: map[string]string{"To": "a@example.com", "Subject": "x"}}
				all = append(all, m)
				ids["<"+m.ID+"@example.com>"] = m.ID
			}
			if err := enqueue(t.Context(), db, all...); err != nil {
				t.Fatal(err)
			}
			kills, pauses := 0, 0
			for pendingMessages(t, db) > 0 && kills < 200 {
				i := rand.IntN(len(relays))
				if rand.IntN(5) == 0 {
					pauses++
					_ = relays[i].cmd.Process.Signal(syscall.SIGSTOP)
					time.Sleep(lease + 300*time.Millisecond)
					_ = relays[i].cmd.Process.Signal(syscall.SIGCONT)
					continue
				}
				time.Sleep(time.Duration(20+rand.IntN(150)) * time.Millisecond)
				kills++
				_ = relays[i].cmd.Process.Kill()
				_ = relays[i].cmd.Wait()
				relays[i] = mailer()
			}
			allDelivered(t, path)
			for _, c := range relays {
				c.leave(t) // a paused one has said its last
			}
			server.leave(t)

			content, err := os.ReadFile(path + ".mails")
			if err != nil {
				t.Fatal(err)
			}
			taken := map[string]int{} // by id
			for line := range strings.Lines(string(content)) {
				id, ok := ids[strings.TrimSpace(line)]
				if !ok {
					t.Errorf("a mail has Message-ID %s, which is no message's", line)
				}
				taken[id]++
			}
			unknown, unknownSent, twice := 0, 0, 0
			for _, m := range all {
				e, err := o.Find(t.Context(), m.ID)
				if err != nil {
					t.Fatal(err)
				}
				n := taken[m.ID]
				if n > 1 {
					twice++
				}
				switch {
				case e.State == outbox.StateUnknown && policy == "hold":
					unknown++
					if n > 0 {
						unknownSent++
					}
				case e.State != outbox.StateDelivered || n == 0:
					t.Errorf("%s is %s and was taken %d times: %s", m.ID, e.State, n, e.Cause)
				}
				if n > 1 && policy == "hold" {
					t.Errorf("%s was sent %d times", m.ID, n)
				}
			}
			if policy == "hold" && unknown == 0 || policy == "retry" && twice == 0 {
				t.Errorf("nothing was ever unsure: %d kills, %d pauses", kills, pauses)
			}
			t.Logf("%s: %d mails, %d kills, %d pauses: %d unknown, of which %d had been sent; %d sent twice", policy, mails, kills, pauses, unknown, unknownSent, twice)
		})
	}
}

// The disk fills up under writers and a relay, and has room again. What was
// acknowledged is delivered, once, and what was refused is not.
func TestOutboxFullDisk(t *testing.T) {
	if ranAsChild(t) { // as TestFullDisk
		return
	}
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	got, failed := make(outboxtest.Arrivals, 10_000), make(chan struct{}, 10_000)
	hold := make(chan struct{})
	outboxtest.Relay(t, o, outbox.Config{
		Routes: []outbox.Route{{Sink: outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) error {
			<-hold
			return got.Deliver(ctx, d)
		})}},
		Observer: &outbox.Observer{StoreFailed: func(context.Context, string, error) { failed <- struct{}{} }},
	})
	enqueueAll(t, db, 20)

	log, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	full := limit
	full.Cur = uint64(log.Size()) + 200_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]bool{}
	refused := 0
	for i := 0; refused < 3; i++ {
		id := fmt.Sprint("m", i)
		err := enqueue(t.Context(), db, outbox.Message{ID: id, Topic: "t", Payload: make([]byte, 20_000)})
		acknowledged[id] = err == nil
		if err != nil {
			refused++
		}
	}
	close(hold) // now settlements fail
	<-failed
	<-failed
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	allDelivered(t, path)
	seen := map[string]bool{}
	for len(got) > 0 {
		id := <-got
		if seen[id] {
			t.Errorf("%s came twice", id)
		}
		seen[id] = true
	}
	for id, is := range acknowledged {
		if seen[id] != is {
			t.Errorf("%s was acknowledged %v and delivered %v", id, is, seen[id])
		}
	}
}
