package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
)

// programsDir is where what the tests build is; TestMain removes it.
var programsDir string

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == labAppName { // a lab of a test has started it
		os.Exit(run(context.Background(), os.Args[1:], nil, os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) == 4 && os.Args[1] == ledgerName { // a test has started it
		log.Fatal(ledgerProcess(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 3 && os.Args[1] == instead { // torture has started it
		if err := serveDefective(os.Args[2], os.Args[3:]); err != nil {
			log.Fatal(err)
		}
		os.Exit(0)
	}
	var err error
	if programsDir, err = os.MkdirTemp("", "semel-test-"); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programsDir)
	os.Exit(code)
}

var built = sync.OnceValues(func() (string, error) {
	program := filepath.Join(programsDir, "semel")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the program does not build: %w\n%s", err, out)
	}
	return program, nil
})

// binary returns the program, for the tests that need processes.
func binary(t *testing.T) string {
	t.Helper()
	quick.LeaveOut(t)
	program, err := built()
	noError(t, err)
	return program
}

// process is a gateway that runs in a process of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and made anew with each line
}

// startGateway returns when the gateway listens.
func startGateway(t *testing.T, args ...string) *process {
	t.Helper()
	return startGatewayIn(t, nil, nil, args...)
}

// startGatewayIn is startGateway with more environment, and with somebody who
// reads standard output.
func startGatewayIn(t *testing.T, env []string, stdout io.Writer, args ...string) *process {
	t.Helper()
	return start(t, env, stdout, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
}

// startGatewayBy starts a gateway that a file describes.
func startGatewayBy(t *testing.T, file string, env ...string) *process {
	t.Helper()
	return start(t, env, nil, "--config", file)
}

func start(t *testing.T, env []string, stdout io.Writer, args ...string) *process {
	t.Helper()
	p := &process{
		t: t, cmd: exec.Command(binary(t), append([]string{"gateway"}, args...)...),
		done: make(chan struct{}), more: make(chan struct{}),
	}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "SYSTEMROOT=" + os.Getenv("SYSTEMROOT")}, env...)
	p.cmd.Stdout = stdout
	stderr, err := p.cmd.StderrPipe()
	noError(t, err)
	noError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		for in := bufio.NewScanner(stderr); in.Scan(); {
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
		if t.Failed() {
			t.Logf("the gateway said:\n%s", p.stderr())
		}
	})
	var told struct{ Addr string } // with --log-format json
	line := p.await("listening")
	if json.Unmarshal([]byte(line), &told) == nil {
		p.url = "http://" + told.Addr
	} else {
		p.url = strings.TrimPrefix(line, "semel gateway is listening on ")
	}
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
			p.t.Fatalf("the gateway ended without saying %q:\n%s", s, p.stderr())
		}
	}
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate asks the process to end, and does not wait.
func (p *process) terminate() {
	p.t.Helper()
	noError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
}

func (p *process) exitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

// problem returns the part of the problem's type behind the number sign.
func (a answer) problem() string {
	var p struct{ Type string }
	_ = json.Unmarshal([]byte(a.body), &p)
	_, name, _ := strings.Cut(p.Type, "#")
	return name
}

// try posts an order. The error is that of the connection.
func try(url, key, body string) (answer, error) {
	req, err := http.NewRequest(http.MethodPost, url+"/orders", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b)}, err
}

func post(t *testing.T, url, key, body string) answer {
	t.Helper()
	a, err := try(url, key, body)
	noError(t, err)
	return a
}

