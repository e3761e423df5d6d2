package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/semeltest"
)

// onEach runs a test on each kind of database, with a fresh one for each use.
func onEach(t *testing.T, test func(t *testing.T, fresh func(testing.TB) string)) {
	t.Run("sqlite", func(t *testing.T) {
		test(t, func(t testing.TB) string { return filepath.Join(t.TempDir(), "odd name?.db") })
	})
	t.Run("postgres", func(t *testing.T) {
		testenv.Postgres(t) // or skip, before anything else
		test(t, testenv.Postgres)
	})
}

func mustOpen(t testing.TB, url string) *database {
	t.Helper()
	db, err := open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// operation is one of the service's, with what must be there before it.
type operation struct {
	prepare func(*shop) (path, body string, err error)
	effects func(counters) int64
}

var operations = map[string]operation{
	"order": {
		func(*shop) (string, string, error) { return "/orders", `{"item":"book","price":500}`, nil },
		func(c counters) int64 { return c.Orders },
	},
	"payment": {
		func(s *shop) (string, string, error) {
			o := order{Item: "book", Price: 500}
			err := s.addOrder(context.Background(), &o)
			return "/payments", fmt.Sprintf(`{"order_id":%d,"amount":500}`, o.ID), err
		},
		func(c counters) int64 { return c.Payments },
	},
	"confirm": {
		func(s *shop) (string, string, error) {
			o := order{Item: "book", Price: 500}
			err := s.addOrder(context.Background(), &o)
			if err == nil {
				err = s.addPayment(context.Background(), &payment{OrderID: o.ID, Amount: 500})
			}
			return fmt.Sprintf("/orders/%d/confirm", o.ID), "", err
		},
		func(c counters) int64 { return c.Receipts },
	},
}

func TestEachRequestTakesEffectOnce(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(testing.TB) string) {
		for name, op := range operations {
			t.Run(name, func(t *testing.T) {
				semeltest.Run(t, semeltest.Config{New: func(t testing.TB) semeltest.Service {
					url := fresh(t)
					outside := &shop{db: mustOpen(t, url)}
					return semeltest.Service{
						Transactional: true,
						Start: func(wrap func(semel.Store) semel.Store) (http.Handler, func(), error) {
							db, err := open(context.Background(), url)
							if err != nil {
								return nil, nil, err
							}
							h, _, err := protect(handler(&shop{db: db}), wrap(db.store))
							kill := func() {
								if err := db.close(); err != nil {
									t.Error(err)
								}
							}
							return h, kill, err
						},
						Request: func(key string) (*http.Request, error) {
							path, body, err := op.prepare(outside)
							r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
							r.Header.Set(semelhttp.HeaderKey, key)
							r.Header.Set("X-User", "alice")
							return r, err
						},
						Effects: func() (int, error) {
							c, err := outside.count(context.Background())
							return int(op.effects(c)), err
						},
					}
				}})
			})
		}
	})
}

// client sends requests of one user.
type client struct {
	t   testing.TB
	h   http.Handler
	key int
}

func newClient(t testing.TB, url string) *client {
	t.Helper()
	db := mustOpen(t, url)
	h, _, err := protect(handler(&shop{db: db}), db.store)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, h: h}
}

// send sends a request with a new key and decodes its answer, if v is not nil.
func (c *client) send(method, path, body string, v any) int {
	c.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("X-User", "alice")
	c.key++
	r.Header.Set(semelhttp.HeaderKey, fmt.Sprintf(`"key-%d"`, c.key))
	w := httptest.NewRecorder()
	c.h.ServeHTTP(w, r)
	if v != nil {
		if err := json.Unmarshal(w.Body.Bytes(), v); err != nil {
			c.t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
		}
	}
	return w.Code
}

// A transition asked for again, under a new key, gets the same answer and is
// not made again.
func TestConfirmation(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(testing.TB) string) {
		c := newClient(t, fresh(t))
		var o, again order
		if code := c.send("POST", "/orders", `{"item":"book","price":500}`, &o); code != 201 || o.State != "CREATED" {
			t.Fatalf("created %+v, %d", o, code)
		}
		confirm := fmt.Sprintf("/orders/%d/confirm", o.ID)
		if code := c.send("POST", confirm, "", nil); code != 409 {
			t.Errorf("an unpaid order is confirmed with %d", code)
		}
		for range 2 {
			if code := c.send("POST", "/payments", fmt.Sprintf(`{"order_id":%d,"amount":250}`, o.ID), nil); code != 201 {
				t.Errorf("paid with %d", code)
			}
		}
		if code := c.send("POST", confirm, "", &o); code != 200 || o.State != "PAID" {
			t.Errorf("confirmed with %d: %+v", code, o)
		}
		if code := c.send("POST", confirm, "", &again); code != 200 || again != o {
			t.Errorf("confirmed again with %d: %+v", code, again)
		}
		var n counters
		if c.send("GET", "/counters", "", &n); n != (counters{Orders: 1, Payments: 2, Receipts: 1}) {
			t.Errorf("counted %+v", n)
		}
	})
}

