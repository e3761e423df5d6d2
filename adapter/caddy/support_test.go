package semelcaddy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/store/postgres"
)

// envProgram has this test binary be the program that it names.
const envProgram = "SEMEL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(envProgram) {
	case "caddy":
		caddycmd.Main()
	case "gateway":
		gatewayMain()
	default:
		os.Exit(m.Run())
	}
}

// gatewayMain is a gateway like that of the command semel, with its defaults.
func gatewayMain() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	upstream, err := url.Parse(os.Args[1])
	fail(err)
	key := storeKey{kind: "postgres", at: os.Args[2]}
	pool, _, err := key.connect(&sharedStore{})
	fail(err)
	lease, err := time.ParseDuration(os.Args[3])
	fail(err)
	guard, err := semel.New(semel.Config{Store: pool.(*postgres.Store), Policy: semel.Policy{Lease: lease}})
	fail(err)
	gw, err := gateway.New(gateway.Config{Upstream: upstream, Guard: guard})
	fail(err)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	fail(err)
	fmt.Fprintf(os.Stderr, "listening on http://%s\n", l.Addr())
	fail(http.Serve(l, gw)) //nolint:gosec // for tests
}

// process is a program in a process of its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and made anew with each line
}

func start(t testing.TB, program string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	noError(t, err)
	p := &process{t: t, cmd: exec.Command(self, args...), done: make(chan struct{}), more: make(chan struct{})}
	dir := t.TempDir()
	p.cmd.Env = append(os.Environ(), envProgram+"="+program, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir, "HOME="+dir, "GOCOVERDIR=")
	out, err := p.cmd.StderrPipe()
	noError(t, err)
	noError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		in := bufio.NewScanner(out)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, in.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		switch said := p.stderr(); {
		case strings.Contains(said, "DATA RACE"), strings.Contains(said, "fatal error:"):
			t.Errorf("%s said:\n%s", program, said)
		case t.Failed():
			t.Logf("%s said:\n%s", program, said[max(0, len(said)-8000):])
		}
	})
	return p
}

// await returns the first line that contains s.
func (p *process) await(s string) string {
	p.t.Helper()
	for seen := 0; ; {
		p.mu.Lock()
		lines, more := p.lines[seen:], p.more
		seen = len(p.lines)
		p.mu.Unlock()
		for _, line := range lines {
			if strings.Contains(line, s) {
				return line
			}
		}
		select {
		case <-more:
		case <-p.done:
			p.t.Fatalf("it ended without saying %q:\n%s", s, p.stderr())
		case <-time.After(time.Minute):
			p.t.Fatalf("it does not say %q:\n%s", s, p.stderr())
		}
	}
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// server is a Caddy in a process of its own.
type server struct {
	*process
	url, admin, file string
	config           string
}

// head is what the Caddyfiles of tests begin with: a site at @URL@, and an admin
// endpoint. What follows belongs to the site.
const head = `{
	admin @ADMIN@
	persist_config off
	default_bind 127.0.0.1
	@GLOBAL@
}
@URL@ {
`

// freePort returns a port that nobody listened on just now.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	noError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// startCaddy starts a Caddy whose site, at a port of its own, is as given.
func startCaddy(t testing.TB, site string) *server {
	t.Helper()
	return startCaddyAt(t, "http://"+freePort(t), "auto_https off", site)
}

// startTLS starts one that speaks TLS, and HTTP/2 and HTTP/3.
func startTLS(t testing.TB, site string) (*server, *tls.Config) {
	t.Helper()
	_, port, _ := strings.Cut(freePort(t), ":")
	s := startCaddyAt(t, "https://localhost:"+port, "auto_https disable_redirects\nskip_install_trust", "tls internal\n"+site)
	s.awaitTLS(port)
	return s, clientTLS()
}

// awaitTLS waits until there is a certificate, and Caddy uses it.
func (p *process) awaitTLS(port string) {
	p.t.Helper()
	p.await("certificate obtained successfully")
	for p.t.Context().Err() == nil {
		c, err := (&tls.Dialer{Config: clientTLS()}).DialContext(p.t.Context(), "tcp", "localhost:"+port)
		if err == nil {
			_ = c.Close()
			return
		}
	}
}

func clientTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"} //nolint:gosec // a certificate of its own
}

func tlsClient() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: clientTLS(), ForceAttemptHTTP2: true}}
}

func startCaddyAt(t testing.TB, url, global, site string) *server {
	t.Helper()
	// Not a Unix socket: a copy of one blocks for a moment while it is made, and an
	// accept of that moment keeps the next reload waiting for good.
	s := &server{url: url, admin: freePort(t), file: filepath.Join(t.TempDir(), "Caddyfile")}
	s.config = strings.NewReplacer("@ADMIN@", s.admin, "@URL@", url, "@GLOBAL@", global).Replace(head)
	noError(t, os.WriteFile(s.file, []byte(s.config+site+"\n}\n"), 0o600))
	s.run(t)
	return s
}

// run starts the process, again if it has ended.
func (s *server) run(t testing.TB) {
	t.Helper()
	s.process = start(t, "caddy", "run", "--config", s.file, "--adapter", "caddyfile")
	s.await("serving initial configuration")
}

