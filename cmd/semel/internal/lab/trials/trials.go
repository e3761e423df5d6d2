// Package trials does things to code as it is written by hand, and to semel, and says
// what came of each: a restart, a crash in between, a second process. The lab's
// lessons show them.
package trials

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	_ "modernc.org/sqlite" // for the app's own statements

	"github.com/semelhq/semel/store/sqlite"
)

// Trial does one thing. Each run begins anew, and leaves nothing behind.
type Trial struct {
	Title string
	Right string // what should be counted
	// Hand and Semel return what came of it.
	Hand, Semel func(context.Context) (Outcome, error)
}

// Outcome is what came of a trial.
type Outcome struct {
	Count string // how often something was done, or what is left
	// Receipts are what each request was answered with, in their order: the number of a
	// charge, or – for no response.
	Receipts string
}

// All are the trials by name.
var All = map[string]Trial{
	"repeat":        breaking("the same request again", "1", repeat),
	"restart":       breaking("a restart", "1", restart),
	"two-processes": breaking("two processes", "1", twoProcesses),
	"shared-race":   breaking("two processes with one map, at the same time", "1", sharedRace),
	"shared-crash":  breaking("a crash between the effect and the record", "1", sharedCrash),
	"clock":         breaking("the clock is set forward by a day", "1", clock),
	"tenant":        breaking("another tenant with the same key", "2", tenant),
	"slow-worker":   {"a worker that is slower than its lease", "1", slowByHand, slowWithSemel},
	"paused-worker": {"a worker that is paused", "1", pausedByHand, pausedWithSemel},
	"lost-update":   {"two that read, and then write", "8", updateByHand, updateWithSemel},
}

// platform is where processes of a service run that charges cards.
type platform struct {
	start   func() (process, error)
	forward func(time.Duration) error // sets the clock, while no process runs
	done    func() (int, error)       // how often a card was charged
	share   func()                    // has processes keep their keys in one place
	end     func() error

	mu       sync.Mutex
	receipts []string

	// afterwards is called by the service when it has charged a card, before the response.
	afterwards func()
}

// process is one of a service.
type process struct {
	http.Handler
	stop func() error
}

// errDied stands for the end of a process in the middle of its work: nothing
// behind the panic runs.
var errDied = errors.New("the process has ended")

// post asks for the same charge each time.
func (p *platform) post(to process, who string) (err error) {
	r, err := http.NewRequest(http.MethodPost, "/charges", strings.NewReader(`{"amount": 500}`))
	if err != nil {
		return err
	}
	r.Header.Set("Idempotency-Key", "order-17")
	r.Header.Set("Authorization", "Bearer "+who)
	receipt := "–"
	defer func() {
		if v := recover(); v == errDied {
			err = errDied
		} else if v != nil {
			panic(v)
		}
		p.mu.Lock()
		p.receipts = append(p.receipts, receipt)
		p.mu.Unlock()
	}()
	a := &response{header: http.Header{}, status: http.StatusOK}
	to.ServeHTTP(a, r)
	if a.status != http.StatusCreated {
		return fmt.Errorf("answered %d: %s", a.status, a.body.String())
	}
	receipt = a.body.String()
	return nil
}

func repeat(p *platform) error {
	a, err := p.start()
	if err != nil {
		return err
	}
	return errors.Join(p.post(a, "alice@acme"), p.post(a, "alice@acme"), a.stop())
}

func restart(p *platform) error {
	a, err := p.start()
	if err != nil {
		return err
	}
	return errors.Join(p.post(a, "alice@acme"), a.stop(), again(p))
}

// again sends the request to a process that has just been started.
func again(p *platform) error {
	a, err := p.start()
	if err != nil {
		return err
	}
	return errors.Join(p.post(a, "alice@acme"), a.stop())
}

func twoProcesses(p *platform) error {
	a, err := p.start()
	if err != nil {
		return err
	}
	return errors.Join(p.post(a, "alice@acme"), again(p), a.stop())
}

// sharedRace has two processes that keep their keys in one place get the request at
// the same time. Each waits for the other when it has charged, but not for long: one
// that is kept out does not come.
func sharedRace(p *platform) error {
	p.share()
	var mu sync.Mutex
	charged, both := 0, make(chan struct{})
	p.afterwards = func() {
		mu.Lock()
		if charged++; charged == 2 {
			close(both)
		}
		mu.Unlock()
		select {
		case <-both:
		case <-time.After(300 * time.Millisecond):
		}
	}
	failed := make(chan error, 2)
	for range 2 {
		go func() { failed <- again(p) }()
	}
	err := errors.Join(<-failed, <-failed)
	slices.Sort(p.receipts) // either may be the first
	return err
}

