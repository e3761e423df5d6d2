package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func TestAccounts(t *testing.T) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := newHandler(guard)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()

	steps := []struct {
		method, path, user, key, body string
		status                        int
		answer                        string // how it starts; "" for any
		replayed                      bool
	}{
		{"POST", "/accounts/7/deposits", "", "k1", `{"amount":5}`, 401, "who are you?", false},
		{"POST", "/accounts/7/deposits", "ann", "", `{"amount":5}`, 400, "", false},
		{"POST", "/accounts/7/deposits", "ann", "k1", `{"amount":5}`, 201, `{"balance":5}`, false},
		{"POST", "/accounts/7/deposits", "ann", "k1", `{ "amount": 5 }`, 201, `{"balance":5}`, true},
		{"POST", "/accounts/7/deposits", "ann", "k1", `{"amount":6}`, 422, "", false},
		{"POST", "/accounts/8/deposits", "ann", "k1", `{"amount":5}`, 422, "", false}, // one operation, another path
		{"POST", "/accounts/7/deposits", "bob", "k1", `{"amount":1}`, 201, `{"balance":6}`, false},
		{"POST", "/accounts/7/transfers/8", "ann", "k1", `{"amount":4}`, 201, `{"balance":2}`, false}, // another operation
		{"POST", "/accounts/7/transfers/8", "ann", "k1", `{"amount":4}`, 201, `{"balance":2}`, true},
		{"POST", "/accounts/7/transfers/8", "ann", "k2", `{"amount":4}`, 409, "not enough", false},
		{"POST", "/accounts/7/transfers/8", "ann", "k2", `{"amount":4}`, 409, "not enough", true},
		{"GET", "/accounts/7", "ann", "", "", 200, `{"balance":2}`, false},
		{"GET", "/accounts/8", "ann", "", "", 200, `{"balance":4}`, false},
	}
	for _, s := range steps {
		r, err := http.NewRequestWithContext(t.Context(), s.method, server.URL+s.path, strings.NewReader(s.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if s.user != "" {
			r.SetBasicAuth(s.user, "")
		}
		if s.key != "" {
			r.Header.Set(semelhttp.HeaderKey, s.key)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != s.status || !strings.HasPrefix(string(body), s.answer) {
			t.Errorf("%s %s as %q with %q: %d %q, want %d %q", s.method, s.path, s.user, s.key, resp.StatusCode, body, s.status, s.answer)
		}
		if got := resp.Header.Get(semelhttp.HeaderReplayed) == "true"; got != s.replayed {
			t.Errorf("%s %s as %q with %q: replayed %v", s.method, s.path, s.user, s.key, got)
		}
	}
}
