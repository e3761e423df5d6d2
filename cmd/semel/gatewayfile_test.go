package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
)

// lines is a standard error stream that can be waited for.
type lines struct {
	mu   sync.Mutex
	text string
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

// await returns when s has been said n times.
func (l *lines) await(ctx context.Context, t *testing.T, s string, n int) {
	t.Helper()
	for {
		l.mu.Lock()
		text := l.text
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		if strings.Count(text, s) >= n {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("it did not say %q %d times:\n%s", s, n, text)
		}
	}
}

// serveConfig runs a gateway by a file until the test ends, and returns its URL and
// what it says.
func serveConfig(t *testing.T, text string, env ...string) (url string, said *lines) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	noError(t, os.WriteFile(file, []byte(text), 0o600))
	ctx, stop := context.WithCancel(context.Background())
	said = &lines{}
	ended := make(chan int, 1)
	alive, over := context.WithCancel(t.Context())
	go func() {
		defer over()
		ended <- run(ctx, []string{"gateway", "--config", file}, env, nil, io.Discard, said)
	}()
	t.Cleanup(func() {
		stop()
		want(t, "exit code", <-ended, exitOK)
	})
	const mark = "is listening on "
	said.await(alive, t, mark, 1)
	_, rest, _ := strings.Cut(said.String(), mark)
	url, _, _ = strings.Cut(rest, "\n")
	return url, said
}

// request sends a request with headers given as "Name: value".
func request(t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	noError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	noError(t, err)
	return answer{res.StatusCode, res.Header, string(b)}
}

// counting is a service that counts what it does.
func counting(t *testing.T, status int) (url string, n *atomic.Int64) {
	n = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "%s %s %d", r.Method, r.URL.Path, n.Add(1))
	}))
	t.Cleanup(server.Close)
	return server.URL, n
}

// TestConfigServed: what the file says is what happens.
func TestConfigServed(t *testing.T) {
	service, effects := counting(t, http.StatusCreated)
	other, otherEffects := counting(t, http.StatusTeapot)
	secrets := filepath.Join(t.TempDir(), "secrets")
	noError(t, os.WriteFile(secrets, []byte(strings.Repeat("s", 40)), 0o600))
	url, _ := serveConfig(t, fmt.Sprintf(`version: 1
listen: 127.0.0.1:0
store: {url: "memory:"}
principal:
  digest: {headers: [Authorization]}
resources: {prefix: /.own, key_secrets: %q}
upstreams:
  - {name: service, url: %q}
  - name: other
    url: ${OTHER}
defaults: {upstream: service}
routes:
  - {match: "POST /users/{id}/orders", operation: orders, key: {required: true, require_uuid: true}, fingerprint: {exclude: [/sent_at]}}
  - {match: POST /graphql, operation_from: /operationName}
  - {match: POST /batch, key: {from: [header X-Batch, body /n]}}
  - {match: POST /id, key: {from: [body /id], min_length: 4}}
  - {match: POST /mine, key: {from: [header X-My-Key]}}
  - {match: POST /issued, key: {issued_only: true}}
  - {match: [POST /other, PUT /other], upstream: other, no_effect_status: [418]}
  - {match: POST /pass, protect: false}
`, secrets, service), "OTHER="+other)
	const who = "Authorization: Bearer a"
	const uuid = "Idempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324"
	orders := func(body string, headers ...string) answer {
		return request(t, "POST", url+"/users/1/orders", body, append(headers, "Content-Type: application/json")...)
	}
	for _, tt := range []struct {
		what   string
		got    answer
		status int
		effect int64
	}{
		{"no key", orders(`{}`, who), 400, 0},
		{"no UUID", orders(`{}`, who, "Idempotency-Key: k"), 400, 0},
		{"no principal", orders(`{}`, uuid), 401, 0},
		{"first", orders(`{"a":1,"sent_at":1}`, who, uuid), 201, 1},
		{"again", orders(`{"sent_at":2,"a":1}`, who, uuid), 201, 1},
		{"another request", orders(`{"a":2}`, who, uuid), 422, 1},
		{"another caller", orders(`{"a":1}`, "Authorization: b", uuid), 201, 2},
		{"pay", request(t, "POST", url+"/graphql", `{"operationName":"pay"}`, who, uuid), 201, 3},
		{"refund", request(t, "POST", url+"/graphql", `{"operationName":"refund"}`, who, uuid), 201, 4},
		{"neither", request(t, "POST", url+"/graphql", `{}`, who, uuid), 400, 4},
		{"batch", request(t, "POST", url+"/batch", `{"n":1}`, who, "X-Batch: b"), 201, 5},
		{"batch again", request(t, "POST", url+"/batch", `{"n":1}`, who, "X-Batch: b", uuid), 201, 5},
		{"batch without a number", request(t, "POST", url+"/batch", `{}`, who, "X-Batch: b"), 400, 5},
		{"batch without a header", request(t, "POST", url+"/batch", `{"n":1}`, who), 400, 5},
		{"another batch", request(t, "POST", url+"/batch", `{"n":2}`, who, "X-Batch: b"), 201, 6},
		{"id", request(t, "POST", url+"/id", `{"id":"order-1"}`, who), 201, 7},
		{"id again", request(t, "POST", url+"/id", `{"id":"order-1"}`, who), 201, 7},
		{"id, another request", request(t, "POST", url+"/id", `{"id":"order-1","n":1}`, who), 422, 7},
		{"id, too short", request(t, "POST", url+"/id", `{"id":"o"}`, who), 400, 7},
		{"id, no key", request(t, "POST", url+"/id", `{"id":"a\nbcd"}`, who), 400, 7},
		{"another header", request(t, "POST", url+"/mine", ``, who, "X-My-Key: k"), 201, 8},
		{"another header, again", request(t, "POST", url+"/mine", ``, who, "X-My-Key: k"), 201, 8},
		{"not issued", request(t, "POST", url+"/issued", ``, who, uuid), 400, 8},
		{"passed", request(t, "POST", url+"/pass", ``, uuid), 201, 9},
		{"passed again", request(t, "POST", url+"/pass", ``, uuid), 201, 10},
		{"no route", request(t, "POST", url+"/nothing", ``, who, uuid), 404, 10},
		{"no route, safe", request(t, "GET", url+"/users/1/orders", ``), 404, 10},
		{"another spelling", request(t, "POST", url+"/Users/1/orders", ``, who, uuid), 400, 10},
	} {
		want(t, tt.what+": status", tt.got.status, tt.status)
	}
	want(t, "effects", effects.Load(), 10)
	issued := request(t, "POST", url+"/.own/keys", `{"operation":"POST /issued"}`, who, "Content-Type: application/json")
	var key struct{ Key string }
	noError(t, json.Unmarshal([]byte(issued.body), &key))
	for range 2 {
		want(t, "issued", request(t, "POST", url+"/issued", ``, who, "Idempotency-Key: "+key.Key).status, 201)
	}
	want(t, "effects", effects.Load(), 11)
	// What a status means, and a method that a pattern names.
	for range 2 {
		want(t, "released", request(t, "PUT", url+"/other", ``, who, uuid).status, 418)
	}
	want(t, "effects elsewhere", otherEffects.Load(), 2)
	spec := request(t, "GET", url+"/.own/specification", "", "Accept: application/json")
	for _, text := range []string{`"operation":"orders"`, `"path":"/users/{id}/orders"`, `"methods":["POST"]`, "taken from header X-Batch, body /n"} {
		if !strings.Contains(spec.body, text) {
			t.Errorf("the specification does not say %s:\n%s", text, spec.body)
		}
	}
	if strings.Contains(spec.body, `"/pass"`) {
		t.Error("the specification promises what is not protected")
	}
	want(t, "ready", request(t, "GET", url+"/.own/ready", "").status, 200)
}

