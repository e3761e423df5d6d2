package semelhttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// keyOfFirstLine takes a body's first line for the key, and the second for what
// is asked.
func keyOfFirstLine(_ *http.Request, body []byte) (string, semel.Fingerprint, error) {
	key, rest, ok := strings.Cut(string(body), "\n")
	if !ok {
		return "", semel.Fingerprint{}, &semelhttp.ScopeError{
			Status: http.StatusTeapot, Header: http.Header{"X-Why": {"no line"}}, Detail: "There is no first line.",
			Err: errors.New("inner"),
		}
	}
	asked, _, _ := strings.Cut(rest, "\n")
	if asked == "" {
		return key, semel.Fingerprint{}, nil
	}
	return key, semel.FingerprintOf([]byte(asked)), nil
}

func TestKeyOf(t *testing.T) {
	b := newFixture(t)
	var o orders
	s, _ := serve(t, b.protect(t, &o, func(c *semelhttp.Config) { c.KeyOf = keyOfFirstLine }), false)

	if a := post(t, s, "", "order 1\nred\nfirst try"); a.status != 201 || a.replayed() {
		t.Fatalf("got %+v", a)
	}
	// The key header is another's, and the body differs where it does not count.
	if a := post(t, s, "k2", "order 1\nred\nsecond try"); a.status != 201 || !a.replayed() {
		t.Fatalf("got %+v", a)
	}
	o.want(t, 1)
	post(t, s, "", "order 1\nblue").want(t, semelhttp.ProblemKeyMismatch)
	if a := post(t, s, "", "order 2\nred"); a.status != 201 || a.replayed() {
		t.Fatalf("got %+v", a)
	}
	o.want(t, 2)

	// Without a fingerprint of its own the configured one counts.
	if a := post(t, s, "", "order 3\n"); a.status != 201 {
		t.Fatalf("got %+v", a)
	}
	post(t, s, "", "order 3\n\nmore").want(t, semelhttp.ProblemKeyMismatch)
	o.want(t, 3)

	a := post(t, s, "k", "no line")
	p := a.problem(t)
	if a.status != http.StatusTeapot || p.Detail != "There is no first line." || a.header.Get("X-Why") != "no line" || strings.Contains(a.body, "inner") {
		t.Fatalf("got %d %v %s", a.status, a.header, a.body)
	}
	o.want(t, 3)
}

// TestKeyOfGetsLargeBodiesOneAtATime: else every connection could have a body of
// the largest size held in memory. Who waits for a turn and goes away holds
// nothing up.
func TestKeyOfGetsLargeBodiesOneAtATime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		const size = 1<<20 + 2
		var now, most, called atomic.Int32
		release := make(chan struct{})
		h := b.protect(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
				t.Errorf("the handler got %d bytes: %v", n, err)
			}
		}), func(c *semelhttp.Config) {
			c.Spools = spools
			c.KeyOf = func(_ *http.Request, body []byte) (string, semel.Fingerprint, error) {
				n := now.Add(1)
				defer now.Add(-1)
				called.Add(1)
				most.Store(max(most.Load(), n))
				if len(body) != size {
					t.Errorf("KeyOf got %d bytes", len(body))
				}
				<-release
				return string(body[:1]), semel.Fingerprint{}, nil
			}
		})
		large := func(ctx context.Context, key string) answer {
			r := newRequest(t, http.MethodPost, "http://shop.example/orders", "", key+"\n"+strings.Repeat("x", size-2))
			return directRequest(h, r.WithContext(ctx))
		}
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b", "c", "d"} {
			wg.Go(func() {
				if a := large(t.Context(), key); a.status != 200 {
					t.Errorf("got %d %s", a.status, a.body)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() { large(ctx, "e") })
		synctest.Wait()
		held := spools.Used()
		cancel()
		synctest.Wait()
		if spools.Used() >= held {
			t.Errorf("a client that went away holds its spool: %d bytes of %d", spools.Used(), held)
		}
		for range 4 {
			release <- struct{}{}
			synctest.Wait()
		}
		wg.Wait()
		if most.Load() != 1 || called.Load() != 4 {
			t.Errorf("%d calls, %d at a time; want 4, one at a time", called.Load(), most.Load())
		}
		if spools.Used() != 0 {
			t.Errorf("%d bytes are left in the spools", spools.Used())
		}
	})
}