// postUntilSettled retries as a client would for as long as the response is
// that the key is in progress.
func postUntilSettled(t *testing.T, url, key, body string) answer {
	t.Helper()
	for {
		a := post(t, url, key, body)
		if a.problem() != "in-progress" {
			return a
		}
		want(t, "status while in progress", a.status, 409)
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil {
			t.Fatalf("a response in progress has Retry-After %q", a.header.Get("Retry-After"))
		}
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-t.Context().Done():
			t.Fatal("the test has ended")
		}
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// upstream is a service whose effects are counted. While it is held, requests
// have their effect and are not answered.
type upstream struct {
	url     string
	effects atomic.Int64
	entered chan string // the key of each request
	held    atomic.Bool
	leave   chan struct{}
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{entered: make(chan string, 100), leave: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := u.effects.Add(1)
		u.entered <- r.Header.Get("Idempotency-Key")
		if u.held.Load() {
			<-u.leave
		}
		w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
		w.WriteHeader(201)
		_, _ = fmt.Fprintf(w, `{"id":%d}`, n)
	}))
	u.url = server.URL
	t.Cleanup(func() {
		u.release()
		server.Close()
	})
	return u
}

// release lets all requests be answered, now and later.
func (u *upstream) release() {
	if u.held.CompareAndSwap(true, false) {
		close(u.leave)
	}
}

// semel runs the program in this process.
type output struct {
	code           int
	stdout, stderr string
}

func semelWith(env []string, stdin string, args ...string) output {
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), args, env, strings.NewReader(stdin), &stdout, &stderr)
	return output{code, stdout.String(), stderr.String()}
}

// ok runs the program and fails the test if it fails.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	out := semelWith([]string{"USER=tester"}, "", args...)
	if out.code != exitOK {
		t.Fatalf("semel %s: exit code %d: %s", strings.Join(args, " "), out.code, out.stderr)
	}
	return out.stdout
}

type listed struct {
	Records []struct {
		ID, State, Key, Cause string
		Lapsed                bool
	}
	Next uint64
}

// idOf returns the id of the record with the key.
func idOf(t *testing.T, store, key string) string {
	t.Helper()
	var l listed
	noError(t, json.Unmarshal([]byte(ok(t, "keys", "list", "--store", store, "--key", key, "--json")), &l))
	if len(l.Records) != 1 {
		t.Fatalf("there are %d records with the key %q", len(l.Records), key)
	}
	return l.Records[0].ID
}

func newStore(t *testing.T) string {
	return "sqlite:" + filepath.Join(t.TempDir(), "semel.db")
}

