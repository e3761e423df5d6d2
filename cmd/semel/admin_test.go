package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/memory"
)

var adminAddr = regexp.MustCompile(`"?admin"?[=:]"?(\S+):([0-9]+)`)

// admin returns the URL of a gateway's admin listener.
func (p *process) admin() string {
	p.t.Helper()
	m := adminAddr.FindStringSubmatch(p.await("admin listener"))
	if m == nil {
		p.t.Fatalf("the gateway does not say where its admin listener is:\n%s", p.stderr())
	}
	if m[1] == "[::]" {
		m[1] = "127.0.0.1" // all addresses, of both kinds
	}
	return "http://" + m[1] + ":" + m[2]
}

// ask sends a GET with the header "Name: value", if there is one.
func ask(t *testing.T, url, header string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	noError(t, err)
	if name, value, ok := strings.Cut(header, ": "); ok {
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	res, err := http.DefaultClient.Do(req)
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	noError(t, err)
	return answer{res.StatusCode, res.Header, string(b)}
}

// eventually asks until the response has the status.
func eventually(t *testing.T, url string, status int) answer {
	t.Helper()
	for {
		if a := ask(t, url, ""); a.status == status {
			return a
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("%s never answered %d", url, status)
		}
	}
}

// TestAdmin: what the admin listener serves, and that the gateway's own listener
// does not.
func TestAdmin(t *testing.T) {
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", newStore(t), "--admin", ":0", "--require-key")
	admin := g.admin()
	if !strings.HasPrefix(admin, "http://127.0.0.1:") {
		t.Errorf("without a host it listens on %s", admin)
	}
	want(t, "livez", ask(t, admin+"/livez", "").status, 200)
	want(t, "readyz", ask(t, admin+"/readyz", "").body, "ok\n")
	want(t, "readyz in words", ask(t, admin+"/readyz?verbose", "").body, "drain ok\nstore ok\nok\n")
	want(t, "readyz by a page's own name", ask(t, admin+"/readyz?verbose", "Host: evil.example:80").status, 421)
	want(t, "anything else", ask(t, admin+"/debug/pprof/", "").status, 404)
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		want(t, "the upstream's "+path, ask(t, g.url+path, "").status, 201) // and not ours
		<-u.entered
	}
	want(t, "status", post(t, g.url, "a", "{}").status, 201)
	want(t, "status of the retry", post(t, g.url, "a", "{}").status, 201)
	want(t, "status without a key", sendTo(t, "POST", g.url+"/orders", "", "{}", "").status, 400)
	scrape := ask(t, admin+"/metrics", "").body
	for _, line := range []string{
		`semel_decisions_total{semel_outcome="executed"} 1`,
		`semel_decisions_total{semel_outcome="replayed"} 1`,
		`semel_decisions_total{semel_outcome="rejected"} 1`,
		`semel_decisions_total{semel_outcome="unknown"} 0`,
		`semel_refusals_total{semel_problem="key-missing"} 1`,
		`http_server_request_duration_seconds_count{http_request_method="POST",http_response_status_code="201",semel_outcome="executed",url_scheme="http"} 1`,
		`semel_records{semel_state="unknown"} 0`,
		`semel_executions_limit 4096`,
	} {
		if !strings.Contains(scrape, line+"\n") {
			t.Errorf("the scrape lacks %s", line)
		}
	}
	for _, not := range []string{"otel_scope", "/orders"} {
		if strings.Contains(scrape, not) {
			t.Errorf("the scrape has %s", not)
		}
	}
	problems, err := promlint.New(strings.NewReader(scrape)).Lint()
	noError(t, err)
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	if len(scrape) > 100<<10 || t.Failed() {
		t.Logf("the scrape:\n%s", scrape)
	}
}

