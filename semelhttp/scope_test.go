package semelhttp_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// The same key elsewhere is another identity, and here it is the same.
func TestScopes(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, effects), false)
	type id struct{ tenant, actor, method, path string }
	ask := func(i id) answer {
		r := newRequest(t, i.method, s.URL+i.path, "k", "{}")
		r.Header.Set("Tenant", i.tenant)
		r.Header.Set("Actor", i.actor)
		return mustSend(t, s, r)
	}
	long := strings.Repeat("/é", 200)
	for i, id := range []id{
		{"t1", "alice", "POST", "/orders"},
		{"t2", "alice", "POST", "/orders"},
		{"t1", "bob", "POST", "/orders"},
		{"t1", "alice", "PATCH", "/orders"},
		{"t1", "alice", "POST", "/payments"},
		{"t1", "alice", "POST", long},
		{"t1", "alice", "POST", long + "a"},
		{"t1", "alice", "POST", "/%0a"},
		{"t1", "alice", "POST", "/%ff"},
	} {
		first, second := ask(id), ask(id)
		want := fmt.Sprintf(`{"id":%d}`, i+1)
		if first.status != http.StatusCreated || first.body != want || first.replayed() {
			t.Errorf("%v: first answer is %d %s, replayed %v", id, first.status, first.body, first.replayed())
		}
		if second.status != http.StatusCreated || second.body != want || !second.replayed() {
			t.Errorf("%v: second answer is %d %s, replayed %v", id, second.status, second.body, second.replayed())
		}
	}
	effects.want(t, 9)
}

// Another caller's key leaves no trace in an answer, whatever state its record is
// in: it is the answer to a key that nobody has used.
func TestAnotherCallersKeyIsLikeANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(h http.Handler, actor, key, body string) answer {
			r := newRequest(t, http.MethodPost, "http://shop.example/orders", key, body)
			r.Header.Set("Actor", actor)
			return directRequest(h, r)
		}
		goOn := make(chan struct{})
		newHandler := func() http.Handler {
			return newFixture(t).protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Actor") == "mallory" {
					_, _ = io.WriteString(w, "mallory's own")
					return
				}
				switch body, _ := io.ReadAll(r.Body); string(body) {
				case "running":
					<-goOn
				case "unknown":
					semelhttp.DeclareIndeterminate(r.Context(), "cut off")
				case "tombstone":
					_, _ = w.Write(make([]byte, 1000))
				}
				_, _ = io.WriteString(w, "secret")
			}), func(c *semelhttp.Config) { c.MaxResult = 100 })
		}
		h := newHandler()
		fresh := ask(newHandler(), "mallory", "unused", "completed")
		for _, state := range []string{"completed", "running", "unknown", "tombstone"} {
			go ask(h, "alice", state, state)
			synctest.Wait()
			wantEqual(t, state, ask(h, "mallory", state, state), fresh)
		}
		close(goOn)
		synctest.Wait()
	})
}

func TestScopeRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error
		status int
		retry  semel.RetryAdvice
	}{
		{"any error", errors.New("secret reason"), 401, semel.RetrySameKey},
		{"no status", &semelhttp.ScopeError{Err: errors.New("secret reason")}, 401, semel.RetrySameKey},
		{"status of no error", &semelhttp.ScopeError{Status: 200}, 401, semel.RetrySameKey},
		{"401", &semelhttp.ScopeError{Status: 401, Header: http.Header{"Www-Authenticate": {"Bearer"}}}, 401, semel.RetrySameKey},
		{"403", fmt.Errorf("wrapped: %w", &semelhttp.ScopeError{Status: 403, Err: errors.New("secret reason")}), 403, semel.RetryNo},
		{"503", &semelhttp.ScopeError{Status: 503}, 503, semel.RetrySameKey},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			h := b.protect(t, effects, func(c *semelhttp.Config) {
				c.Scope = func(*http.Request) (semel.Scope, error) { return semel.Scope{}, tc.err }
			})
			a := direct(t, h, "k", "{}")
			p := a.problem(t)
			if a.status != tc.status || p.Status != tc.status || p.Retry != tc.retry || strings.Contains(a.body, "secret") {
				t.Errorf("got %d %s", a.status, a.body)
			}
			if tc.name == "401" && a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Error("the challenge is missing")
			}
			effects.want(t, 0)
		})
	}
}

func TestScopeThatIsNoIdentity(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	h := b.protect(t, effects, func(c *semelhttp.Config) {
		c.Scope = func(*http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: strings.Repeat("a", 256), Operation: "o"}, nil
		}
	})
	if a := direct(t, h, "k", "{}"); a.status != http.StatusInternalServerError || a.problem(t).Retry != semel.RetryNo {
		t.Errorf("got %d %s", a.status, a.body)
	}
	effects.want(t, 0)
}

func TestOriginIsOnTheTrail(t *testing.T) {
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, &orders{}), false)
	r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")
	r.Header.Set("X-Request-Id", "req-1")
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	mustSend(t, s, r)
	entries, err := b.store.Trail(t.Context(), semel.TrailFilter{RequestID: "req-1", TraceID: "0af7651916cd43dd8448eb211c80319c"})
	if err != nil || len(entries) != 1 || entries[0].Kind != semel.TrailExecuted || entries[0].Label != "201" || entries[0].Operation != "POST /orders" {
		t.Errorf("got %+v, %v", entries, err)
	}
}
