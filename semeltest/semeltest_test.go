package semeltest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// shop is a service with one operation.
type shop struct {
	policy  semel.Policy
	http    semelhttp.Config
	handler http.HandlerFunc // default: adds an order
	outer   func(semel.Store, *semel.Guard, http.Handler) http.Handler
	count   func(orders int) int

	orders atomic.Int64
}

func (s *shop) add(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", fmt.Sprint("/orders/", s.orders.Add(1)))
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, "thank you")
}

// service returns the shop on a store in memory.
func (s *shop) service(t testing.TB) Service {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	handler := s.handler
	if handler == nil {
		handler = s.add
	}
	return Service{
		Start: func(wrap func(semel.Store) semel.Store) (http.Handler, func(), error) {
			store := wrap(store)
			guard, err := semel.New(semel.Config{Store: store, Policy: s.policy})
			if err != nil {
				return nil, nil, err
			}
			if s.outer != nil {
				return s.outer(store, guard, handler), nil, nil
			}
			c := s.http
			c.Guard = guard
			c.Scope = func(*http.Request) (semel.Scope, error) {
				return semel.Scope{Actor: "alice", Operation: "orders.create"}, nil
			}
			protect, err := semelhttp.New(c)
			if err != nil {
				return nil, nil, err
			}
			return protect(handler), nil, nil
		},
		Request: func(key string) (*http.Request, error) {
			r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"item":"book"}`))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set(semelhttp.HeaderKey, key)
			return r, nil
		},
		Effects: func() (int, error) {
			n := int(s.orders.Load())
			if s.count != nil {
				n = s.count(n)
			}
			return n, nil
		},
	}
}

// failures runs all checks on services made by make, and returns the errors of
// those that fail.
func failures(t *testing.T, make func() *shop) map[string]error {
	t.Helper()
	failed := map[string]error{}
	c := Config{Virtual: true, New: func(t testing.TB) Service { return make().service(t) }}
	for _, k := range checks {
		if err := c.check(t, k); err != nil {
			failed[k.name] = err
		}
	}
	return failed
}

func TestProtectedServicePasses(t *testing.T) {
	Run(t, Config{Virtual: true, New: func(t testing.TB) Service { return new(shop).service(t) }})
}

// A handler that the crash leaves unknown is taken over: fine where the effect
// is idempotent itself.
func TestRetryWithAnIdempotentEffectPasses(t *testing.T) {
	Run(t, Config{Virtual: true, New: func(t testing.TB) Service {
		var seen sync.Map
		s := &shop{policy: semel.Policy{OnCrash: semel.CrashRetry}}
		s.handler = func(w http.ResponseWriter, r *http.Request) {
			x, _ := semel.CurrentExecution(r.Context())
			if _, again := seen.LoadOrStore(x.Identity().Key, true); !again {
				s.orders.Add(1)
			}
		}
		return s.service(t)
	}})
}

// Every check fails on a handler without protection.
func TestUnprotectedHandlerFailsEveryCheck(t *testing.T) {
	failed := failures(t, func() *shop {
		return &shop{outer: func(_ semel.Store, _ *semel.Guard, h http.Handler) http.Handler { return h }}
	})
	for _, k := range checks {
		err := failed[k.name]
		if err == nil {
			t.Errorf("%s passes", k.name)
			continue
		}
		// It cannot be made to crash: that needs the store.
		if errors.Is(err, ErrInconclusive) != (k.name == "crash") {
			t.Errorf("%s: %v", k.name, err)
		}
	}
}

// only requires that exactly these checks fail, with these words.
func only(t *testing.T, failed map[string]error, want map[string]string) {
	t.Helper()
	for _, k := range checks {
		switch err, text := failed[k.name], want[k.name]; {
		case err == nil && text == "":
		case err == nil:
			t.Errorf("%s passes; want %q", k.name, text)
		case text == "", !strings.Contains(err.Error(), text):
			t.Errorf("%s: %v; want %q", k.name, err, text)
		}
	}
}

// Looking first and acting then is no protection against two at once.
func TestCheckThenActFails(t *testing.T) {
	failed := failures(t, func() *shop {
		s := &shop{}
		s.outer = func(_ semel.Store, _ *semel.Guard, h http.Handler) http.Handler {
			var seen sync.Map
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key := r.Header.Get(semelhttp.HeaderKey)
				if _, found := seen.Load(key); found {
					w.Header().Set(semelhttp.HeaderReplayed, "true")
					w.WriteHeader(http.StatusCreated)
					return
				}
				time.Sleep(time.Millisecond)
				s.orders.Add(1)
				seen.Store(key, true)
				w.WriteHeader(http.StatusCreated)
			})
		}
		return s
	})
	if failed["repeat"] != nil {
		t.Errorf("repeat: %v", failed["repeat"])
	}
	if err := failed["parallel"]; err == nil || errors.Is(err, ErrInconclusive) || !strings.Contains(err.Error(), "10 times at once") {
		t.Errorf("parallel: %v", err)
	}
}

// The policy "retry" is not for effects that are not idempotent.
func TestRetryWithoutAnIdempotentEffectFails(t *testing.T) {
	failed := failures(t, func() *shop { return &shop{policy: semel.Policy{OnCrash: semel.CrashRetry}} })
	only(t, failed, map[string]string{"crash": "died before complete"})
}

// A body that takes no part in the fingerprint lets another request pass as
// the same.
func TestBlindFingerprintFails(t *testing.T) {
	failed := failures(t, func() *shop {
		s := &shop{}
		s.outer = func(_ semel.Store, g *semel.Guard, h http.Handler) http.Handler { return sloppy(g, h, false) }
		return s
	})
	only(t, failed, map[string]string{"altered": "want key-mismatch"})
}

// An execution that ends with its client, and is released then, is executed
// again.
func TestReleaseOnDisconnectFails(t *testing.T) {
	failed := failures(t, func() *shop {
		s := &shop{}
		s.outer = func(_ semel.Store, g *semel.Guard, h http.Handler) http.Handler { return sloppy(g, h, true) }
		return s
	})
	if err := failed["lost-answer"]; err == nil || errors.Is(err, ErrInconclusive) || !strings.Contains(err.Error(), "effects") {
		t.Errorf("lost-answer: %v", err)
	}
	if failed["repeat"] != nil {
		t.Errorf("repeat: %v", failed["repeat"])
	}
}

// sloppy is a middleware without fingerprints, which may release a claim whose
// client is gone.
func sloppy(g *semel.Guard, h http.Handler, release bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := semel.Submit{Identity: semel.Identity{
			Scope: semel.Scope{Operation: "orders.create"}, Key: r.Header.Get(semelhttp.HeaderKey),
		}}
		out, err := g.Do(r.Context(), s, func(context.Context) (semel.Result, error) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			if release && r.Context().Err() != nil {
				return semel.Result{}, semel.NoEffect(r.Context().Err())
			}
			return semel.Result{Body: rec.Body.Bytes()}, nil
		})
		switch {
		case errors.Is(err, semel.ErrInProgress):
			semelhttp.ProblemInProgress.Problem().Write(w)
		case errors.Is(err, semel.ErrUnknown):
			semelhttp.ProblemOutcomeUnknown.Problem().Write(w)
		case err != nil:
			semelhttp.ProblemStoreUnavailable.Problem().Write(w)
		default:
			if out.Answer == semel.AnswerReplayed {
				w.Header().Set(semelhttp.HeaderReplayed, "true")
			}
			_, _ = w.Write(out.Result.Body)
		}
	})
}

// A replay that differs from the first response.
func TestUnstableReplayFails(t *testing.T) {
	failed := failures(t, func() *shop {
		s := &shop{}
		s.outer = func(_ semel.Store, g *semel.Guard, h http.Handler) http.Handler {
			protected := sloppy(g, h, false)
			var n atomic.Int64
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Count", fmt.Sprint(n.Add(1)))
				protected.ServeHTTP(w, r)
			})
		}
		return s
	})
	if err := failed["repeat"]; err == nil || !strings.Contains(err.Error(), "X-Count") {
		t.Errorf("repeat: %v", err)
	}
}

// Effects that cannot be seen, or that stop at one, prove nothing.
func TestBlindEffectsAreInconclusive(t *testing.T) {
	for name, count := range map[string]func(int) int{
		"none":      func(int) int { return 0 },
		"saturated": func(n int) int { return min(n, 1) },
		"double":    func(n int) int { return 2 * n },
		"saturated later": func(n int) int {
			return min(n, 2)
		},
	} {
		failed := failures(t, func() *shop { return &shop{count: count} })
		for _, k := range checks {
			if err := failed[k.name]; err == nil {
				t.Errorf("effects %s: %s passes", name, k.name)
			} else if name != "saturated" && name != "saturated later" && !errors.Is(err, ErrInconclusive) {
				t.Errorf("effects %s: %s: %v", name, k.name, err)
			}
		}
	}
}

// A service that asks to come back for ever is asked with pauses, and for as
// long as the patience lasts.
func TestEndlessRefusalEnds(t *testing.T) {
	for _, after := range []string{"", "0", "-1", "2"} {
		var asked, back atomic.Int64
		err := Config{Virtual: true, New: func(t testing.TB) Service {
			s := (&shop{outer: func(semel.Store, *semel.Guard, http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					asked.Add(1)
					p := semelhttp.ProblemStoreUnavailable.Problem()
					if after != "" {
						w.Header().Set("Retry-After", after)
					}
					p.Write(w)
				})
			}}).service(t)
			s.Advance = func(d time.Duration) error { // by a clock of its own
				if d < 0 {
					back.Add(1)
				}
				return nil
			}
			return s
		}}.check(t, checks[0])
		if err == nil || !strings.Contains(err.Error(), "still answered with 503") {
			t.Errorf("Retry-After %q: told %v", after, err)
		}
		if n := asked.Load(); n < 10 || n > 50 || back.Load() > 0 {
			t.Errorf("Retry-After %q: asked %d times in 30 s; the clock went back %d times", after, n, back.Load())
		}
	}
}

// The error names everything that is missing from a service at once.
func TestIncompleteServices(t *testing.T) {
	err := Config{New: func(testing.TB) Service { return Service{} }}.check(t, checks[0])
	for _, field := range []string{"Start", "Request", "Effects", "Advance"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("told %v; want %s in it", err, field)
		}
	}
	if err := (Config{}).check(t, checks[0]); err == nil {
		t.Error("a config without New is accepted")
	}
	// A store that is not wrapped cannot be watched.
	err = Config{Virtual: true, New: func(t testing.TB) Service {
		s := new(shop).service(t)
		start := s.Start
		s.Start = func(func(semel.Store) semel.Store) (http.Handler, func(), error) {
			return start(func(s semel.Store) semel.Store { return s })
		}
		return s
	}}.check(t, checks[0])
	if !errors.Is(err, ErrInconclusive) {
		t.Errorf("told %v", err)
	}
}

// In a service whose claims live in transactions an unknown outcome is wrong.
func TestUnknownFailsWhereClaimsAreTransactions(t *testing.T) {
	err := Config{Virtual: true, New: func(t testing.TB) Service {
		s := new(shop).service(t)
		s.Transactional = true
		return s
	}}.check(t, checks[len(checks)-1])
	if err == nil || !strings.Contains(err.Error(), "claims live in transactions") {
		t.Errorf("told %v", err)
	}
}

func TestAlteredMessages(t *testing.T) {
	for body, want := range map[string]string{
		`{"a":1}`: `{"semeltest":"altered","a":1}`,
		` { } `:   `{"semeltest":"altered"}`,
		`{}`:      `{"semeltest":"altered"}`,
		`a=b`:     `a=bx`,
		`[1]`:     `[1]x`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		m, err := render("k", r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.altered().body); got != want || string(m.body) != body {
			t.Errorf("%s becomes %s; want %s", body, got, want)
		}
	}
	for url, want := range map[string]string{"/orders": "/orders?semeltest=altered", "/orders?a=b": "/orders?a=b&semeltest=altered"} {
		m, err := render("k", httptest.NewRequest(http.MethodPost, url, nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.altered().url.String(); got != want || m.url.String() != url {
			t.Errorf("%s becomes %s; want %s", url, got, want)
		}
	}
}