// TestAdminToken: where others can reach it, the admin listener asks for a token,
// and is not started without one.
func TestAdminToken(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		name := filepath.Join(dir, fmt.Sprint(len(text)))
		noError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	base := []string{"gateway", "--upstream", "http://127.0.0.1:1", "--store", newStore(t), "--listen", "127.0.0.1:0"}
	for _, tt := range []struct {
		env  []string
		args []string
		part string
	}{
		{nil, []string{"--admin", "0.0.0.0:0"}, "others can reach"},
		{nil, []string{"--admin", "[::]:0"}, "others can reach"},
		{nil, []string{"--admin", "gateway.internal:0"}, "others can reach"},
		{nil, []string{"--admin", "9090"}, "write it as :9090"},
		{[]string{"SEMEL_ADMIN_TOKEN=short"}, []string{"--admin", "0.0.0.0:0"}, "at least 16"},
		{nil, []string{"--admin", "0.0.0.0:0", "--admin-token-file", file(" \n")}, "no token in the file"},
		{nil, []string{"--admin", "0.0.0.0:0", "--admin-token-file", filepath.Join(dir, "none")}, "cannot be used"},
		{nil, []string{"--drain-delay", "-1s"}, "must not be negative"},
		{[]string{"OTEL_TRACES_EXPORTER=console"}, nil, "otlp and none"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, nil, "only http/protobuf"},
	} {
		out := semelWith(tt.env, "", append(base[:len(base):len(base)], tt.args...)...)
		want(t, fmt.Sprint(tt.args, tt.env, ": exit code"), out.code, exitUsage)
		if !strings.Contains(out.stderr, tt.part) || strings.Contains(out.stderr, "listening") || strings.Contains(out.stderr, "short") {
			t.Errorf("%v: it said %s", tt.args, out.stderr)
		}
	}

	const token = "0123456789abcdef0123"
	u := newUpstream(t)
	g := startGatewayIn(t, []string{"SEMEL_ADMIN_TOKEN=" + token}, nil, "--upstream", u.url, "--store", newStore(t), "--admin", "0.0.0.0:0")
	admin := g.admin()
	for _, path := range []string{"/metrics", "/readyz?verbose"} {
		for _, header := range []string{"", "Authorization: " + token, "Authorization: Bearer ", "Authorization: Bearer " + token + "x", "Authorization: Bearer " + token[1:]} {
			a := ask(t, admin+path, header)
			want(t, path+" "+header, a.status, 401)
			if strings.Contains(a.body, "store") {
				t.Errorf("%s tells a stranger: %s", path, a.body)
			}
		}
		want(t, path+" with the token", ask(t, admin+path, "Authorization: Bearer "+token).status, 200)
	}
	var last answer
	for range 30 {
		last = ask(t, admin+"/metrics", "Authorization: Bearer 0123456789")
	}
	want(t, "many wrong tokens", last.status, 429)
	if last.header.Get("Retry-After") == "" || !strings.Contains(last.body, "later") {
		t.Errorf("it says %q: %v", last.body, last.header)
	}
	want(t, "the right one from there, where it has come from", ask(t, admin+"/metrics", "Authorization: Bearer "+token).status, 200)
	want(t, "livez without it", ask(t, admin+"/livez", "").status, 200)
	want(t, "readyz without it", ask(t, admin+"/readyz", "").status, 200)
	if strings.Contains(g.stderr(), token) {
		t.Error("the token is in the log")
	}
}

// countingStore counts the questions whether it answers.
type countingStore struct {
	semel.Store
	asked atomic.Int64
}

func (s *countingStore) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	s.asked.Add(1)
	return s.Store.Find(ctx, id)
}

