package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	fiber2 "github.com/gofiber/fiber/v2"
	idempotency2 "github.com/gofiber/fiber/v2/middleware/idempotency"
	fiber3 "github.com/gofiber/fiber/v3"
	idempotency3 "github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/valyala/fasthttp"
	_ "modernc.org/sqlite"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/sqlite"
)

// effect is the handler that is protected, the same in every framework. Where
// handlers return errors, a reply without a status is one.
type effect func(body []byte) reply

type reply struct {
	status int
	header [][2]string
	body   []byte
}

// request is what facts are found out with. It is always a POST.
type request struct{ key, caller, path, body string }

type answer struct {
	status  int
	header  http.Header
	body    string
	dropped bool // a message that was acknowledged and not handled
}

// handler is an effect in one framework, with or without protection, called
// without a network.
type handler interface {
	send(r request) answer
	// bench sends b.N requests of 1 KiB; key makes the i-th one's key.
	bench(b *testing.B, key func(i int) string)
}

// options say where a protection keeps its records.
type options struct {
	// store is a folder that outlives the protection and that several share;
	// "" is what the protection does by itself.
	store string
	// broken has every write of a result fail.
	broken bool
	// lease is semel's; 0 is its default.
	lease time.Duration
}

type subject struct {
	name    string
	bare    func(tb testing.TB, do effect) handler
	protect func(tb testing.TB, do effect, o options) handler
	// shared says that the records can be in a folder.
	shared bool
}

var subjects = []subject{
	{semelSQLite, overHTTP, protectSemel, true},
	{semelMemory, overHTTP, func(tb testing.TB, do effect, o options) handler {
		if o.store != "" {
			tb.Fatal("memory cannot be shared")
		}
		o.store = "memory"
		return protectSemel(tb, do, o)
	}, false},
	{fiberThree, overFiber3, protectFiber3, true},
	{fiberTwo, overFiber2, protectFiber2, true},
	{byHand, overHTTP, protectByHand, true},
	{semelFunction, overFunction, protectFunction, false},
	{watermill, overWatermill, protectWatermill, false},
}

// net/http

func handle(do effect) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var buf [2048]byte
		n := 0
		for n < len(buf) {
			m, err := r.Body.Read(buf[n:])
			n += m
			if err != nil {
				break
			}
		}
		a := do(buf[:n])
		h := w.Header()
		for _, f := range a.header {
			h.Add(f[0], f[1])
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	})
}

func overHTTP(_ testing.TB, do effect) handler { return httpHandler{handle(do)} }

type httpHandler struct{ http.Handler }

func (h httpHandler) send(r request) answer {
	return survive(func() answer {
		req := httptest.NewRequest(http.MethodPost, r.path, strings.NewReader(r.body))
		req.Header.Set("Idempotency-Key", r.key)
		req.Header.Set("Authorization", r.caller)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return answer{status: w.Code, header: w.Header(), body: w.Body.String()}
	})
}

// survive does what a server does with a panic.
func survive(f func() answer) (a answer) {
	defer func() {
		if recover() != nil {
			a = answer{status: http.StatusInternalServerError}
		}
	}()
	return f()
}

type nullWriter struct {
	header http.Header
	status int
}

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) WriteHeader(status int)      { w.status = status }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }

type requestBody struct{ strings.Reader }

func (*requestBody) Close() error { return nil }

func (h httpHandler) bench(b *testing.B, key func(i int) string) {
	w := &nullWriter{header: make(http.Header)}
	content := &requestBody{}
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/orders"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "shop.example",
		ContentLength: int64(len(benchBody)), Body: content,
		Header: http.Header{
			"Content-Type": {"application/octet-stream"}, "Accept": {"*/*"}, "User-Agent": {"bench"},
			"Authorization": {"Bearer abc"}, "Idempotency-Key": {""},
		},
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		content.Reset(benchBody)
		clear(w.header)
		r.Header["Idempotency-Key"][0] = key(i)
		h.ServeHTTP(w, r)
		if w.status != http.StatusCreated {
			b.Fatalf("status %d", w.status)
		}
	}
}

// semel

func semelStore(tb testing.TB, o options) semel.Store {
	var store semel.Store
	switch o.store {
	case "memory":
		m, err := memory.New(memory.Config{MaxRecords: 50_000_000})
		if err != nil {
			tb.Fatal(err)
		}
		store = m
	default:
		s, err := sqlite.Open(tb.Context(), sqlite.Config{Path: filepath.Join(cmp.Or(o.store, tb.TempDir()), "semel.db")})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = s.Close(context.Background()) })
		store = s
	}
	if o.broken {
		store = brokenStore{store}
	}
	return store
}

