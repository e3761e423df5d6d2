package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

func start(t *testing.T, path string) *httptest.Server {
	t.Helper()
	s, err := openShop(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler(s, 0))
	t.Cleanup(func() { server.Close(); s.close() })
	return server
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Location")
}

func get[T any](t *testing.T, url string) (v T) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// The point of the example: without protection, a repeated request takes
// effect twice.
func TestDuplicatesTakeEffectTwice(t *testing.T) {
	url := start(t, "").URL
	_, first := post(t, url+"/orders", `{"item":"book","quantity":1}`)
	_, second := post(t, url+"/orders", `{"item":"book","quantity":1}`)
	if first == second {
		t.Fatalf("both posts made %s", first)
	}
	post(t, url+"/payments", `{"order_id":1,"amount":500}`)
	post(t, url+"/payments", `{"order_id":1,"amount":500}`)
	if c := get[counters](t, url+"/counters"); c != (counters{Orders: 2, Payments: 2}) {
		t.Fatalf("counted %+v", c)
	}
}

func TestReads(t *testing.T) {
	url := start(t, filepath.Join(t.TempDir(), "odd name?.db")).URL
	_, location := post(t, url+"/orders", `{"item":"book","quantity":2}`)
	if o := get[order](t, url+location); o != (order{ID: 1, Item: "book", Quantity: 2}) {
		t.Fatalf("read %+v", o)
	}
	post(t, url+"/payments", `{"order_id":1,"amount":500}`)
	if p := get[[]payment](t, url+"/payments"); len(p) != 1 || p[0].Amount != 500 {
		t.Fatalf("read %+v", p)
	}
	if o := get[[]order](t, url+"/orders"); len(o) != 1 {
		t.Fatalf("read %+v", o)
	}
}

// The page and what it needs; TestBrowser clicks through it.
func TestPage(t *testing.T) {
	url := start(t, "").URL
	for path, want := range map[string]string{"/": "text/html; charset=utf-8", "/order.js": "text/javascript; charset=utf-8", "/once.js": "text/javascript; charset=utf-8"} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != want || resp.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("GET %s: %d, %s; want %s", path, resp.StatusCode, got, want)
		}
	}
}

func TestBadInput(t *testing.T) {
	url := start(t, "").URL
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/orders", ``, 400},
		{"/orders", `{`, 400},
		{"/orders", `{"item":"book"}`, 400},
		{"/orders", `{"item":"book","quantity":-1}`, 400},
		{"/orders", `{"item":"book","quantity":1,"price":0}`, 400},
		{"/orders", `{"item":"book","quantity":1}{}`, 400},
		{"/orders", `{"item":"` + strings.Repeat("x", 70_000) + `"}`, 413},
		{"/payments", `{"order_id":1,"amount":0}`, 400},
		{"/payments", `{"order_id":99,"amount":1}`, 422},
		{"/nowhere", `{}`, 404},
	} {
		if got, _ := post(t, url+c.path, c.body); got != c.want {
			t.Errorf("POST %s %.40s: %d; want %d", c.path, c.body, got, c.want)
		}
	}
	if c := get[counters](t, url+"/counters"); c != (counters{}) {
		t.Errorf("bad input counted as %+v", c)
	}
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
		{[]string{"--listen", "127.0.0.1:x"}, 1, "another --listen"},
		{[]string{"--db", t.TempDir()}, 1, "open database"},
	} {
		var stderr bytes.Buffer
		if got := run(t.Context(), c.args, &stderr); got != c.want || !strings.Contains(stderr.String(), c.text) {
			t.Errorf("orders %v exits with %d; want %d and %q: %s", c.args, got, c.want, c.text, &stderr)
		}
	}
}
