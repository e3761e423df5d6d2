package matrix

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

const secret = "the-payload-that-nobody-may-read"

// encryptionKeys makes a key of each letter.
func encryptionKeys(letters string) (keys []semel.EncryptionKey) {
	for _, l := range letters {
		keys = append(keys, semel.EncryptionKey{Name: string(l), Secret: bytes.Repeat([]byte(string(l)), 32)})
	}
	return keys
}

// encrypted is processes over one store.
type encrypted struct {
	*testing.T
	s     *subject
	execs atomic.Int64
	// begun, if not nil, is told that the handler runs, and wait holds it there.
	begun, wait chan struct{}
}

// gatewayOf is one of the processes.
type gatewayOf struct {
	*encrypted
	guard  *semel.Guard
	cipher *semel.Cipher
	http.Handler
	failures atomic.Int64 // to decrypt, as the observer is told
}

// process starts a process with keys, of which "" is none.
func (e *encrypted) process(letters string, edit func(*semel.Config)) *gatewayOf {
	e.Helper()
	p := &gatewayOf{encrypted: e}
	var err error
	if letters != "" {
		if p.cipher, err = semel.NewCipher(encryptionKeys(letters)...); err != nil {
			e.Fatal(err)
		}
	}
	c := semel.Config{Store: e.s.store, Cipher: p.cipher, Observer: &semel.Observer{StoreFailed: func(_ context.Context, f semel.StoreFailed) {
		if f.Call == "decrypt" {
			p.failures.Add(1)
		}
	}}}
	if edit != nil {
		edit(&c)
	}
	if p.guard, err = semel.New(c); err != nil {
		e.Fatal(err)
	}
	scope := func(r *http.Request) (semel.Scope, error) {
		return semel.Scope{Actor: "alice", Operation: "orders"}, nil
	}
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: p.guard, Scope: scope})
	if err != nil {
		e.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: p.guard, Scope: scope, Resources: resources, InFlight: semelhttp.InFlightAccept, FailOpen: true,
		MaxInline: 1 << 10, MaxResult: 8 << 20,
	})
	if err != nil {
		e.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(semelhttp.DefaultPrefix+"/", resources)
	mux.Handle("/", protect(http.HandlerFunc(e.execute)))
	p.Handler = mux
	return p
}

// execute is the operation. Its answer is as long as the request asks for.
func (e *encrypted) execute(w http.ResponseWriter, r *http.Request) {
	if e.begun != nil {
		e.begun <- struct{}{}
		<-e.wait
	}
	n := int(e.execs.Add(1))
	for half := range 2 {
		if err := e.s.effect(r.Context(), r.Header.Get("Idempotency-Key"), n, half); err != nil {
			e.Error(err)
		}
	}
	w.Header().Set("Location", "/orders/"+secret)
	w.Header().Set("X-Secret", secret)
	w.WriteHeader(http.StatusCreated)
	size := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("size"), &size)
	_, _ = w.Write(answerOf(n, size))
}

func answerOf(n, size int) []byte {
	b := fmt.Appendf(nil, "%s %d\n", secret, n)
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "%s %d\n", secret, i)
	}
	return b
}