// TestKilledInTheMiddle: the gateway is killed while the upstream works on three
// requests. No retry has a second effect; each is told that the outcome is unknown
// once the lease has lapsed; and semel keys resolve settles it, three ways.
func TestKilledInTheMiddle(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	u.held.Store(true)
	g := startGateway(t, "--upstream", u.url, "--store", db, "--lease", "2s")
	keys := []string{"happened", "did-not", "again"}
	var cut sync.WaitGroup
	for _, key := range keys {
		cut.Go(func() {
			if a, err := try(g.url, key, `{"item":"book"}`); err == nil {
				t.Errorf("%s: the client got a response from a dead gateway: %d", key, a.status)
			}
		})
		<-u.entered
	}
	want(t, "answer to a duplicate meanwhile", post(t, g.url, "happened", `{"item":"book"}`).problem(), "in-progress")
	g.kill()
	cut.Wait()
	u.release()

	g = startGateway(t, "--upstream", u.url, "--store", db, "--lease", "2s")
	for _, key := range keys {
		a := postUntilSettled(t, g.url, key, `{"item":"book"}`)
		want(t, key+": status after the crash", a.status, 409)
		want(t, key+": problem after the crash", a.problem(), "outcome-unknown")
		want(t, key+": another request", post(t, g.url, key, `{"item":"pen"}`).status, 422)
	}
	want(t, "effects before any resolution", u.effects.Load(), 3)
	want(t, "records that are unknown", strings.Count(ok(t, "keys", "list", "--store", db, "--state", "unknown"), "unknown"), 3)

	// It happened: the response is what the operator says.
	out := ok(t, "keys", "resolve", "--store", db, idOf(t, db, "happened"), "--as", "result", "--status", "201",
		"--header", "Location: /orders/1", "--header", "X-Two: a", "--header", "X-Two: b", "--body", `{"id":1}`, "--because", "order 1 is there")
	if !strings.Contains(out, "now    completed: replays answer 201 until ") {
		t.Errorf("resolve printed:\n%s", out)
	}
	a := post(t, g.url, "happened", `{"item":"book"}`)
	want(t, "status", a.status, 201)
	want(t, "replayed", a.replayed(), true)
	want(t, "body", a.body, `{"id":1}`)
	want(t, "Location", a.header.Get("Location"), "/orders/1")
	want(t, "Content-Type", a.header.Get("Content-Type"), "application/json")
	want(t, "X-Two", strings.Join(a.header.Values("X-Two"), ","), "a,b")
	want(t, "effects", u.effects.Load(), 3)

	// It did not: the key is free, also for another request.
	id := idOf(t, db, "did-not")
	out = ok(t, "keys", "resolve", "--store", db, id, "--as", "no-effect", "--because", "no such order", "--by", "alice")
	if !strings.Contains(out, "now    gone") {
		t.Errorf("resolve printed:\n%s", out)
	}
	a = post(t, g.url, "did-not", `{"item":"pen"}`)
	want(t, "status", a.status, 201)
	want(t, "replayed", a.replayed(), false)
	want(t, "effects", u.effects.Load(), 4)

	// It may run again: only the same request does.
	ok(t, "keys", "resolve", "--store", db, idOf(t, db, "again"), "--as", "execute-again", "--because", "upstream deduplicates")
	want(t, "another request", post(t, g.url, "again", `{"item":"pen"}`).status, 422)
	a = post(t, g.url, "again", `{"item":"book"}`)
	want(t, "status", a.status, 201)
	want(t, "replayed", a.replayed(), false)
	want(t, "effects", u.effects.Load(), 5)
	want(t, "replayed", post(t, g.url, "again", `{"item":"book"}`).replayed(), true)

	var trail struct {
		Entries []struct{ Kind, Label, Cause, RequestID string }
	}
	noError(t, json.Unmarshal([]byte(ok(t, "audit", "search", "--store", db, "--record", id, "--kind", "resolved", "--json")), &trail))
	if len(trail.Entries) != 1 || trail.Entries[0].Label != "no_effect" || trail.Entries[0].Cause != "no such order (by alice)" {
		t.Errorf("the trail says %+v", trail.Entries)
	}
	if out := ok(t, "audit", "search", "--store", db, "--request-id", "operator:alice"); strings.Count(out, "resolved") != 1 {
		t.Errorf("the trail of the operator is:\n%s", out)
	}
}

func TestTwentyInParallel(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	u.held.Store(true)
	// Two gateways on one file are as good as one.
	gateways := []*process{
		startGateway(t, "--upstream", u.url, "--store", db),
		startGateway(t, "--upstream", u.url, "--store", db),
	}
	type result struct {
		answer
		err error
	}
	results := make(chan result)
	for i := range 20 {
		go func() {
			a, err := try(gateways[i%2].url, "k", `{"item":"book"}`)
			results <- result{a, err}
		}()
	}
	for range 19 {
		r := <-results
		noError(t, r.err)
		want(t, "status", r.status, 409)
		want(t, "problem", r.problem(), "in-progress")
	}
	u.release()
	r := <-results
	noError(t, r.err)
	want(t, "status of the winner", r.status, 201)
	for _, g := range gateways {
		a := post(t, g.url, "k", `{"item":"book"}`)
		want(t, "status of the replay", a.status, 201)
		want(t, "replayed", a.replayed(), true)
		want(t, "body", a.body, `{"id":1}`)
	}
	want(t, "effects", u.effects.Load(), 1)
}