// TestGatewayInit: a configuration from an OpenAPI document is checked and served.
func TestGatewayInit(t *testing.T) {
	service, effects := counting(t, http.StatusCreated)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	args := []string{"gateway", "init", "--openapi", "testdata/payments-openapi.yaml", "--upstream", service, "--store", "memory:", "--out", file}
	out := semelWith(nil, "", args...)
	want(t, "exit code", out.code, exitOK)
	if !strings.Contains(out.stderr, "POST /payments/{id}:capture cannot be a route") {
		t.Errorf("it does not say what is left out:\n%s", out.stderr)
	}
	again := semelWith(nil, "", args...)
	if again.code != exitFailed || !strings.Contains(again.stderr, "left as it is") {
		t.Errorf("a file is written over: %d\n%s", again.code, again.stderr)
	}
	if checked := ok(t, "gateway", "check", file); !strings.Contains(checked, "is in order: 6 routes") {
		t.Errorf("check says %s", checked)
	}
	text, err := os.ReadFile(file)
	noError(t, err)
	if strings.Contains(string(text), "\nof $") {
		t.Errorf("a title breaks out of its comment:\n%s", text)
	}
	url, _ := serveConfig(t, strings.Replace(string(text), "version: 1\n", "version: 1\nlisten: 127.0.0.1:0\n", 1))
	const who, key = "Authorization: Bearer a", `Idempotency-Key: "k"`
	for _, tt := range []struct {
		what    string
		got     answer
		status  int
		replays bool
	}{
		{"required", request(t, "POST", url+"/v1/payments", "{}", who), 400, false},
		{"first", request(t, "POST", url+"/v1/payments", "{}", who, key), 201, false},
		{"again", request(t, "POST", url+"/v1/payments", "{}", who, key), 201, true},
		{"one operation", request(t, "POST", url+"/v1/payments/1/refunds", "{}", who, key), 201, false},
		{"for all refunds", request(t, "POST", url+"/v1/payments/2/refunds", "{}", who, key), 422, false},
		{"DELETE, as it declares the key", request(t, "DELETE", url+"/v1/payments/1/refunds", "", who, key), 201, false},
		{"DELETE again", request(t, "DELETE", url+"/v1/payments/1/refunds", "", who, key), 201, true},
		{"a slash at the end", request(t, "POST", url+"/v1/payments/1/notes/", "", who, key), 201, false},
		{"its own header", request(t, "POST", url+"/v1/transfers", "", who, "PayPal-Request-Id: k"), 201, false},
		{"its own header again", request(t, "POST", url+"/v1/transfers", "", who, "PayPal-Request-Id: k"), 201, true},
		{"its own header is required", request(t, "POST", url+"/v1/transfers", "", who, key), 400, false},
		{"the rest", request(t, "GET", url+"/v1/payments", ""), 201, false},
		{"what is left out", request(t, "POST", url+"/v1/payments/1:capture", "", who, key), 201, false},
		{"what is left out, again", request(t, "POST", url+"/v1/payments/1:capture", "", who, key), 201, true},
	} {
		want(t, tt.what+": status", tt.got.status, tt.status)
		want(t, tt.what+": replayed", tt.got.replayed(), tt.replays)
	}
	want(t, "effects", effects.Load(), 7)

	for _, tt := range []struct{ name, text, want string }{
		{"no document", "hello", "not a YAML or JSON document"},
		{"version 2", `{"swagger": "2.0"}`, "not an OpenAPI document of version 3"},
		{"no server", `{"openapi": "3.0.0", "paths": {"/x": {"post": {}}}}`, "name it with --upstream"},
		{"not to be told apart", `{"openapi": "3.0.0", "servers": [{"url": "http://h"}], "paths": {"/x": {"post": {}}, "/X": {"post": {}}}}`, "do not make a valid configuration"},
	} {
		bad := filepath.Join(t.TempDir(), "openapi")
		noError(t, os.WriteFile(bad, []byte(tt.text), 0o600))
		out := semelWith(nil, "", "gateway", "init", "--openapi", bad)
		if out.code == exitOK || !strings.Contains(out.stderr, tt.want) || out.stdout != "" {
			t.Errorf("%s: %d %s", tt.name, out.code, out.stderr)
		}
	}
}