// post asks for the operation under a key.
func (p *gatewayOf) post(key string, more ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/orders", nil)
	r.Header.Set("Idempotency-Key", key)
	for _, m := range more {
		if size, ok := strings.CutPrefix(m, "size="); ok {
			r.URL.RawQuery = "size=" + size
			continue
		}
		name, value, _ := strings.Cut(m, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

func (p *gatewayOf) get(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// status is the path of the operation under a key.
func (e *encrypted) status(key string) string {
	return semelhttp.DefaultPrefix + "/operations/" + e.found(key).ID
}

func (e *encrypted) found(key string) semel.Record {
	e.Helper()
	r, err := e.s.store.Find(e.Context(), identityOf(key))
	if err != nil {
		e.Fatal(err)
	}
	return r
}

func identityOf(key string) semel.Identity {
	return semel.Identity{Scope: semel.Scope{Actor: "alice", Operation: "orders"}, Key: key}
}

// same fails unless got replays the answer.
func (e *encrypted) same(got, want *httptest.ResponseRecorder) {
	e.Helper()
	if got.Code != want.Code || !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) || got.Header().Get("X-Secret") != secret ||
		got.Header().Get("Location") != want.Header().Get("Location") || got.Header().Get(semelhttp.HeaderReplayed) != "true" {
		e.Errorf("replayed %d, %d bytes, %v; want %d, %d bytes, %v", got.Code, got.Body.Len(), got.Header(), want.Code, want.Body.Len(), want.Header())
	}
}

// refused fails unless the answer and the resources say that the result cannot be
// read, and nothing was executed.
func (p *gatewayOf) refused(key string) {
	p.Helper()
	before, failures := p.execs.Load(), p.failures.Load()
	status := p.status(key)
	for what, w := range map[string]*httptest.ResponseRecorder{"the answer": p.post(key), "the status": p.get(status), "the result": p.get(status + "/result")} {
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "30" ||
			!strings.Contains(w.Body.String(), semelhttp.ProblemResultUnreadable.Type()) || strings.Contains(w.Body.String(), secret) {
			p.Errorf("%s is %d %v %s", what, w.Code, w.Header(), w.Body)
		}
	}
	if n := p.execs.Load() - before; n != 0 {
		p.Errorf("%d executions", n)
	}
	if n := p.failures.Load() - failures; n != 3 {
		p.Errorf("the observer was told of %d failures; want 3", n)
	}
}

// edited is a store that reads records otherwise than they were written.
type edited struct {
	store
	edit func(*semel.Record)
}

func (s edited) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.store.Begin(ctx, a)
	if conflict, ok := errors.AsType[*semel.ConflictError](err); ok {
		r := conflict.Record
		s.edit(&r)
		return nil, &semel.ConflictError{Record: r}
	}
	return c, err
}

func (s edited) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	r, err := s.store.Find(ctx, id)
	if err == nil {
		s.edit(&r)
	}
	return r, err
}

// encryptedCases are what can happen to an encrypted result.
var encryptedCases = map[string]func(e *encrypted){
	"replay": func(e *encrypted) {
		p := e.process("a", nil)
		first := p.post("k")
		e.same(p.post("k"), first)
		e.same(e.process("a", nil).post("k"), first)
		r := e.found("k")
		if r.Result.Codec != "encrypted/1:a" || r.Result.Label != "201" || r.Result.Reference != "" || bytes.Contains(append(r.Result.Head, r.Result.Body...), []byte(secret)) {
			e.Errorf("on record is %+v", r.Result)
		}
	},
	"an empty answer": func(e *encrypted) {
		p := e.process("a", nil)
		if _, err := p.guard.Do(e.Context(), semel.Submit{Identity: identityOf("k")}, func(ctx context.Context) (semel.Result, error) {
			return semel.Result{Codec: "c", Label: "ok"}, errors.Join(e.s.effect(ctx, "k", 1, 0), e.s.effect(ctx, "k", 1, 1))
		}); err != nil {
			e.Error(err)
		}
		out, err := p.guard.Do(e.Context(), semel.Submit{Identity: identityOf("k")}, nil)
		if err != nil || out.Answer != semel.AnswerReplayed || out.Result.Codec != "c" || out.Result.Size() != 0 || out.Result.Label != "ok" {
			e.Errorf("%+v, %v", out, err)
		}
		e.execs.Add(1)
	},
	"a recorded failure": func(e *encrypted) {
		p := e.process("a", nil)
		fail := func(context.Context) (semel.Result, error) { return semel.Result{}, semel.Final(errors.New(secret)) }
		for _, want := range []semel.Answer{semel.AnswerExecuted, semel.AnswerReplayed} {
			out, err := p.guard.Do(e.Context(), semel.Submit{Identity: identityOf("k")}, fail)
			if !errors.Is(err, semel.ErrRecorded) || err.Error() != secret || out.Answer != want {
				e.Errorf("%v, %v; want %v", out.Answer, err, want)
			}
		}
		if r := e.found("k"); strings.Contains(fmt.Sprintf("%s %s", r.Result.Body, r.Result.Head), secret) {
			e.Error("the text of the failure is on record")
		}
	},
	"a tombstone": func(e *encrypted) {
		p := e.process("a", nil)
		p.post("k", "size=9000000")
		w := p.post("k")
		if w.Code != http.StatusUnprocessableEntity && w.Code != http.StatusConflict {
			e.Errorf("%d %s", w.Code, w.Body)
		}
		w = p.post("k", "size=9000000")
		if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), `"reference":"/orders/`+secret) {
			e.Errorf("%d %s", w.Code, w.Body)
		}
		if r := e.found("k"); !r.Result.Tombstone || r.Result.Reference != "" {
			e.Errorf("on record is %+v", r.Result)
		}
		e.process("b", nil).refusedFor("k", "size=9000000")
	},
	"bodies of every length": func(e *encrypted) {
		p := e.process("a", nil)
		n := int64(0)
		for _, size := range []int{1, 1 << 10, 1<<10 + 1, semel.PieceBytes - 28, semel.PieceBytes - 27, semel.PieceBytes, semel.PieceBytes + 1, 2*semel.PieceBytes - 56, 3<<20 + 7} {
			key, arg := fmt.Sprint("k", size), fmt.Sprint("size=", size)
			first := p.post(key, arg)
			if n++; first.Code != http.StatusCreated || !bytes.Equal(first.Body.Bytes(), answerOf(int(n), size)) {
				e.Errorf("%d: %d, %d bytes", size, first.Code, first.Body.Len())
			}
			e.same(p.post(key, arg), first)
			w := p.get(e.status(key) + "/result")
			if w.Code != first.Code || !bytes.Equal(w.Body.Bytes(), first.Body.Bytes()) {
				e.Errorf("%d: the result is %d, %d bytes", size, w.Code, w.Body.Len())
			}
		}
	},
	"waiting": func(e *encrypted) {
		e.begun, e.wait = make(chan struct{}), make(chan struct{})
		p, q := e.process("ab", nil), e.process("ba", nil)
		var first, second *httptest.ResponseRecorder
		var both sync.WaitGroup
		both.Go(func() { first = p.post("k") })
		<-e.begun
		both.Go(func() { second = q.post("k", "Prefer: wait=30") })
		close(e.wait)
		both.Wait()
		e.same(second, first)
	},
	"accepted": func(e *encrypted) {
		e.begun, e.wait = make(chan struct{}), make(chan struct{})
		p := e.process("a", nil)
		var first *httptest.ResponseRecorder
		var done sync.WaitGroup
		done.Go(func() { first = p.post("k") })
		<-e.begun
		w := p.post("k")
		close(e.wait)
		done.Wait()
		if e.s.transactional { // nobody sees the record before its end
			if w.Code != http.StatusConflict {
				e.Errorf("%d %s", w.Code, w.Body)
			}
		} else if w.Code != http.StatusAccepted || w.Header().Get("Location") != e.status("k") {
			e.Errorf("%d %v", w.Code, w.Header())
		}
		if w = p.get(e.status("k")); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"reference":"/orders/`+secret) || !strings.Contains(w.Body.String(), `"retained":true`) {
			e.Errorf("the status is %d %s", w.Code, w.Body)
		}
		e.same(p.get(e.status("k")+"/result"), first)
	},
	"resolved with a result": func(e *encrypted) {
		e.strand("k", time.Hour, func(c semel.Claim) error { return c.Hold(e.Context(), "cut off") })
		p := e.process("a", nil)
		res, err := semelhttp.EncodeResult("POST", 201, http.Header{"X-Secret": {secret}}, nil, []byte(secret))
		if err != nil {
			e.Fatal(err)
		}
		after, err := p.guard.Resolve(e.Context(), semel.Resolution{Identity: identityOf("k"), Fence: e.found("k").Fence, Decision: semel.DecideResult, Result: res, Cause: "looked"})
		if err != nil || string(after.Result.Body) != secret || after.Result.Codec != semelhttp.CodecHTTP {
			e.Errorf("%+v, %v", after, err)
		}
		if w := p.post("k"); w.Code != 201 || w.Body.String() != secret {
			e.Errorf("%d %s", w.Code, w.Body)
		}
		if r := e.found("k"); r.Result.Codec != "encrypted/1:a" || bytes.Contains(r.Result.Body, []byte(secret)) {
			e.Errorf("on record is %+v", r.Result)
		}
		e.process("b", nil).refused("k")
	},
	"crash and takeover": func(e *encrypted) {
		e.strand("k", 50*time.Millisecond, nil)
		p := e.process("a", func(c *semel.Config) { c.Policy.OnCrash = semel.CrashRetry })
		w := p.post("k")
		for w.Code == http.StatusConflict || w.Code == http.StatusAccepted { // until the lease lapses
			w = p.post("k")
		}
		if w.Code != http.StatusCreated {
			e.Errorf("%d %s", w.Code, w.Body)
		}
		e.same(p.post("k"), w)
	},
	"reconciled": func(e *encrypted) {
		e.strand("k", 50*time.Millisecond, nil)
		res, _ := semelhttp.EncodeResult("POST", 200, nil, nil, []byte(secret))
		p := e.process("a", func(c *semel.Config) {
			c.Policy.OnCrash = semel.CrashReconcile
			c.Policy.Reconcile = func(context.Context, semel.Record) (semel.Finding, error) { return semel.FoundPresent(res), nil }
		})
		w := p.post("k")
		for w.Code == http.StatusConflict || w.Code == http.StatusAccepted {
			w = p.post("k")
		}
		if w.Code != http.StatusOK || w.Body.String() != secret || e.found("k").Result.Codec != "encrypted/1:a" {
			e.Errorf("%d %s", w.Code, w.Body)
		}
	},
	"rotation": func(e *encrypted) {
		p := e.process("", nil)
		none := p.post("none")
		p = e.process("a", nil)
		e.same(p.post("none"), none) // what was there before is replayed
		a := p.post("a")
		if err := p.cipher.Rotate(encryptionKeys("ba")...); err != nil {
			e.Fatal(err)
		}
		b := p.post("b", "size=600000")
		e.same(p.post("none"), none)
		e.same(p.post("a"), a)
		e.same(p.post("b", "size=600000"), b)
		if got := e.found("b").Result.Codec; got != "encrypted/1:b" {
			e.Error(got)
		}
		if err := p.cipher.Rotate(encryptionKeys("b")...); err != nil {
			e.Fatal(err)
		}
		e.same(p.post("b", "size=600000"), b)
		p.refused("a")
		if p.cipher.Rotate() == nil || p.cipher.Rotate(encryptionKeys("cc")...) == nil {
			e.Error("a cipher without keys, or with two of one name")
		}
		e.same(p.post("b", "size=600000"), b)
	},
	"lost key": func(e *encrypted) {
		first := e.process("a", nil).post("k", "size=600000")
		for _, letters := range []string{"", "b", "bc"} {
			p := e.process(letters, nil)
			p.refusedFor("k", "size=600000")
		}
		wrong := e.process("b", nil)
		if err := wrong.cipher.Rotate(semel.EncryptionKey{Name: "a", Secret: bytes.Repeat([]byte("b"), 32)}); err != nil {
			e.Fatal(err)
		}
		wrong.refusedFor("k", "size=600000")
		e.same(e.process("ba", nil).post("k", "size=600000"), first) // it is put back
	},
	"tampered": func(e *encrypted) {
		e.process("a", nil).post("k", "size=900") // in one piece
		whole := e.s.store
		for what, edit := range map[string]func(r *semel.Result){
			"head":      func(r *semel.Result) { r.Head[len(r.Head)/2] ^= 1 },
			"salt":      func(r *semel.Result) { r.Head[0] ^= 1 },
			"no head":   func(r *semel.Result) { r.Head = nil },
			"body":      func(r *semel.Result) { r.Body[len(r.Body)-1] ^= 1 },
			"no body":   func(r *semel.Result) { r.Body = nil },
			"shorter":   func(r *semel.Result) { r.Body = r.Body[:len(r.Body)-1] },
			"longer":    func(r *semel.Result) { r.Body = append(r.Body, 0) },
			"codec":     func(r *semel.Result) { r.Codec = "encrypted/1:b" },
			"no key":    func(r *semel.Result) { r.Codec = "encrypted/1:" },
			"head cut":  func(r *semel.Result) { r.Head = r.Head[:40] },
			"body head": func(r *semel.Result) { r.Body = r.Head[32:] },
		} {
			e.s.store = edited{whole, func(r *semel.Record) {
				r.Result.Head, r.Result.Body = bytes.Clone(r.Result.Head), bytes.Clone(r.Result.Body)
				edit(&r.Result)
			}}
			p := e.process("ab", nil)
			before := e.Failed()
			p.refusedFor("k", "size=900")
			if e.Failed() && !before {
				e.Log("tampered with:", what)
			}
		}
		e.s.store = whole
	},
	"tampered pieces": func(e *encrypted) {
		p := e.process("a", nil)
		const size = "size=600000"
		first := p.post("k", size)
		if e.found("k").Result.Pieces == nil {
			return // a store that holds it as a whole
		}
		whole := e.s.store
		flip := func(piece, n int, b []byte) []byte {
			if b = bytes.Clone(b); n == piece {
				b[20] ^= 1
			}
			return b
		}
		for what, edit := range map[string]func(n int, read func(int) []byte) []byte{
			"the first":     func(n int, read func(int) []byte) []byte { return flip(0, n, read(n)) },
			"two exchanged": func(n int, read func(int) []byte) []byte { return read([]int{1, 0, 2}[n]) },
			"the last":      func(n int, read func(int) []byte) []byte { return flip(2, n, read(n)) },
			"one twice":     func(n int, read func(int) []byte) []byte { return read([]int{0, 0, 2}[n]) },
		} {
			e.s.store = edited{whole, func(r *semel.Record) {
				read := r.Result.Pieces.Read
				r.Result.Pieces = &semel.Pieces{Size: r.Result.Pieces.Size, Read: func(ctx context.Context, n int) (_ []byte, err error) {
					return edit(n, func(n int) (b []byte) {
						b, err = read(ctx, n)
						return b
					}), err
				}}
			}}
			p = e.process("a", nil)
			if what != "the last" { // what is sent first has a part of the second
				p.refusedFor("k", size)
				continue
			}
			func() { // it is cut off where it is not what was recorded
				defer func() {
					if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // a panic's value
						e.Errorf("the answer ended with %v", v)
					}
				}()
				if w := p.post("k", size); w.Body.Len() >= first.Body.Len() {
					e.Error("a changed body was passed on")
				}
			}()
		}
		e.s.store = whole
	},
	"copied to another record": func(e *encrypted) {
		p := e.process("a", nil)
		p.post("victim")
		p.post("k")
		from, whole := e.found("victim").Result, e.s.store
		e.s.store = edited{whole, func(r *semel.Record) { r.Result = from }}
		e.process("a", nil).refused("k")
		e.s.store = whole
	},
	"two gateways with keys of their own": func(e *encrypted) {
		p, q := e.process("a", nil), e.process("b", nil)
		byP, byQ := p.post("p"), q.post("q")
		q.refused("p")
		p.refused("q")
		for _, g := range []*gatewayOf{p, q} { // both learn the other's
			if err := g.cipher.Rotate(encryptionKeys("ab")...); err != nil {
				e.Fatal(err)
			}
			e.same(g.post("p"), byP)
			e.same(g.post("q"), byQ)
		}
	},
	"erased": func(e *encrypted) {
		p := e.process("a", nil)
		p.post("k")
		if _, err := p.guard.EraseWhere(e.Context(), semel.BulkErasure{Where: semel.Filter{Actor: "alice"}, Cause: "asked"}); err != nil {
			e.Fatal(err)
		}
		for _, letters := range []string{"a", "b", ""} {
			if w := e.process(letters, nil).post("k"); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), semelhttp.ProblemResultNotRetained.Type()) {
				e.Errorf("%d %s", w.Code, w.Body)
			}
		}
	},
	"retention over": func(e *encrypted) {
		short := func(c *semel.Config) {
			c.Policy.Deadline, c.Policy.Retention = 2*time.Second, 2*time.Second
		}
		e.process("a", short).post("k")
		p := e.process("b", nil) // which cannot read it, and need not
		w := p.post("k")
		for w.Code == http.StatusServiceUnavailable {
			time.Sleep(20 * time.Millisecond)
			w = p.post("k")
		}
		if w.Code != http.StatusCreated || e.execs.Load() != 2 {
			e.Errorf("%d %s", w.Code, w.Body)
		}
		e.execs.Add(-1)
		sweeper, ok := e.s.store.(semel.Sweeper)
		if !ok {
			e.Fatalf("%T is no Sweeper", e.s.store)
		}
		if _, err := sweeper.Sweep(e.Context(), 10); err != nil {
			e.Error(err)
		}
	},
}

