package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/outbox/smtpsink"
	"github.com/semelhq/semel/store/sqlite"
)

// playRelay delivers to the URL that it is told until its input ends.
func playRelay(path string, in *bufio.Scanner) error {
	s, err := openRelayed(path)
	if err != nil {
		return err
	}
	return errors.Join(outboxtest.RunHTTPRelay(in, s.Outbox()), s.Close(context.Background()))
}

func openRelayed(path string) (*sqlite.Store, error) {
	return sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
}

// playMailer is playRelay to a mail server, under the policy that it is told too.
func playMailer(path string, in *bufio.Scanner) error {
	in.Scan()
	f := strings.Fields(in.Text())
	if len(f) != 3 {
		return fmt.Errorf("told %q", f)
	}
	d, err := time.ParseDuration(f[1])
	if err != nil {
		return err
	}
	sink, err := smtpsink.New(smtpsink.Config{Addr: f[0], From: "shop@example.com", TLS: smtpsink.NoTLS})
	if err != nil {
		return err
	}
	r := outbox.Route{Sink: sink}
	if f[2] == "retry" {
		r.OnUnknown = outbox.UnknownRetry
	}
	s, err := openRelayed(path)
	if err != nil {
		return err
	}
	return errors.Join(outboxtest.RunRelay(in, s.Outbox(), d, r), s.Close(context.Background()))
}

// writeMessages has writers commit business rows with messages for a few lanes and
// for none, the keys of a transaction in opposite orders, and roll some back. Each
// message carries the number of its business row, which rises with the commits.
func writeMessages(t *testing.T, path string, writers int, more func(round int) bool) (committed int) {
	db := raw(t, path)
	mustExec(t, db, "CREATE TABLE business (n INTEGER PRIMARY KEY AUTOINCREMENT, writer INTEGER) STRICT")
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	for w := range writers {
		db := raw(t, path)
		wg.Go(func() {
			for round := 0; more(round); round++ {
				n, err := writeOne(t.Context(), db, w, round)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed += n
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return committed
}

var errRolledBack = errors.New("rolled back")

func writeOne(ctx context.Context, db *sql.DB, w, round int) (n int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
		if errors.Is(err, errRolledBack) {
			n, err = 0, nil
		}
	}()
	for _, key := range outboxtest.Keys(w) {
		var number int64
		if err := tx.QueryRowContext(ctx, "INSERT INTO business (writer) VALUES (?) RETURNING n", w).Scan(&number); err != nil {
			return 0, err
		}
		m := outbox.Message{Topic: "t", Key: key, Headers: map[string]string{"X-Number": fmt.Sprint(number)}, Payload: []byte(`{"paid": true}`)}
		if key == "" && round%2 == 0 {
			// As a program in another language does it.
			_, err = tx.ExecContext(ctx, "INSERT INTO outbox (topic, headers, payload) VALUES ('t', json_object('X-Number', ?), ?)", fmt.Sprint(number), "text")
		} else {
			err = sqlite.EnqueueTx(ctx, tx, m)
		}
		if err != nil {
			return 0, err
		}
		n++
	}
	if round%10 == 9 {
		return 0, errRolledBack
	}
	return n, tx.Commit()
}

// wantWhole checks that everything is delivered and the file whole.
func wantWhole(t *testing.T, path string) {
	t.Helper()
	db := raw(t, path)
	var n int
	var check string
	if err := db.QueryRow("SELECT count(*) FROM outbox WHERE state <> 'delivered'").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d messages are not delivered (%v)", n, err)
	}
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("the file is damaged: %s (%v)", check, err)
	}
}

// allDelivered waits until nothing is pending.
func allDelivered(t *testing.T, path string) {
	t.Helper()
	db := raw(t, path)
	outboxtest.AllDelivered(t, func() int { return pendingMessages(t, db) })
}

func relayProcess(t *testing.T, path, url string, lease time.Duration) *child {
	t.Helper()
	c := spawn(t, "relay", path)
	c.say(t, url+" "+lease.String())
	return c
}

// Four relay processes deliver what eight writers commit, beside a receiver that
// fails at times. Without a kill, a pause or a cut nothing comes twice.
func TestRelayProcessesDeliverOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "semel.db")
	open(t, sqlite.Config{Path: path})
	r := outboxtest.NewReceiver(t, false)
	var relays []*child
	for range 4 {
		relays = append(relays, relayProcess(t, path, r.URL, time.Minute))
	}
	for _, c := range relays {
		c.hear(t)
	}
	committed := writeMessages(t, path, 8, func(round int) bool { return round < 12 })
	allDelivered(t, path)
	for _, c := range relays {
		c.leave(t)
	}
	r.WantAllInOrder(t, committed, 0)
	wantWhole(t, path)
}

// playMailServer takes mail: it writes each Message-ID into a file, then answers.
// The times before and behind that are when its senders die.
func playMailServer(path string, in *bufio.Scanner) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	taken, err := os.OpenFile(path+".mails", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s := &outboxtest.MailServer{Accept: func(m outboxtest.Mail) error {
		if rand.IntN(20) == 0 {
			return errors.New("451 later")
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		for line := range strings.Lines(m.Data) {
			if id, ok := strings.CutPrefix(line, "Message-ID: "); ok {
				if _, err := fmt.Fprintln(taken, strings.TrimSpace(id)); err != nil {
					return errors.New("451 no room")
				}
			}
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		if rand.IntN(100) == 0 {
			return net.ErrClosed
		}
		return nil
	}}
	fmt.Println(l.Addr())
	go s.Serve(l)
	in.Scan()
	return errors.Join(l.Close(), taken.Close())
}