func TestBadInput(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(testing.TB) string) {
		c := newClient(t, fresh(t))
		for _, r := range []struct {
			method, path, body string
			want               int
		}{
			{"POST", "/orders", ``, 400},
			{"POST", "/orders", `{"item":"book"}`, 400},
			{"POST", "/orders", `{"item":"book","price":-1}`, 400},
			{"POST", "/orders", `{"item":"book","price":1,"state":"PAID","x":1}`, 400},
			{"POST", "/payments", `{"order_id":1,"amount":0}`, 400},
			{"POST", "/payments", `{"order_id":99,"amount":1}`, 404},
			{"POST", "/orders/99/confirm", ``, 404},
			{"POST", "/orders/x/confirm", ``, 404},
			{"GET", "/orders/99", ``, 404},
		} {
			if got := c.send(r.method, r.path, r.body, nil); got != r.want {
				t.Errorf("%s %s %s: %d; want %d", r.method, r.path, r.body, got, r.want)
			}
		}
		var n counters
		if c.send("GET", "/counters", "", &n); n != (counters{}) {
			t.Errorf("bad input counted as %+v", n)
		}
		r := httptest.NewRequest("POST", "/orders", strings.NewReader(`{"item":"book","price":1}`))
		for _, want := range []int{400, 401} {
			w := httptest.NewRecorder()
			if c.h.ServeHTTP(w, r); w.Code != want {
				t.Errorf("answered %d; want %d", w.Code, want)
			}
			r.Header.Set(semelhttp.HeaderKey, `"k"`)
		}
	})
}

// A failing transaction leaves nothing behind and no record: the same key works
// once the cause is gone.
func TestFailureFreesTheKey(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(testing.TB) string) {
		url := fresh(t)
		db := mustOpen(t, url)
		s := &shop{db: db, delay: time.Hour}
		h, _, err := protect(http.TimeoutHandler(handler(s), 50*time.Millisecond, ""), db.store)
		if err != nil {
			t.Fatal(err)
		}
		send := func() int {
			r := httptest.NewRequest("POST", "/orders", strings.NewReader(`{"item":"book","price":1}`))
			r.Header.Set("X-User", "alice")
			r.Header.Set(semelhttp.HeaderKey, "k")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		if code := send(); code != http.StatusServiceUnavailable {
			t.Errorf("cut off with %d", code)
		}
		if c, err := s.count(t.Context()); err != nil || c.Orders != 0 {
			t.Errorf("counted %+v, %v", c, err)
		}
		c := newClient(t, url)
		h = c.h
		if code := send(); code != http.StatusCreated {
			t.Errorf("sent again: %d", code)
		}
		if c, err := s.count(t.Context()); err != nil || c.Orders != 1 {
			t.Errorf("counted %+v, %v", c, err)
		}
	})
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
		text string
	}{
		{[]string{"--help"}, 0, "Examples:"},
		{[]string{"--nonsense"}, 2, "nonsense"},
		{[]string{"extra"}, 2, "extra"},
		{[]string{"--db", filepath.Join(t.TempDir(), "x.db"), "--listen", "127.0.0.1:x"}, 1, "another --listen"},
		{[]string{"--db", t.TempDir()}, 1, "open the database"},
		{[]string{"--db", "postgres://127.0.0.1:1/none?connect_timeout=1"}, 1, "open the database"},
	} {
		var stderr bytes.Buffer
		if got := run(t.Context(), c.args, &stderr); got != c.want || !strings.Contains(stderr.String(), c.text) {
			t.Errorf("payments %v exits with %d; want %d and %q: %s", c.args, got, c.want, c.text, &stderr)
		}
	}
}

// A service that is told to stop ends, and closes what it has opened.
func TestServe(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(testing.TB) string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, w := io.Pipe()
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, []string{"--db", fresh(t), "--listen", "127.0.0.1:0"}, w)
			_ = w.Close()
		}()
		lines := bufio.NewScanner(r)
		if !lines.Scan() {
			t.Fatal("it says nothing")
		}
		_, url, _ := strings.Cut(lines.Text(), "listening on ")
		resp, err := http.Get(url + "/counters")
		if err != nil {
			t.Fatalf("%v, after %q", err, lines.Text())
		}
		_ = resp.Body.Close()
		cancel()
		for lines.Scan() {
			t.Errorf("it says %q", lines.Text())
		}
		if c := <-code; c != 0 || resp.StatusCode != http.StatusOK {
			t.Errorf("answered %d, exits with %d", resp.StatusCode, c)
		}
	})
}