// TestReadinessAsksSeldom: any number of probes costs the store one look a second.
func TestReadinessAsksSeldom(t *testing.T) {
	m, err := memory.New(memory.Config{})
	noError(t, err)
	s := &countingStore{Store: m}
	r := &readiness{store: s}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				if err := r.check(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := s.asked.Load(); n < 1 || n > 5 {
		t.Errorf("the store was asked %d times", n)
	}
}

// TestDrainSaysNoFirst: told to end, the gateway is not ready at once, and goes on
// to serve until those who ask have had the time to notice.
func TestDrainSaysNoFirst(t *testing.T) {
	quick.LeaveOut(t)
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", newStore(t), "--admin", ":0", "--drain-delay", "3s")
	admin := g.admin()
	want(t, "readyz before", ask(t, admin+"/readyz", "").status, 200)
	g.terminate()
	g.await("not ready any more")
	want(t, "readyz once it is told to end", ask(t, admin+"/readyz", "").status, 503)
	want(t, "livez", ask(t, admin+"/livez", "").status, 200)
	http.DefaultClient.CloseIdleConnections()
	want(t, "a new request on a new connection", post(t, g.url, "late", "{}").status, 201)
	if !strings.Contains(ask(t, admin+"/readyz?verbose", "").body, "drain failed: the gateway is stopping") {
		t.Error("readyz does not say why")
	}
	want(t, "exit code", g.exitCode(), 0)
}

// TestStoreStoppedUnderLoad: while the store is down every protected request is
// answered with a 503 problem, nothing is executed unprotected, and the gateway is
// not ready but alive. When the store is back, it serves without being started anew.
func TestStoreStoppedUnderLoad(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{})
	url := server.NewDatabase(t)
	var mu sync.Mutex
	effects := map[string]int{}
	total := func() int {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, c := range effects {
			n += c
		}
		return n
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		effects[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		w.WriteHeader(201)
	}))
	t.Cleanup(upstream.Close)
	g := startGateway(t, "--upstream", upstream.URL, "--store", url, "--admin", ":0", "--lease", "2s")
	admin := g.admin()
	eventually(t, admin+"/readyz", 200)

	var done, refused atomic.Int64
	acknowledged := sync.Map{}
	stop := make(chan struct{})
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("c%d-%d", c, n)
				for settled := false; !settled; {
					select {
					case <-stop:
						return
					default:
					}
					a, err := try(g.url, key, "{}")
					switch {
					case err != nil:
						t.Errorf("%s: no response: %v", key, err)
						return
					case a.status == 201:
						acknowledged.Store(key, true)
						done.Add(1)
						settled = true
					case a.status == 503 && a.header.Get("Content-Type") == "application/problem+json" && a.header.Get("Retry-After") != "":
						refused.Add(1)
						select { // a client that is not patient
						case <-stop:
							return
						case <-pace.C:
						}
					case a.status == 409: // of those that were cut off in the middle
						settled = a.problem() == "outcome-unknown"
					default:
						t.Errorf("%s: %d %s", key, a.status, a.body)
						return
					}
				}
			}
		})
	}
	await := func(what string, reached func() bool) {
		t.Helper()
		for !reached() {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatalf("it never came to this: %s; %d done, %d refused", what, done.Load(), refused.Load())
			}
		}
	}
	await("requests are served", func() bool { return done.Load() > 50 })
	noError(t, server.Stop())
	eventually(t, admin+"/readyz", 503)
	await("requests are refused", func() bool { return refused.Load() > 20 })
	doneThen, effectsThen, refusedThen := done.Load(), total(), refused.Load()
	await("more are refused", func() bool { return refused.Load() > refusedThen+50 })
	want(t, "answers while the store is down", done.Load()-doneThen, 0)
	want(t, "effects while the store is down", total()-effectsThen, 0)
	want(t, "livez", ask(t, admin+"/livez", "").status, 200)
	noError(t, server.Start())
	eventually(t, admin+"/readyz", 200)
	await("requests are served again", func() bool { return done.Load() > doneThen+50 })
	close(stop)
	clients.Wait()
	mu.Lock()
	defer mu.Unlock()
	for key, n := range effects {
		if n != 1 {
			t.Errorf("%s had %d effects", key, n)
		}
	}
	acknowledged.Range(func(key, _ any) bool {
		want(t, fmt.Sprint("effects of ", key), effects[key.(string)], 1)
		return true
	})
	t.Logf("%d done, %d refused", done.Load(), refused.Load())
}

// collector is an OpenTelemetry collector that keeps what it gets.
type collector struct {
	url  string
	mu   sync.Mutex
	got  map[string][]byte // by path
	more chan struct{}
}