// TestGatewayCheck: what is wrong is told with its place; nothing is started.
func TestGatewayCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		noError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	const text = `version: 1
store: {url: "sqlite:semel.db"}
principal: {shared: {}}
upstreams: [{name: a, url: "http://127.0.0.1:1"}]
routes:
  - {match: POST /orders, operation: orders}
`
	good := write("good.yaml", text)
	bad := write("bad.yaml", strings.Replace(text, "operation:", "operaton:", 1)+"lisen: x\n")
	out := semelWith(nil, "", "gateway", "check", bad)
	want(t, "exit code", out.code, exitUsage)
	for _, line := range []string{bad + ":6:27: routes[0].operaton: is not known here; did you mean operation?", bad + ":7:1: lisen: is not known here; did you mean listen?"} {
		if !strings.Contains(out.stderr, line) {
			t.Errorf("it does not say %s:\n%s", line, out.stderr)
		}
	}
	want(t, "exit code of the gateway", semelWith(nil, "", "gateway", "--config", bad).code, exitUsage)
	if missing := semelWith(nil, "", "gateway", "check", filepath.Join(dir, "none")); missing.code != exitUsage || !strings.Contains(missing.stderr, "cannot be read") {
		t.Errorf("%+v", missing)
	}
	if store := semelWith(nil, "", "gateway", "check", write("store.yaml", strings.Replace(text, "sqlite:semel.db", "mysql:x", 1))); store.code != exitUsage || !strings.Contains(store.stderr, "store.url") {
		t.Errorf("%+v", store)
	}
	if both := semelWith(nil, "", "gateway", "--config", good, "--upstream", "http://x"); both.code != exitUsage || !strings.Contains(both.stderr, "--upstream cannot be used with --config") {
		t.Errorf("%+v", both)
	}
	if said := ok(t, "gateway", "check", good, "--explain"); !strings.Contains(said, "route POST /orders ("+good+":6)") || !strings.Contains(said, "lease") {
		t.Errorf("it says\n%s", said)
	}
	var report struct {
		Routes      int
		Explanation gatewayfile.Explanation
		CutOff      []gatewayfile.Cut `json:"cut_off"`
		Restart     []string          `json:"needs_restart"`
	}
	changed := write("changed.yaml", strings.NewReplacer("operation: orders", "operation: orders.create", "semel.db", "other.db").Replace(text))
	noError(t, json.Unmarshal([]byte(ok(t, "gateway", "check", changed, "--explain", "--json", "--since", good)), &report))
	if report.Routes != 1 || len(report.Explanation.Routes) != 1 || len(report.CutOff) != 1 || report.CutOff[0].Pattern != "POST /orders" || len(report.Restart) != 1 || report.Restart[0] != "store" {
		t.Errorf("%+v", report)
	}
	want(t, "schema", ok(t, "gateway", "schema"), string(gatewayfile.Schema()))
	if _, err := os.Stat("semel.db"); err == nil {
		t.Error("check has made a store")
	}
}