func TestSigtermDrains(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	u, db := newUpstream(t), newStore(t)
	u.held.Store(true)
	g := startGateway(t, "--upstream", u.url, "--store", db)
	answers := make(chan answer, 1)
	go func() {
		a, err := try(g.url, "k", "{}")
		if err != nil {
			t.Errorf("the request in flight: %v", err)
		}
		answers <- a
	}()
	<-u.entered
	g.terminate()
	if line := g.await("draining"); !strings.Contains(line, "longest=30s") {
		t.Errorf("without --drain it says: %s", line)
	}
	for { // the listener is closed right after that
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			break
		}
		_ = c.Close()
	}
	u.release()
	want(t, "status of the request in flight", (<-answers).status, 201)
	want(t, "exit code", g.exitCode(), exitOK)
	g.await("drained")

	g = startGateway(t, "--upstream", u.url, "--store", db)
	want(t, "replayed after a restart", post(t, g.url, "k", "{}").replayed(), true)
	want(t, "effects", u.effects.Load(), 1)
}

// TestDrainGivesUp: the upstream does not answer in time. The gateway says what
// it leaves, and the record says later that the outcome is unknown.
func TestDrainGivesUp(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	u, db := newUpstream(t), newStore(t)
	u.held.Store(true)
	g := startGateway(t, "--upstream", u.url, "--store", db, "--lease", "1s", "--drain", "100ms")
	var cut sync.WaitGroup
	cut.Go(func() {
		if _, err := try(g.url, "k", "{}"); err == nil {
			t.Error("the client got a response")
		}
	})
	<-u.entered
	g.terminate()
	want(t, "exit code", g.exitCode(), exitFailed)
	g.await("1 requests are cut off: semel: drain: 1 executions still running")
	cut.Wait()
	u.release()
	g = startGateway(t, "--upstream", u.url, "--store", db, "--lease", "1s")
	want(t, "problem", postUntilSettled(t, g.url, "k", "{}").problem(), "outcome-unknown")
	want(t, "effects", u.effects.Load(), 1)
}

// TestOnCrashRetry: where the operator says that the service deduplicates, a
// lapsed claim is taken over.
func TestOnCrashRetry(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	u.held.Store(true)
	args := []string{"--upstream", u.url, "--store", db, "--lease", "1s", "--on-crash", "retry"}
	g := startGateway(t, args...)
	var cut sync.WaitGroup
	cut.Go(func() { _, _ = try(g.url, "k", "{}") })
	want(t, "key at the upstream", <-u.entered, "k")
	g.kill()
	cut.Wait()
	u.release()
	g = startGateway(t, args...)
	want(t, "status", postUntilSettled(t, g.url, "k", "{}").status, 201)
	want(t, "requests at the upstream", u.effects.Load(), 2)
}

// TestNoSecretsInOutput: keys, credentials and payload, of requests and of
// answers, stay out of the log, whatever goes well or wrong.
func TestNoSecretsInOutput(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) { noSecretsInOutput(t, format) })
	}
}