func newCollector(t *testing.T) *collector {
	c := &collector{got: map[string][]byte{}, more: make(chan struct{}, 1)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		c.got[r.URL.Path] = append(c.got[r.URL.Path], b...)
		c.mu.Unlock()
		select {
		case c.more <- struct{}{}:
		default:
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *collector) text(path string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.got[path])
}

// TestExports: the variables of OpenTelemetry have traces and metrics exported,
// the last of them when the gateway ends; and a measurement names its trace.
func TestExports(t *testing.T) {
	c, u := newCollector(t), newUpstream(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=lab"}
	g := startGatewayIn(t, env, nil, "--upstream", u.url, "--store", newStore(t), "--admin", ":0")
	admin := g.admin()
	want(t, "status", post(t, g.url, "a", "{}").status, 201)
	open := ask(t, admin+"/metrics", "Accept: application/openmetrics-text; version=1.0.0")
	if !regexp.MustCompile(`http_server_request_duration_seconds_bucket\{.*semel_outcome="executed".*\} 1 # \{.*trace_id="[0-9a-f]{32}"`).MatchString(open.body) {
		t.Errorf("there is no exemplar in\n%s", open.body)
	}
	g.terminate()
	want(t, "exit code", g.exitCode(), 0)
	for _, name := range []string{"http.server.request.duration", "http.client.request.duration", "semel.decisions", "semel-gateway", "lab"} {
		if !strings.Contains(c.text("/v1/metrics"), name) {
			t.Errorf("the metrics lack %s", name)
		}
	}
	for _, name := range []string{"POST", "semel.record_id", "semel-gateway", "executed"} {
		if !strings.Contains(c.text("/v1/traces"), name) {
			t.Errorf("the traces lack %s", name)
		}
	}
}

// TestCollectorGone: a collector that is not there costs a line in the log, and
// holds up neither requests nor the end.
func TestCollectorGone(t *testing.T) {
	u := newUpstream(t)
	g := startGatewayIn(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, nil, "--upstream", u.url, "--store", newStore(t))
	want(t, "status", post(t, g.url, "a", "{}").status, 201)
	g.terminate()
	want(t, "exit code", g.exitCode(), 0)
	if !strings.Contains(g.stderr(), "could not be exported") {
		t.Errorf("it said\n%s", g.stderr())
	}
}

// TestSecretsStayOut: secrets in every part of a request, and in what a service
// answers, reach no log, metric, span, problem or health answer, whatever becomes
// of the request.
func TestSecretsStayOut(t *testing.T) {
	const secret = "pl4nt3d"
	c := newCollector(t)
	// A service that answers as it likes, on the wire.
	answers := map[string]string{
		"ok":      "HTTP/1.1 201 Created\r\nContent-Length: 9\r\nX-Token: " + secret + "\r\nLocation: /" + secret + "\r\n\r\n\"" + secret + "\"",
		"garbage": secret + " is no HTTP\r\n\r\n",
		"status":  "HTTP/1.1 " + secret + " x\r\n\r\n",
		"header":  "HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n",
		"length":  "HTTP/1.1 200 OK\r\nContent-Length: " + secret + "\r\n\r\n",
		"coding":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + secret + "\r\n\r\n",
		"chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + secret + "\r\n",
		"cut":     "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + secret,
		"switch":  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + secret + "\r\n\r\n",
		"early":   "HTTP/1.1 099 " + secret + "\r\nContent-Length: 0\r\n\r\n",
		"502":     "HTTP/1.1 502 " + secret + "\r\nContent-Length: 7\r\n\r\n" + secret,
		"close":   "",
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				buf := make([]byte, 64<<10)
				n, _ := conn.Read(buf)
				which := regexp.MustCompile(`/case-([a-z0-9]+)/`).FindSubmatch(buf[:n])
				if which != nil {
					_, _ = io.WriteString(conn, answers[string(which[1])])
				}
			}()
		}
	}()
	var stdout safeBuffer
	// Of the exporters' variables one holds a secret too.
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_EXPORTER_OTLP_HEADERS=authorization=" + secret, "SEMEL_ADMIN_TOKEN=" + secret + "0123456789"}
	g := startGatewayIn(t, env, &stdout, "--upstream", "http://"+listener.Addr().String(), "--store", newStore(t),
		"--admin", ":0", "--access-log", "json", "--max-request-body", "1KiB", "--max-executions", "50")
	admin := g.admin()
	auth := "Authorization: Bearer " + secret + "0123456789"
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	sent := 0
	for which := range answers {
		for _, method := range []string{"POST", "PATCH", "GET", "PUT", "X" + secret} {
			for i, body := range []string{`{"s":"` + secret + `"}`, `{"s":"` + secret + `2"}`, strings.Repeat(secret, 300)} {
				req, err := http.NewRequestWithContext(t.Context(), method, g.url+"/case-"+which+"/"+secret+"/%2e"+secret+"?"+secret+"="+secret, strings.NewReader(body))
				noError(t, err)
				for _, name := range []string{
					"Authorization", "Cookie", "User-Agent", "Referer", "Origin", "X-Request-Id", "X-Forwarded-For", "X-Forwarded-Host", "Forwarded",
					"Tracestate", "Baggage", "B3", "X-B3-Traceid", "X-Http-Method-Override", "X-Api-Key", "Content-Type", "Accept", "Prefer", "X-" + secret, "Semel-Fence",
				} {
					req.Header.Set(name, secret)
				}
				req.Header.Set("Traceparent", "00-"+secret+"-"+secret+"-01")
				req.Header.Set("Tracestate", "a="+secret)
				req.Header.Set("Idempotency-Key", secret+which)
				if i == 1 && method == "PATCH" {
					req.Header.Set("Idempotency-Key", "\""+secret) // malformed
				}
				res, err := client.Do(req)
				sent++
				if err != nil {
					continue // it was cut off
				}
				b, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if res.Header.Get("Content-Type") == "application/problem+json" && bytes.Contains(b, []byte(secret)) {
					t.Errorf("%s: a problem: %s", which, b)
				}
			}
		}
	}
	places := map[string]string{
		"metrics": ask(t, admin+"/metrics", auth).body,
		"readyz":  ask(t, admin+"/readyz?verbose", auth).body,
	}
	g.terminate()
	want(t, "exit code", g.exitCode(), 0)
	places["log"], places["access log"] = g.stderr(), stdout.String()
	places["spans"], places["exported metrics"] = c.text("/v1/traces"), c.text("/v1/metrics")
	for name, text := range places {
		if len(text) < 10 {
			t.Errorf("%s: there is nothing to look at", name)
		}
		for i, line := range strings.Split(text, "\n") {
			if strings.Contains(strings.ToLower(line), secret) {
				t.Errorf("%s, line %d: %.400s", name, i, line)
			}
		}
	}
	if n := strings.Count(places["access log"], "\n"); n != sent {
		t.Errorf("the access log has %d lines for %d requests", n, sent)
	}
	for _, part := range []string{`"semel.outcome":"executed"`, `"semel.key.digest":"` + semel.Digest(secret+"ok") + `"`, `"semel.record_id":"`, `"trace_id":"`, `"client.address":"127.0.0.1"`, `"http.request.method":"_OTHER"`} {
		if !strings.Contains(places["access log"], part) {
			t.Errorf("the access log lacks %s", part)
		}
	}
}