func TestKeyOfThatPanicsLeavesNoSpool(t *testing.T) {
	b := newFixture(t)
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var o orders
	h := b.protect(t, &o, func(c *semelhttp.Config) {
		c.Spools = spools
		c.KeyOf = func(*http.Request, []byte) (string, semel.Fingerprint, error) { panic("hostile") }
	})
	for range 2 { // the second finds the way clear
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not come up")
				}
			}()
			direct(t, h, "", strings.Repeat("x", 1<<20))
		}()
	}
	if spools.Used() != 0 {
		t.Errorf("%d bytes are left in the spools", spools.Used())
	}
	o.want(t, 0)
}

func TestKeyOfWithoutAKeyExecutesNothing(t *testing.T) {
	b := newFixture(t)
	var o orders
	h := b.protect(t, &o, func(c *semelhttp.Config) {
		c.KeyOf = func(*http.Request, []byte) (string, semel.Fingerprint, error) { return "", semel.Fingerprint{}, nil }
	})
	if a := direct(t, h, "k", "{}"); a.status != 500 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	o.want(t, 0)
}

func TestKeyOfContradictsOtherKeys(t *testing.T) {
	b := newFixture(t)
	_, err := semelhttp.New(semelhttp.Config{Guard: b.guard, Scope: tester, KeyOf: keyOfFirstLine, Contract: semelhttp.OASIS()})
	if err == nil || !strings.Contains(err.Error(), "KeyOf") {
		t.Errorf("got %v", err)
	}
}

func TestResultNotRetainedCanBeTold200(t *testing.T) {
	b := newFixture(t)
	contract := semelhttp.IETF()
	contract.Status = map[semelhttp.ProblemCase]int{semelhttp.ProblemResultNotRetained: http.StatusOK}
	var o orders
	h := b.protect(t, &o, func(c *semelhttp.Config) { c.Contract, c.MaxResult = contract, 1 })
	if a := direct(t, h, "k", "{}"); a.status != 201 {
		t.Fatalf("got %d", a.status)
	}
	if a := direct(t, h, "k", "{}"); a.status != 200 || a.problem(t).Type != semelhttp.ProblemResultNotRetained.Type() {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	o.want(t, 1)

	contract.Status[semelhttp.ProblemKeyMismatch] = http.StatusOK
	if _, err := semelhttp.New(semelhttp.Config{Guard: b.guard, Scope: tester, Contract: contract}); err == nil {
		t.Error("a mismatch can be told as a success")
	}
}

// TestWithholdKeepsTheStatusToo: a sender that sees the head of an answer may not
// wait for what becomes of the rest.
func TestWithholdKeepsTheStatusToo(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter){
		"stream": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		},
		"large":     func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("x", 1<<20)) },
		"announced": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "1048576"); write(w, 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			var seen *httptest.ResponseRecorder
			panics := true
			h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				write(w)
				if len(seen.Result().Header) > 0 || seen.Body.Len() > 0 {
					t.Errorf("the client saw %v and %d bytes before the record", seen.Result().Header, seen.Body.Len())
				}
				if panics {
					panic("after the answer")
				}
			}), func(c *semelhttp.Config) { c.Withhold, c.MaxResult = true, 1<<10 })
			try := func(key string) *httptest.ResponseRecorder {
				defer func() { _ = recover() }()
				seen = httptest.NewRecorder()
				h.ServeHTTP(seen, newRequest(t, http.MethodPost, "http://shop.example/orders", key, "{}"))
				return seen
			}
			if try("a"); seen.Code/100 == 2 && seen.Body.Len() > 0 {
				t.Errorf("got %d for an execution that panicked", seen.Code)
			}
			panics = false
			if try("b"); seen.Code != 200 || seen.Body.Len() == 0 {
				t.Errorf("got %d with %d bytes", seen.Code, seen.Body.Len())
			}
		})
	}
}

func write(w io.Writer, n int) { _, _ = io.WriteString(w, strings.Repeat("x", n)) }

// TestReleasedSwitchIsNotToldAsCompleted: 101 leaves a tombstone otherwise.
func TestReleasedSwitchIsNotToldAsCompleted(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
	}), func(c *semelhttp.Config) { c.NoEffectStatus = func(int, http.Header) bool { return true } })
	if a := direct(t, h, "k", "{}"); a.status != 500 || strings.Contains(a.body, "completed") {
		t.Errorf("got %d %s", a.status, a.body)
	}
}
