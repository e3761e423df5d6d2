package interop_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/webhook"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// The test binary is its own helper: with these variables set it is a service
// that receives webhooks into the database at the path, and dies at its point, or a
// relay that sends them.
const (
	pathVariable  = "SEMEL_WEBHOOK_TEST_PATH"
	pointVariable = "SEMEL_WEBHOOK_TEST_POINT"
)

// Points at which the service dies.
const (
	never      = "never"
	afterWork  = "after the effect, before the commit"
	afterStore = "after the commit, before the answer"
)

func TestMain(m *testing.M) {
	var err error
	if path := os.Getenv(pathVariable); path != "" {
		err = serve(path, os.Getenv(pointVariable))
	} else if path := os.Getenv(relayVariable); path != "" {
		err = serveRelay(path)
	} else {
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// service is an endpoint whose handler inserts a row for each event it processes.
type service struct {
	store *sqlite.Store
	http.Handler
}

func newService(ctx context.Context, path string, work func(http.ResponseWriter)) (*service, error) {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Mode: sqlite.ModeTransactional, BusyTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	s := &service{store: store}
	guard, err := semel.New(semel.Config{Store: s.store})
	if err != nil {
		return nil, errors.Join(err, s.store.Close(context.Background()))
	}
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}})
	if err != nil {
		return nil, errors.Join(err, s.store.Close(context.Background()))
	}
	receive, err := webhook.New(webhook.Config{Guard: guard, Scheme: scheme, Name: "bank.events", Sender: "bank"})
	if err != nil {
		return nil, errors.Join(err, s.store.Close(context.Background()))
	}
	s.Handler = receive(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ev, _ := webhook.EventOf(r.Context())
		tx, ok := sqlite.Tx(r.Context())
		if !ok {
			panic("no transaction")
		}
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO effects (event) VALUES (?)", ev.ID); err != nil {
			panic(err)
		}
		work(w)
	}))
	return s, nil
}

func openEffects(path string) (*sql.DB, error) {
	file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(path), "/"), RawQuery: "_pragma=busy_timeout(60000)"}
	db, err := sql.Open("sqlite", file.String())
	if err == nil {
		_, err = db.Exec("CREATE TABLE IF NOT EXISTS effects (event TEXT NOT NULL)") // and no constraint that would help
	}
	return db, err
}