// refusedFor is refused for a request of another form, which has no status asked.
func (p *gatewayOf) refusedFor(key string, more ...string) {
	p.Helper()
	before := p.execs.Load()
	for _, w := range []*httptest.ResponseRecorder{p.post(key, more...), p.get(p.status(key) + "/result")} {
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), semelhttp.ProblemResultUnreadable.Type()) || strings.Contains(w.Body.String(), secret) {
			p.Errorf("%d %v %.300s", w.Code, w.Header(), w.Body)
		}
	}
	if p.execs.Load() != before {
		p.Error("it was executed")
	}
}

// strand leaves a record behind, as a process that died would.
func (e *encrypted) strand(key string, lease time.Duration, then func(semel.Claim) error) {
	e.Helper()
	c, err := e.s.store.Begin(e.Context(), semel.NewAttempt(identityOf(key), semel.Fingerprint{}, lease, time.Hour))
	if err == nil && then != nil {
		err = then(c)
	}
	if err != nil {
		e.Fatal(err)
	}
}

// Whatever becomes of an encrypted result, over every store: it is replayed exactly,
// or it is said that it cannot be read, and nothing is executed twice.
func TestEncrypted(t *testing.T) {
	t.Parallel()
	// A transaction that was not committed leaves no record behind.
	stranding := []string{"resolved with a result", "crash and takeover", "reconciled"}
	for name, fresh := range map[string]func(testing.TB) *subject{
		"memory":                 newMemory,
		"sqlite":                 newSQLite,
		"sqlite transactional":   newSQLiteTx,
		"postgres":               func(t testing.TB) *subject { return newPostgres(t, kind{}) },
		"postgres transactional": func(t testing.TB) *subject { return newPostgres(t, kind{transactional: true}) },
	} {
		transactional := strings.HasSuffix(name, " transactional")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, play := range encryptedCases {
				if transactional && slices.Contains(stranding, name) {
					continue
				}
				t.Run(name, func(t *testing.T) {
					e := &encrypted{T: t, s: fresh(t)}
					play(e)
					// Each execution had its effect under a key of its own, but
					// where the retention was over.
					for key := range strings.FieldsSeq("k p q a b none victim") {
						done, err := e.s.effects(key)
						if err != nil || len(done) > 1 && name != "retention over" {
							t.Errorf("key %s has the effects %v, %v", key, done, err)
						}
					}
				})
			}
		})
	}
}