// reload has the site be as given.
func (s *server) reload(t testing.TB, site string) {
	t.Helper()
	if status, said := s.tryReload(t, site); status != http.StatusOK {
		t.Fatalf("the reload is answered with %d: %s", status, said)
	}
}

func (s *server) tryReload(t testing.TB, site string) (status int, said string) {
	t.Helper()
	// The admin endpoint moves with each: what it has not taken is reset, and sent
	// again.
	a := s.load(t, site)
	for n := 0; a.err != nil && !os.IsTimeout(a.err) && n < 20; n++ {
		a = s.load(t, site)
	}
	if a.err == nil {
		return a.status, a.body
	}
	_ = s.cmd.Process.Signal(syscall.SIGQUIT) // it tells what it does
	t.Fatalf("no reload is answered: %v", a.err)
	return 0, ""
}

func (s *server) load(t testing.TB, site string) answer {
	t.Helper()
	return send(t.Context(), http.MethodPost, "http://"+s.admin+"/load", s.config+site+"\n}\n",
		"Content-Type: text/caddyfile", "Cache-Control: must-revalidate")
}

// answer is what came of a request.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

// problem is the case of the problem that the answer is, or "".
func (a answer) problem() string {
	if _, kind, ok := strings.Cut(a.body, `docs/http.md#`); ok {
		kind, _, _ = strings.Cut(kind, `"`)
		return kind
	}
	return ""
}

// client has a connection for each request: one that is kept may be closed by a
// server that is reloaded, just when it is used.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

// send sends one request. Fields are "Name: value".
func send(ctx context.Context, method, url, body string, fields ...string) answer {
	return sendBy(ctx, client, method, url, body, fields...)
}

func sendBy(ctx context.Context, c *http.Client, method, url, body string, fields ...string) answer {
	// No transport may send it twice: its body cannot be had again.
	var content io.Reader
	if body != "" {
		content = io.MultiReader(bytes.NewReader([]byte(body)))
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return answer{err: err}
	}
	req.ContentLength = int64(len(body))
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Idempotency-Key" {
			name = "idempotency-key"
		}
		req.Header[name] = append(req.Header[name], value)
	}
	res, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(got), err}
}

// post sends a request, and again if there is no answer, as a client that keeps its
// key: Caddy resets connections that it has not taken when it is reloaded.
func post(t testing.TB, url, key, body string, fields ...string) (a answer) {
	t.Helper()
	for range 20 {
		if a = postOnce(t, url, key, body, fields...); a.err == nil {
			break
		}
	}
	return a
}

func postOnce(t testing.TB, url, key, body string, fields ...string) answer {
	t.Helper()
	return send(t.Context(), http.MethodPost, url, body, append(fields, "Idempotency-Key: "+key)...)
}

// service is what is protected: it counts effects by the body of each request.
type service struct {
	*httptest.Server
	mu      sync.Mutex
	effects map[string]int
	seen    []*http.Request
	hold    map[string]chan struct{} // a request with such a body waits
	arrived chan string              // told of those that wait
}

func newService(t testing.TB) *service {
	s := &service{effects: map[string]int{}, hold: map[string]chan struct{}{}, arrived: make(chan string, 1024)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.mu.Lock()
		for _, c := range s.hold {
			close(c)
		}
		s.hold = nil
		s.mu.Unlock()
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// holds has requests with this body wait, until release is called.
func (s *service) holds(body string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.hold[body] = c
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hold[body] == c {
			delete(s.hold, body)
			close(c)
		}
	}
}

// ServeHTTP implements http.Handler.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	body := string(text)
	s.mu.Lock()
	s.seen = append(s.seen, r)
	hold := s.hold[body]
	s.effects[body]++
	n := s.effects[body]
	s.mu.Unlock()
	if hold != nil {
		s.arrived <- body
		<-hold
	}
	if status := r.Header.Get("X-Answer"); status != "" {
		var code int
		_, _ = fmt.Sscan(status, &code)
		w.WriteHeader(code)
		return
	}
	w.Header().Set("X-Effect", fmt.Sprint(n))
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "effect %d of %s", n, body)
}

// effectsOf is how often the service has had an effect for this body.
func (s *service) effectsOf(body string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.effects[body]
}

// last is the latest request that the service has got.
func (s *service) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return &http.Request{}
	}
	return s.seen[len(s.seen)-1]
}

// protect is a site that passes everything on, with these settings.
func (s *service) protect(settings ...string) string {
	return "semel {\n" + strings.Join(settings, "\n") + "\n}\nreverse_proxy " + strings.TrimPrefix(s.URL, "http://")
}

func newSQLite(t testing.TB) string {
	return "store sqlite:" + filepath.Join(t.TempDir(), "semel.db")
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantReplay checks that again repeats the first answer.
func wantReplay(t testing.TB, what string, first, again answer) {
	t.Helper()
	if again.status != first.status || again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s: got %v, replayed %q; want %v", what, again, again.header.Get("Idempotency-Replayed"), first)
	}
}