// brokenStore grants claims and cannot record what became of them.
type brokenStore struct{ semel.Store }

func (s brokenStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	return brokenClaim{c}, nil
}

type brokenClaim struct{ semel.Claim }

func (brokenClaim) Complete(context.Context, semel.Result) (time.Time, error) {
	return time.Time{}, errBroken
}

var (
	errBroken = errors.New("the store cannot write")
	errFailed = errors.New("the handler failed")
)

func semelGuard(tb testing.TB, o options) *semel.Guard {
	g, err := semel.New(semel.Config{Store: semelStore(tb, o), Policy: semel.Policy{Lease: o.lease}})
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func protectSemel(tb testing.TB, do effect, o options) handler {
	protect, err := semelhttp.New(semelhttp.Config{Guard: semelGuard(tb, o), Scope: func(r *http.Request) (semel.Scope, error) {
		return semel.Scope{Actor: r.Header.Get("Authorization")}, nil
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return httpHandler{protect(handle(do))}
}

// A function before which there is only the guard; a message's handler, say.

type function func(key string, body []byte) (reply, semel.Answer, error)

func overFunction(_ testing.TB, do effect) handler {
	return function(func(_ string, body []byte) (reply, semel.Answer, error) { return do(body), semel.AnswerExecuted, nil })
}

func protectFunction(tb testing.TB, do effect, o options) handler {
	g := semelGuard(tb, options{store: "memory", broken: o.broken, lease: o.lease})
	return function(func(key string, body []byte) (reply, semel.Answer, error) {
		id := semel.Identity{Scope: semel.Scope{Actor: "bench", Operation: "orders.create"}, Key: key}
		out, err := g.Do(context.Background(), semel.Submit{Identity: id, Fingerprint: semel.FingerprintOf(body)}, func(context.Context) (semel.Result, error) {
			a := do(body)
			if a.status == 0 {
				return semel.Result{}, errFailed
			}
			return semel.Result{Codec: "bytes", Body: a.body}, nil
		})
		return reply{body: out.Result.Body}, out.Answer, err
	})
}

func (f function) send(r request) answer {
	return survive(func() answer {
		got, said, err := f(r.key, []byte(r.body))
		if err != nil {
			return answer{status: http.StatusConflict, body: said.String()}
		}
		return answer{status: http.StatusOK, body: string(got.body)}
	})
}

func (f function) bench(b *testing.B, key func(i int) string) {
	body := []byte(benchBody)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, _, err := f(key(i), body); err != nil {
			b.Fatal(err)
		}
	}
}

// watermill's Deduplicator, over the handler of a router

type messages message.HandlerFunc

func overWatermill(_ testing.TB, do effect) handler {
	return messages(func(m *message.Message) ([]*message.Message, error) {
		if do(m.Payload).status == 0 {
			return nil, errFailed
		}
		return nil, nil
	})
}

func protectWatermill(tb testing.TB, do effect, o options) handler {
	if o.broken {
		tb.Fatal("there is no result to be written")
	}
	seen, err := middleware.NewMapExpiringKeyRepository(time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	d := &middleware.Deduplicator{KeyFactory: middleware.NewMessageHasherFromMetadataField("key"), Repository: seen, Timeout: time.Minute}
	return messages(d.Middleware(message.HandlerFunc(overWatermill(tb, do).(messages))))
}

func (m messages) send(r request) answer {
	return survive(func() answer {
		msg := message.NewMessage("id", []byte(r.body))
		msg.Metadata.Set("key", r.key)
		if _, err := m(msg); err != nil {
			return answer{status: http.StatusInternalServerError}
		}
		return answer{dropped: true} // handled or dropped: nobody is told which
	})
}

func (m messages) bench(b *testing.B, key func(i int) string) {
	msg := message.NewMessage("id", []byte(benchBody))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		msg.Metadata["key"] = key(i)
		if _, err := m(msg); err != nil {
			b.Fatal(err)
		}
	}
}

// fiber: its own router and context on fasthttp's request, as its server calls
// it for each request that it has read, so that no network is measured

type fastHandler fasthttp.RequestHandler

func overFiber3(_ testing.TB, do effect) handler { return fiber3App(do, nil) }

func fiber3App(do effect, protection fiber3.Handler) handler {
	app := fiber3.New()
	if protection != nil {
		app.Use(protection)
	}
	app.All("/*", func(c fiber3.Ctx) error {
		a := do(c.Body())
		if a.status == 0 {
			return errFailed
		}
		for _, f := range a.header {
			c.RequestCtx().Response.Header.Add(f[0], f[1])
		}
		return c.Status(a.status).Send(a.body)
	})
	return fastHandler(app.Handler())
}

func protectFiber3(tb testing.TB, do effect, o options) handler {
	config := idempotency3.Config{KeyHeader: "Idempotency-Key"}
	if o.store != "" || o.broken {
		config.Storage = folderStorage{cmp.Or(o.store, tb.TempDir()), o.broken}
	}
	return fiber3App(do, idempotency3.New(config))
}

func overFiber2(_ testing.TB, do effect) handler { return fiber2App(do, nil) }

func fiber2App(do effect, protection fiber2.Handler) handler {
	app := fiber2.New(fiber2.Config{DisableStartupMessage: true})
	if protection != nil {
		app.Use(protection)
	}
	app.All("/*", func(c *fiber2.Ctx) error {
		a := do(c.Body())
		if a.status == 0 {
			return errFailed
		}
		for _, f := range a.header {
			c.Context().Response.Header.Add(f[0], f[1])
		}
		return c.Status(a.status).Send(a.body)
	})
	return fastHandler(app.Handler())
}

func protectFiber2(tb testing.TB, do effect, o options) handler {
	config := idempotency2.Config{KeyHeader: "Idempotency-Key"}
	if o.store != "" || o.broken {
		config.Storage = folderStorage{cmp.Or(o.store, tb.TempDir()), o.broken}
	}
	return fiber2App(do, idempotency2.New(config))
}

func (h fastHandler) send(r request) answer {
	return survive(func() answer {
		var c fasthttp.RequestCtx
		c.Request.Header.SetMethod(http.MethodPost)
		c.Request.SetRequestURI(r.path)
		c.Request.Header.Set("Idempotency-Key", r.key)
		c.Request.Header.Set("Authorization", r.caller)
		c.Request.SetBodyString(r.body)
		h(&c)
		a := answer{status: c.Response.StatusCode(), header: http.Header{}, body: string(c.Response.Body())}
		for name, value := range c.Response.Header.All() {
			a.header.Add(string(name), string(value))
		}
		return a
	})
}

func (h fastHandler) bench(b *testing.B, key func(i int) string) {
	var c fasthttp.RequestCtx
	for name, value := range map[string]string{
		"Content-Type": "application/octet-stream", "Accept": "*/*", "User-Agent": "bench", "Authorization": "Bearer abc", "Host": "shop.example",
	} {
		c.Request.Header.Set(name, value)
	}
	c.Request.Header.SetMethod(http.MethodPost)
	c.Request.SetRequestURI("/orders")
	c.Request.SetBodyString(benchBody)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Request.Header.Set("Idempotency-Key", key(i))
		c.Response.Reset()
		c.ResetUserValues()
		h(&c)
		if c.Response.StatusCode() != http.StatusCreated {
			b.Fatalf("status %d", c.Response.StatusCode())
		}
	}
}

// folderStorage is a fiber.Storage that several processes can share, in place
// of those over Redis and the like.
type folderStorage struct {
	folder string
	broken bool
}

func (s folderStorage) path(key string) string { return filepath.Join(s.folder, url.PathEscape(key)) }

func (s folderStorage) Get(key string) ([]byte, error) {
	value, err := os.ReadFile(s.path(key))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return value, err
}

func (s folderStorage) Set(key string, value []byte, _ time.Duration) error {
	if s.broken {
		return errBroken
	}
	return os.WriteFile(s.path(key), value, 0o600)
}

func (s folderStorage) Delete(key string) error { return os.Remove(s.path(key)) }
func (s folderStorage) Reset() error            { return nil }
func (s folderStorage) Close() error            { return nil }

func (s folderStorage) GetWithContext(_ context.Context, key string) ([]byte, error) {
	return s.Get(key)
}

func (s folderStorage) SetWithContext(_ context.Context, key string, value []byte, d time.Duration) error {
	return s.Set(key, value, d)
}

func (s folderStorage) DeleteWithContext(_ context.Context, key string) error { return s.Delete(key) }
func (s folderStorage) ResetWithContext(context.Context) error                { return s.Reset() }

// What a service writes for itself: a table of keys in its database. Insert the
// key, execute, update the row with the answer.

func protectByHand(tb testing.TB, do effect, o options) handler {
	path := filepath.Join(cmp.Or(o.store, tb.TempDir()), "keys.db")
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(4)
	schema := "CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, status INTEGER, header BLOB, body BLOB)"
	if o.broken {
		schema += "; CREATE TRIGGER broken BEFORE UPDATE ON keys BEGIN SELECT RAISE(ABORT, 'broken'); END"
	}
	if _, err := db.Exec(schema); err != nil {
		tb.Fatal(err)
	}
	prepare := func(text string) *sql.Stmt {
		s, err := db.Prepare(text)
		if err != nil {
			tb.Fatal(err)
		}
		return s
	}
	find := prepare("SELECT status, header, body FROM keys WHERE key = ?")
	insert := prepare("INSERT INTO keys (key) VALUES (?) ON CONFLICT DO NOTHING")
	update := prepare("UPDATE keys SET status = ?, header = ?, body = ? WHERE key = ?")
	next := handle(do)
	fail := func(w http.ResponseWriter, err error) { http.Error(w, err.Error(), http.StatusInternalServerError) }

	// replay reports whether the key was there.
	replay := func(w http.ResponseWriter, key string) bool {
		var status sql.NullInt64
		var head, body []byte
		switch err := find.QueryRow(key).Scan(&status, &head, &body); {
		case errors.Is(err, sql.ErrNoRows):
			return false
		case err != nil:
			fail(w, err)
		case !status.Valid:
			http.Error(w, "in progress", http.StatusConflict)
		default:
			var header http.Header
			if err := json.Unmarshal(head, &header); err != nil {
				fail(w, err)
				break
			}
			for name, values := range header {
				w.Header()[name] = values
			}
			w.WriteHeader(int(status.Int64))
			_, _ = w.Write(body)
		}
		return true
	}
	return httpHandler{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if replay(w, key) {
			return
		}
		done, err := insert.Exec(key)
		if err != nil {
			fail(w, err)
			return
		}
		if n, _ := done.RowsAffected(); n == 0 {
			replay(w, key)
			return
		}
		kept := &keptAnswer{header: http.Header{}}
		next.ServeHTTP(kept, r)
		head, err := json.Marshal(kept.header)
		if err == nil {
			_, err = update.Exec(kept.status, head, kept.body.Bytes(), key)
		}
		if err != nil {
			fail(w, err)
			return
		}
		for name, values := range kept.header {
			w.Header()[name] = values
		}
		w.WriteHeader(kept.status)
		_, _ = w.Write(kept.body.Bytes())
	})}
}

type keptAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) Header() http.Header         { return k.header }
func (k *keptAnswer) WriteHeader(status int)      { k.status = status }
func (k *keptAnswer) Write(p []byte) (int, error) { return k.body.Write(p) }

// The benchmark

var (
	benchBody   = strings.Repeat("x", 1024)
	benchAnswer = reply{
		status: http.StatusCreated,
		header: [][2]string{{"Content-Type", "application/json"}, {"Location", "/orders/ord_0001"}},
		body:   []byte(strings.Repeat("y", 1024)),
	}
)

// BenchmarkProtection calls one handler, which answers a request of 1 KiB with
// 1 KiB, alone and behind each protection, without a network.
func BenchmarkProtection(b *testing.B) {
	do := func([]byte) reply { return benchAnswer }
	// All the keys have the form of a UUID, as fiber wants them.
	buf := []byte("8e03978e-40d5-43e8-bc93-000000000000")
	fresh := func(i int) string {
		n := strconv.AppendInt(buf[:24], int64(1e11+i), 10)
		return string(n)
	}
	same := func(int) string { return string(buf) }
	run := func(b *testing.B, h handler, key func(i int) string) {
		before := cpuTime()
		h.bench(b, key)
		if used := cpuTime() - before; used > 0 {
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
		}
	}
	for _, s := range subjects {
		b.Run(s.name+"/bare", func(b *testing.B) { run(b, s.bare(b, do), fresh) })
		b.Run(s.name+"/first", func(b *testing.B) { run(b, s.protect(b, do, options{}), fresh) })
		b.Run(s.name+"/replay", func(b *testing.B) { run(b, s.protect(b, do, options{}), same) }) // but for the first
	}
}