func sharedCrash(p *platform) error {
	p.share()
	a, err := p.start()
	if err != nil {
		return err
	}
	p.afterwards = func() { panic(errDied) }
	if err := p.post(a, "alice@acme"); !errors.Is(err, errDied) {
		return fmt.Errorf("the process has not ended: %w", err)
	}
	p.afterwards = func() {}
	return errors.Join(a.stop(), again(p))
}

func clock(p *platform) error {
	p.share()
	return errors.Join(again(p), p.forward(25*time.Hour), again(p))
}

func tenant(p *platform) error {
	a, err := p.start()
	if err != nil {
		return err
	}
	return errors.Join(p.post(a, "alice@acme"), p.post(a, "carol@globex"), a.stop())
}

// breaking does something to the tutorial's version, and to semel.
func breaking(title, right string, do func(*platform) error) Trial {
	count := func(open func(context.Context) (*platform, error)) func(context.Context) (Outcome, error) {
		return func(ctx context.Context) (_ Outcome, err error) {
			p, err := open(ctx)
			if err != nil {
				return Outcome{}, err
			}
			defer func() { err = errors.Join(err, p.end()) }()
			if err := do(p); err != nil {
				return Outcome{}, err
			}
			n, err := p.done()
			return Outcome{strconv.Itoa(n), strings.Join(p.receipts, " ")}, err
		}
	}
	return Trial{title, right, count(openTutorial), count(openInItsPlace)}
}

// openTutorial runs tutorial. What it charges is written down elsewhere, at the
// card company, say, and outlives it.
func openTutorial(context.Context) (*platform, error) {
	var mu sync.Mutex
	var shared *sync.Map
	times, ahead := 0, time.Duration(0)
	p := &platform{afterwards: func() {}, end: func() error { return nil }}
	charge := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		times++
		n := times
		mu.Unlock()
		p.afterwards()
		charged(w, int64(n))
	})
	p.share = func() { shared = &sync.Map{} }
	p.forward = func(d time.Duration) error { ahead = d; return nil }
	p.done = func() (int, error) { return times, nil }
	p.start = func() (process, error) {
		seen := shared
		if seen == nil {
			seen = &sync.Map{}
		}
		return process{
			&tutorial{charge: charge, seen: seen, now: func() time.Time { return time.Now().Add(ahead) }},
			func() error { return nil },
		}, nil
	}
	return p, nil
}

// openInItsPlace runs inItsPlace. Its processes have one SQLite file, as those of a
// service on several hosts would have one PostgreSQL server.
func openInItsPlace(ctx context.Context) (_ *platform, err error) {
	dir, err := os.MkdirTemp("", "semel-lesson-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "service.db")
	p := &platform{afterwards: func() {}, share: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	store, err := sqlite.Open(ctx, sqlite.Config{Path: file}) // the store's tables come first
	if err == nil {
		err = store.Close(ctx)
	}
	if err != nil {
		return nil, err
	}
	db, err := openFile(file)
	if err != nil {
		return nil, err
	}
	if _, err = db.ExecContext(ctx, "CREATE TABLE charges (id INTEGER PRIMARY KEY) STRICT"); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	p.end = func() error { return errors.Join(db.Close(), os.RemoveAll(dir)) }
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := sqlite.Tx(r.Context())
		if !ok {
			http.Error(w, "there is no transaction", http.StatusInternalServerError)
			return
		}
		done, err := tx.ExecContext(r.Context(), "INSERT INTO charges DEFAULT VALUES")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		p.afterwards()
		n, _ := done.LastInsertId() // SQLite always knows
		charged(w, n)
	})
	p.start = func() (process, error) {
		store, err := sqlite.Open(ctx, sqlite.Config{Path: file, Mode: sqlite.ModeTransactional})
		if err != nil {
			return process{}, err
		}
		end := func() error { return store.Close(context.Background()) }
		h, err := inItsPlace(store, charge)
		if err != nil {
			return process{}, errors.Join(err, end())
		}
		return process{h, end}, nil
	}
	// To a record that ends by the clock it is the same whether the clock goes forward,
	// or its end comes nearer.
	p.forward = func(d time.Duration) error {
		_, err := db.ExecContext(ctx, "UPDATE record SET expires_at = expires_at - ?", d.Microseconds())
		return err
	}
	p.done = func() (n int, err error) {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM charges").Scan(&n)
		return n, err
	}
	return p, nil
}

// charged answers that a card was charged for the nth time: with its receipt.
func charged(w http.ResponseWriter, n int64) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
}

// openFile opens an SQLite file, by its absolute path, for the app's own statements.
func openFile(path string) (*sql.DB, error) {
	file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(path), "/"), RawQuery: "_pragma=busy_timeout(10000)&_txlock=immediate"}
	return sql.Open("sqlite", file.String())
}