// safeBuffer is a bytes.Buffer that a process writes while a test reads.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// stuckWriter is standard output that nobody reads.
type stuckWriter struct{ leave chan struct{} }

func (w stuckWriter) Write([]byte) (int, error) {
	<-w.leave
	return 0, errors.New("nobody reads")
}

// TestAccessLogHoldsUpNobody: lines that nobody reads are dropped, counted and
// told, and end nothing.
func TestAccessLogHoldsUpNobody(t *testing.T) {
	w := stuckWriter{make(chan struct{})}
	var told safeBuffer
	l := newAccessLog(w, newLog(&told, "text"), false)
	for range maxQueued + 100 {
		_, _ = l.Write([]byte("line\n"))
	}
	if n := l.dropped.Load(); n < 99 || n > 100 {
		t.Errorf("%d lines were dropped", n)
	}
	l.close(time.Millisecond)
	if !strings.Contains(told.String(), "nobody reads it") {
		t.Errorf("it said: %s", told.String())
	}
	close(w.leave)
	<-l.done
	if !strings.Contains(told.String(), "cannot be written") || !strings.Contains(told.String(), "read too slowly") {
		t.Errorf("it said: %s", told.String())
	}
}

// TestLogNamesNoPath: where no operation has a name of its own, what stands in for
// it holds a path, and with it what clients put there.
func TestLogNamesNoPath(t *testing.T) {
	var told safeBuffer
	o := newLog(&told, "text").guard()
	for _, operation := range []string{"POST /reset/pl4nt3d", "orders.create"} {
		s := semel.Scope{Operation: operation}
		o.StoreFailed(t.Context(), semel.StoreFailed{Scope: s, Call: "begin", Err: errors.New("down")})
		o.LeaseLost(t.Context(), semel.LeaseLost{Scope: s, Cause: semel.ErrLostClaim})
		o.Panicked(t.Context(), semel.Panicked{Scope: s, Err: &semel.PanicError{Value: "v"}})
		o.FailedOpen(t.Context(), s, errors.New("down"))
	}
	if text := told.String(); strings.Contains(text, "pl4nt3d") || strings.Count(text, "operation=POST ") != 4 || strings.Count(text, "operation=orders.create") != 4 {
		t.Errorf("it said\n%s", text)
	}
}

