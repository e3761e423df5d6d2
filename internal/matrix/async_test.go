package matrix

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// Prefer: respond-async is the client's to send. Where the transaction is that of
// who stands around the protection, who commits it with the answer, it must not
// have that answer before the handler has done all it does.
func TestRespondAsyncCommitsNoHalf(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]kind{
		"transactional": {transactional: true, sessions: true},
		"joined":        {transactional: true, sessions: true, joined: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPostgres(t, k)
			guard, err := semel.New(semel.Config{Store: s.store})
			if err != nil {
				t.Fatal(err)
			}
			scope := func(*http.Request) (semel.Scope, error) { return semel.Scope{Operation: "orders"}, nil }
			resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: guard, Scope: scope})
			if err != nil {
				t.Fatal(err)
			}
			protect, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: scope, Resources: resources})
			if err != nil {
				t.Fatal(err)
			}
			half, goOn := make(chan struct{}), make(chan struct{})
			h := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for i := range 2 {
					if err := s.effect(r.Context(), "k", 1, i+1); err != nil {
						t.Errorf("half %d: %v", i+1, err)
					}
					if i == 0 {
						close(half)
						<-goOn
					}
				}
				w.WriteHeader(http.StatusCreated)
			}))
			if s.around != nil {
				h = s.around(h, &run{})
			}
			server := httptest.NewServer(h)
			defer server.Close()
			ask := func() int {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return 0
				}
				req.Header.Set("Idempotency-Key", "k")
				req.Header.Set("Prefer", "respond-async")
				resp, err := server.Client().Do(req)
				if err != nil {
					t.Error(err)
					return 0
				}
				defer func() { _ = resp.Body.Close() }()
				_, _ = io.Copy(io.Discard, resp.Body)
				return resp.StatusCode
			}
			answered := make(chan int, 1)
			go func() { answered <- ask() }()
			<-half
			if !k.joined { // then it is answered now
				answered <- <-answered
			}
			if done, err := s.effects("k"); err != nil || len(done) > 0 {
				t.Errorf("in the middle there is %v, %v", done, err)
			}
			close(goOn)
			if status := <-answered; status != 201 && k.joined {
				t.Errorf("answered %d", status)
			}
			if err := guard.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			if done, err := s.effects("k"); err != nil || done[1] != 2 {
				t.Errorf("at the end there is %v, %v", done, err)
			}
			if err := s.idle(); err != nil {
				t.Error(err)
			}
		})
	}
}