// effects counts the effects of each event.
func effects(t *testing.T, path string) map[string]int {
	t.Helper()
	db, err := openEffects(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	rows, err := db.Query("SELECT event, count(*) FROM effects GROUP BY event")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	found := map[string]int{}
	for rows.Next() {
		var event string
		var n int
		if err := rows.Scan(&event, &n); err != nil {
			t.Fatal(err)
		}
		found[event] = n
	}
	return found
}

func newDatabase(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "service.db")
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}) // a new file is the store's first
	if err == nil {
		err = store.Close(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	db, err := openEffects(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// delivery is a request of the bank's, signed now.
func delivery(t *testing.T, url, id string) *http.Request {
	t.Helper()
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}})
	if err != nil {
		t.Fatal(err)
	}
	body := `{"event":"` + id + `"}`
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.GetBody = nil // one send for each call
	if r.Header, err = scheme.Sign(id, []byte(body)); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRedeliveryStormInATransaction: a 2xx means that the effect is committed, and
// there is one.
func TestRedeliveryStormInATransaction(t *testing.T) {
	path := newDatabase(t)
	release := make(chan struct{})
	s, err := newService(t.Context(), path, func(w http.ResponseWriter) {
		<-release
		w.WriteHeader(http.StatusNoContent)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.store.Close(context.Background()) }()
	var wg sync.WaitGroup
	var done, again atomic.Int32
	for range 50 {
		wg.Go(func() {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, delivery(t, "http://shop.example/", "msg_1"))
			if w.Code == 204 {
				if got := effects(t, path); got["msg_1"] != 1 {
					t.Errorf("told that it is done, with %v committed", got)
				}
				done.Add(1)
				return
			}
			if w.Code != 503 || w.Header().Get("Retry-After") == "" {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if again.Add(1) == 49 {
				close(release)
			}
		})
	}
	wg.Wait()
	if done.Load() != 1 || again.Load() != 49 {
		t.Errorf("%d done, %d to come again; want 1 and 49", done.Load(), again.Load())
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, delivery(t, "http://shop.example/", "msg_1"))
	if got := effects(t, path); w.Code != 204 || len(got) != 1 || got["msg_1"] != 1 {
		t.Errorf("got %d, with %v", w.Code, got)
	}
}

// TestFailedHandlerIsRolledBack: and its redelivery runs.
func TestFailedHandlerIsRolledBack(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter){
		"500": func(w http.ResponseWriter) { w.WriteHeader(500) },
		"404": func(w http.ResponseWriter) { w.WriteHeader(404) },
		"302": func(w http.ResponseWriter) { w.WriteHeader(302) },
		"panic": func(http.ResponseWriter) {
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newDatabase(t)
			calls := 0
			s, err := newService(t.Context(), path, func(w http.ResponseWriter) {
				if calls++; calls == 1 {
					fail(w)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.store.Close(context.Background()) }()
			deliver := func() (w *httptest.ResponseRecorder) {
				w = httptest.NewRecorder()
				w.Code = 0
				defer func() { _ = recover() }()
				s.ServeHTTP(w, delivery(t, "http://shop.example/", "msg_1"))
				return w
			}
			if w := deliver(); w != nil && w.Code/100 == 2 {
				t.Errorf("got %d", w.Code)
			}
			if got := effects(t, path); len(got) != 0 {
				t.Errorf("a failed handler left %v", got)
			}
			for range 2 {
				if w := deliver(); w == nil || w.Code != 200 {
					t.Errorf("got %+v", w)
				}
			}
			if got := effects(t, path); got["msg_1"] != 1 || calls != 2 {
				t.Errorf("%v after %d calls", got, calls)
			}
		})
	}
}

// serve is the service as a process of its own. It says where it listens.
func serve(path, point string) error {
	die := func(here string) {
		if here == point {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {}
		}
	}
	s, err := newService(context.Background(), path, func(w http.ResponseWriter) {
		die(afterWork)
		w.WriteHeader(http.StatusOK)
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(&dyingWriter{w, func() { die(afterStore) }}, r)
	}))
}

// dyingWriter dies when the 2xx of an event is about to leave.
type dyingWriter struct {
	http.ResponseWriter
	die func()
}

func (w *dyingWriter) WriteHeader(status int) {
	if status == 200 {
		w.die()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *dyingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// spawn starts the service and returns where it listens; wait returns when it is
// dead.
func spawn(t *testing.T, path, point string) (url string, wait, kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), pathVariable+"="+path, pointVariable+"="+point)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill() }
	t.Cleanup(kill)
	scanner := bufio.NewScanner(out)
	if !scanner.Scan() {
		t.Fatal("the service did not start")
	}
	return "http://" + scanner.Text(), sync.OnceFunc(func() {
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}), kill
}

// TestKilledBetweenEffectAndAnswer: 50 senders deliver ten events until each has
// seen a 2xx, while the service dies again and again on its way to it.
func TestKilledBetweenEffectAndAnswer(t *testing.T) {
	path := newDatabase(t)
	var at atomic.Pointer[string]
	var deaths int
	ended := make(chan struct{})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

	var wg sync.WaitGroup
	var lost, again atomic.Int32
	started := make(chan struct{})
	for n := range 50 {
		id := fmt.Sprintf("msg_%d", n%10)
		wg.Go(func() {
			<-started
			for t.Context().Err() == nil {
				resp, err := client.Do(delivery(t, *at.Load(), id))
				if err != nil {
					lost.Add(1)
					time.Sleep(10 * time.Millisecond) // as senders do, if longer
					continue
				}
				_ = resp.Body.Close()
				switch resp.StatusCode {
				case 200:
					return
				case 503:
					again.Add(1)
					time.Sleep(10 * time.Millisecond)
				default:
					t.Errorf("got %d", resp.StatusCode)
					return
				}
			}
		})
	}
	go func() { wg.Wait(); close(ended) }()

	for _, point := range []string{afterWork, afterStore, afterWork, afterStore, afterStore, afterWork} {
		url, wait, _ := spawn(t, path, point)
		at.Store(&url)
		if deaths == 0 {
			close(started)
		}
		wait() // it dies of the next event
		deaths++
	}
	if len(effects(t, path)) == 0 {
		t.Error("no death was behind a commit")
	}
	url, wait, kill := spawn(t, path, never)
	at.Store(&url)
	<-ended
	kill()
	wait()
	got := effects(t, path)
	for n := range 10 {
		if id := fmt.Sprintf("msg_%d", n); got[id] != 1 {
			t.Errorf("%s: %d effects", id, got[id])
		}
	}
	t.Logf("%d deaths, %d deliveries without an answer, %d to come again", deaths, lost.Load(), again.Load())
}