// TestDryRun: a gateway that only tells forwards every request, and when it is
// lifted, on the same store, nothing that was told is taken for a result.
func TestDryRun(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	var lines safeBuffer
	g := startGatewayIn(t, nil, &lines, "--upstream", u.url, "--store", db, "--dry-run", "--require-key", "--admin", ":0", "--access-log", "json")
	if !strings.Contains(g.await("protects"), "NOTHING (dry run)") {
		t.Error("it does not say that it protects nothing")
	}
	for i, s := range []struct{ key, body, verdict string }{
		{"k", "{}", "executed"}, {"k", "{}", "replayed"}, {"k", "[]", "mismatch"}, {"", "{}", "rejected;problem=key-missing"},
	} {
		a := sendTo(t, "POST", g.url+"/orders", s.key, s.body, "")
		want(t, s.verdict+": status", a.status, 201)
		want(t, s.verdict+": verdict", a.header.Get("Semel-Dry-Run"), s.verdict)
		want(t, s.verdict+": effects", u.effects.Load(), int64(i+1))
	}
	scrape := ask(t, g.admin()+"/metrics", "").body
	for _, line := range []string{
		`semel_decisions_total{semel_dry_run="true",semel_outcome="replayed"} 1`,
		`semel_decisions_total{semel_dry_run="true",semel_outcome="rejected"} 1`,
		`http_server_request_duration_seconds_count{http_request_method="POST",http_response_status_code="201",semel_dry_run="true",semel_outcome="mismatch",url_scheme="http"} 1`,
	} {
		if !strings.Contains(scrape, line+"\n") {
			t.Errorf("the scrape lacks %s", line)
		}
	}
	g.await("would_be=replayed")
	g.await("would_be=refused")
	g.terminate()
	want(t, "exit code", g.exitCode(), 0)
	if text := lines.String(); strings.Count(text, `"semel.dry_run":true`) != 4 || !strings.Contains(text, `"semel.outcome":"replayed"`) {
		t.Errorf("the access log is\n%s", text)
	}

	g = startGateway(t, "--upstream", u.url, "--store", db)
	a := post(t, g.url, "k", "{}")
	if a.status != 201 || a.replayed() || u.effects.Load() != 5 {
		t.Errorf("the first request after the dry run: %d %s, %d effects", a.status, a.body, u.effects.Load())
	}
	want(t, "replayed", post(t, g.url, "k", "{}").replayed(), true)
	want(t, "verdict without a dry run", a.header.Get("Semel-Dry-Run"), "")
	want(t, "effects", u.effects.Load(), 5)
	if list := ok(t, "keys", "list", "--store", db, "--key", "k"); strings.Count(list, "semel dry-run: POST /orders") != 1 {
		t.Errorf("the records are\n%s", list)
	}
}