// What a database holds, in whatever file or table, has nothing of an encrypted
// result, nor of a journal of steps. Without encryption it has, so the search finds
// what there is to find.
func TestEncryptedBytesAreAllThereIs(t *testing.T) {
	t.Parallel()
	use := func(t *testing.T, s store, journals steps.Store, cipher *semel.Cipher) {
		guard, err := semel.New(semel.Config{Store: s, Cipher: cipher})
		if err != nil {
			t.Fatal(err)
		}
		for i, size := range []int{0, 3 * semel.PieceBytes} {
			out, err := guard.Do(t.Context(), semel.Submit{Identity: identityOf(fmt.Sprint("k", i))}, func(context.Context) (semel.Result, error) {
				r := semel.Result{Codec: "test/1", Head: []byte(secret), Reference: secret, Label: "201"}
				if body := answerOf(i, size); size == 0 {
					r.Body = body
				} else {
					r.Pieces = &semel.Pieces{Size: int64(len(body)), Read: func(_ context.Context, n int) ([]byte, error) {
						return body[n*semel.PieceBytes:][:r.Pieces.Length(n)], nil
					}}
				}
				return r, nil
			})
			if err != nil || out.Answer != semel.AnswerExecuted {
				t.Fatal(out, err)
			}
		}
		if journals == nil {
			return
		}
		j, err := steps.New(steps.Config{Store: journals, Cipher: cipher})
		if err != nil {
			t.Fatal(err)
		}
		echo := func(_ context.Context, s string) (string, error) { return s + s, nil }
		if _, err := guard.Do(t.Context(), semel.Submit{Identity: identityOf("steps")}, func(ctx context.Context) (semel.Result, error) {
			out, err := steps.Run(ctx, j, secret, func(ctx context.Context, in string) (string, error) {
				if _, err := steps.Local(ctx, "local", in, echo); err != nil {
					return "", err
				}
				return steps.Remote(ctx, "remote", steps.Policy{}, in, echo)
			})
			return semel.Result{Body: []byte(out)}, err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, with := range []bool{false, true} {
		var cipher *semel.Cipher
		if with {
			var err error
			if cipher, err = semel.NewCipher(encryptionKeys("a")...); err != nil {
				t.Fatal(err)
			}
		}
		check := func(t *testing.T, where string, found bool) {
			if found == with {
				t.Errorf("the payload is in %s: %v, with encryption: %v", where, found, with)
			}
		}
		t.Run(fmt.Sprint("sqlite/", with), func(t *testing.T) {
			s, path := openSQLite(t, sqlite.ModeLeased)
			use(t, s, s.Steps(), cipher)
			var all []byte
			files, _ := filepath.Glob(path + "*")
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, b...)
			}
			if len(files) < 2 {
				t.Errorf("the files are %v; there should be a log", files)
			}
			check(t, strings.Join(files, ", "), bytes.Contains(all, []byte(secret)))
			countPlain(t, with, "SELECT count(*) FROM record WHERE state = 2 AND coalesce(codec, '') NOT LIKE 'encrypted/1:%'", func(q string) (n int, err error) {
				db, err := sql.Open("sqlite", path)
				if err != nil {
					return 0, err
				}
				err = db.QueryRow(q).Scan(&n)
				return n, errors.Join(err, db.Close())
			})
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		for _, mode := range []postgres.Mode{postgres.ModeLeased, postgres.ModeTransactional} {
			t.Run(fmt.Sprint("postgres/", mode, "/", with), func(t *testing.T) {
				url := testenv.Postgres(t)
				pool, err := pgxpool.New(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				s, err := postgres.New(t.Context(), pool, postgres.Config{Mode: mode})
				if err != nil {
					t.Fatal(err)
				}
				var journals steps.Store
				if mode == postgres.ModeLeased {
					journals = s.Steps()
				}
				use(t, s, journals, cipher)
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
				found := false
				rows, err := pool.Query(t.Context(), `SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
				var tables []string
				for rows.Next() {
					var name string
					err = errors.Join(err, rows.Scan(&name))
					tables = append(tables, name)
				}
				if err != nil || len(tables) < 3 {
					t.Fatal(tables, err)
				}
				c, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Release()
				for _, table := range tables {
					var dump bytes.Buffer
					if _, err := c.Conn().PgConn().CopyTo(t.Context(), &dump, "COPY "+table+" TO STDOUT (FORMAT binary)"); err != nil {
						t.Fatal(err)
					}
					if found = found || bytes.Contains(dump.Bytes(), []byte(secret)); found {
						check(t, table, found)
						break
					}
				}
				check(t, "any table", found)
				countPlain(t, with, "SELECT count(*) FROM semel.record WHERE state = 2 AND coalesce(codec, '') NOT LIKE 'encrypted/1:%'", func(q string) (n int, err error) {
					return n, pool.QueryRow(t.Context(), q).Scan(&n)
				})
			})
		}
	}
}

// countPlain asks as docs/operations.md does how many results are not encrypted.
func countPlain(t *testing.T, with bool, query string, ask func(string) (int, error)) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(query)) {
		t.Errorf("docs/operations.md does not have the query %s", query)
	}
	if n, err := ask(query); err != nil || (n == 0) != with {
		t.Errorf("%d results are not encrypted, %v", n, err)
	}
}