func noSecretsInOutput(t *testing.T, format string) {
	running, leave := make(chan bool), make(chan bool)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Set-Cookie", "session=secret-session")
		w.Header().Set("Location", "/orders/secret-id")
		switch r.Header.Get("Idempotency-Key") {
		case "secret-running":
			running <- true
			<-leave
		case "secret-fails":
			w.WriteHeader(http.StatusInternalServerError)
		case "secret-bad":
			w.WriteHeader(http.StatusBadGateway)
		case "secret-cut": // in the middle of the response
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "secret-answer")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "secret-gone": // before it
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"card":"secret-answer"}`)
	}))
	t.Cleanup(service.Close)
	db := newStore(t)
	args := []string{"--store", db, "--log-format", format, "--max-request-body", "1KiB"}
	if format == "json" {
		args = append(args, "--fail-open")
	}
	g := startGateway(t, append(args, "--upstream", service.URL)...)
	send := func(key, body string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, g.url+"/orders?card=secret-query", strings.NewReader("secret-payload"+body))
		noError(t, err)
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Authorization", "Bearer secret-token")
		req.Header.Set("Cookie", "session=secret-cookie")
		res, err := http.DefaultClient.Do(req)
		noError(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.StatusCode
	}
	wantSent := func(what, key, body string, status int) {
		t.Helper()
		want(t, what, send(key, body), status)
	}
	wantSent("success", "secret-key", "", 200)
	wantSent("replay", "secret-key", "", 200)
	wantSent("mismatch", "secret-key", "-other", 422)
	wantSent("no key at all", `"secret-unclosed`, "", 400)
	wantSent("too large", "secret-large", strings.Repeat("x", 2000), 413)
	wantSent("a failure of the service", "secret-fails", "", 500)
	wantSent("replay of a failure", "secret-fails", "", 500)
	var first sync.WaitGroup
	first.Go(func() { send("secret-running", "") })
	<-running
	wantSent("in flight", "secret-running", "", 409)
	close(leave)
	first.Wait()
	for _, key := range []string{"secret-bad", "secret-gone", "secret-cut"} {
		send(key, "") // whose outcome is unknown then
		wantSent(key+": unknown", key, "", 409)
	}
	g.await("upstream cut off before its response")
	g.await("upstream cut off its response")

	// The store fails, and then the service is not there.
	path := strings.TrimPrefix(db, "sqlite:")
	noError(t, os.Rename(path, path+".away"))
	if format == "json" {
		wantSent("failed open", "secret-open", "", 200)
		g.await("failed open")
	} else {
		wantSent("the store has failed", "secret-store", "", 503)
	}
	g.await("store failed")
	noError(t, os.Rename(path+".away", path))
	service.Close()
	wantSent("refused", "secret-refused", "", 503)
	g.await("nothing was sent")
	g.terminate()
	<-g.done
	if out := g.stderr(); strings.Contains(out, "secret") {
		t.Errorf("the log holds a secret:\n%s", out)
	}
}

// TestListensTwice: a busy address is said to be one.
func TestListensTwice(t *testing.T) {
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", newStore(t))
	out := semelWith(nil, "", "gateway", "--upstream", u.url, "--store", "memory:", "--listen", strings.TrimPrefix(g.url, "http://"))
	want(t, "exit code", out.code, exitFailed)
	if !strings.Contains(out.stderr, "cannot listen on 127.0.0.1:") || !strings.Contains(out.stderr, "a retry is safe") {
		t.Errorf("it said: %s", out.stderr)
	}
}

// TestMemoryGateway runs the command in this process: it ends with its context.
func TestMemoryGateway(t *testing.T) {
	u := newUpstream(t)
	ctx, cancel := context.WithCancel(context.Background())
	in, stderr := io.Pipe()
	done := make(chan int)
	go func() {
		done <- run(ctx, []string{"gateway"}, []string{
			"SEMEL_UPSTREAM=" + u.url, "SEMEL_STORE=memory:", "SEMEL_LISTEN=127.0.0.1:0", "SEMEL_LOG_FORMAT=json", "SEMEL_CREDENTIAL_HEADER=X-Api-Key,Authorization",
		}, nil, io.Discard, stderr)
	}()
	lines := json.NewDecoder(in)
	var line struct {
		Msg, Addr, Store string
		Actor            []string
	}
	noError(t, lines.Decode(&line))
	want(t, "message", line.Msg, "listening")
	want(t, "actor", line.Actor[0], "a digest of X-Api-Key, Authorization, which is not checked here")
	if !strings.Contains(line.Store, "records end with this process") {
		t.Errorf("of the store it says %q", line.Store)
	}
	want(t, "status", post(t, "http://"+line.Addr, "k", "{}").status, 201)
	want(t, "replayed", post(t, "http://"+line.Addr, "k", "{}").replayed(), true)
	cancel()
	for _, msg := range []string{"draining: no new connections", "drained"} {
		noError(t, lines.Decode(&line))
		want(t, "message", line.Msg, msg)
	}
	want(t, "exit code", <-done, exitOK)
}
