package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/outbox/smtpsink"
	"github.com/semelhq/semel/store/sqlite"
)

// relayInFlight is how many messages a relay process has under way at most.
const relayInFlight = 8

// playRelay delivers to the URL that it is told, with the lease that it is told,
// until its input ends.
func playRelay(path string, in *bufio.Scanner) error {
	in.Scan()
	url, lease, _ := strings.Cut(in.Text(), " ")
	d, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	sink, err := httpsink.New(httpsink.Config{URL: url, AllowPrivate: true})
	if err != nil {
		return err
	}
	return relayUntilTold(path, in, d, outbox.Route{Sink: sink})
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
		r.OnUnknown = outbox.Retry
	}
	return relayUntilTold(path, in, d, r)
}

// relayUntilTold runs a relay until the input ends.
func relayUntilTold(path string, in *bufio.Scanner, lease time.Duration, route outbox.Route) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	route.MaxInFlight, route.MaxAttempts = relayInFlight, 1<<20
	route.Backoff, route.MaxBackoff = 10*time.Millisecond, 50*time.Millisecond
	r, err := outbox.New(outbox.Config{
		Store: s.Outbox(), Lease: lease, PollMin: 5 * time.Millisecond, PollMax: 50 * time.Millisecond, StoreTimeout: time.Minute,
		Routes: []outbox.Route{route},
		Observer: &outbox.Observer{
			StoreFailed: func(_ context.Context, call string, err error) { fmt.Fprintln(os.Stderr, "store failed:", call, err) },
			Dead:        func(_ context.Context, a outbox.Attempted) { fmt.Fprintln(os.Stderr, "dead:", a.Err) },
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		in.Scan()
		cancel()
	}()
	return errors.Join(r.Run(ctx), s.Close())
}

// receiver is where messages arrive. It drops repetitions by their ids, as
// receivers shall, and counts them.
type receiver struct {
	mu       sync.Mutex
	arrivals int
	repeated int
	first    map[string]bool
	lanes    map[string][]int64 // of each key, the numbers of first arrivals
	refused  int
	cutting  bool // some connections are cut before the answer
	cut      int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if rand.IntN(10) == 0 {
		r.mu.Lock()
		r.refused++
		r.mu.Unlock()
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	n, err := strconv.ParseInt(req.Header.Get("X-Number"), 10, 64)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	id, key := req.Header.Get("Idempotency-Key"), req.Header.Get("Semel-Lane")
	r.mu.Lock()
	r.arrivals++
	if r.first[id] {
		r.repeated++
	} else {
		r.first[id] = true
		if key != "" {
			r.lanes[key] = append(r.lanes[key], n)
		}
	}
	cut := r.cutting && rand.IntN(50) == 0
	if cut {
		r.cut++
	}
	r.mu.Unlock()
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // before the answer: who dies here repeats
	if cut {
		panic(http.ErrAbortHandler)
	}
}

func newReceiver(t *testing.T) (*receiver, string) {
	r := &receiver{first: map[string]bool{}, lanes: map[string][]int64{}}
	s := httptest.NewUnstartedServer(r)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return r, s.URL
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
	keys := []string{"a", "", "b", "", "c", ""}
	if w%2 == 1 {
		slices.Reverse(keys)
	}
	for _, key := range keys {
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

// wantAllInOrder checks what arrived: everything committed, nothing else, every
// lane in the order of its commits.
func wantAllInOrder(t *testing.T, r *receiver, path string, committed int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.first) != committed {
		t.Errorf("%d different messages arrived; %d were committed", len(r.first), committed)
	}
	for key, numbers := range r.lanes {
		for i := 1; i < len(numbers); i++ {
			if numbers[i] <= numbers[i-1] {
				t.Errorf("in lane %s message %d came first after %d", key, numbers[i], numbers[i-1])
			}
		}
	}
	if len(r.lanes) != 3 {
		t.Errorf("messages of %d lanes arrived", len(r.lanes))
	}
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
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM outbox WHERE state = 'pending'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d messages are still pending", n)
		}
	}
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
	path := filepath.Join(t.TempDir(), "semel.db")
	open(t, sqlite.Config{Path: path})
	r, url := newReceiver(t)
	var relays []*child
	for range 4 {
		relays = append(relays, relayProcess(t, path, url, time.Minute))
	}
	for _, c := range relays {
		c.hear(t)
	}
	committed := writeMessages(t, path, 8, func(round int) bool { return round < 12 })
	allDelivered(t, path)
	for _, c := range relays {
		c.leave(t)
	}
	wantAllInOrder(t, r, path, committed)
	if r.repeated != 0 {
		t.Errorf("%d messages came twice", r.repeated)
	}
	if r.refused == 0 {
		t.Error("the receiver refused nothing")
	}
	t.Logf("%d messages, %d refusals", committed, r.refused)
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
