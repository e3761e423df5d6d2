package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/testenv"
)

// ledgerName is the first argument of this program when it is the ledger: a service
// of its own process, which keeps what it has done in a directory.
const ledgerName = "semel-test-ledger"

// ledgerProcess serves on the address. A file in the directory decides what it does:
// die-after and die-before have it killed by its first payment; lookups says how it
// answers look-ups if not by the truth.
func ledgerProcess(dir, addr string) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	note := func(file, text string) {
		mu.Lock()
		defer mu.Unlock()
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text + "\n")
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			panic(err)
		}
	}
	told := func(file string) string {
		text, _ := os.ReadFile(filepath.Join(dir, file))
		return string(text)
	}
	die := func(when string) {
		if os.Remove(filepath.Join(dir, "die-"+when)) == nil {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {}
		}
	}
	_, _ = fmt.Println(l.Addr())
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		if r.Method != http.MethodGet {
			die("before")
			note("payments", who+" "+r.Header.Get("Idempotency-Key")+" "+r.Header.Get("Semel-Fence"))
			die("after")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "paid")
			return
		}
		note("asked", "+")
		defer note("asked", "-")
		switch said := told("lookups"); said {
		case "hang":
			<-r.Context().Done()
			return
		case "404", "500":
			time.Sleep(50 * time.Millisecond) // so that others can come meanwhile
			w.WriteHeader(map[string]int{"404": 404, "500": 500}[said])
			return
		}
		wanted := who + " " + r.URL.Query().Get("key") + " " + r.URL.Query().Get("fence")
		for line := range strings.Lines(told("payments")) {
			if strings.TrimSpace(line) == wanted {
				_, _ = fmt.Fprintf(w, "paid, found by %q", wanted)
				return
			}
		}
		http.NotFound(w, r)
	}))
}

// ledger is such a service, which can be started again where it was.
type ledger struct {
	t         *testing.T
	dir, addr string
	done      chan struct{} // closed when the process has ended
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	quick.LeaveOut(t)
	l := &ledger{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	l.start()
	return l
}

func (l *ledger) start() {
	l.t.Helper()
	self, err := os.Executable()
	noError(l.t, err)
	cmd := exec.Command(self, ledgerName, l.dir, l.addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	noError(l.t, err)
	noError(l.t, cmd.Start())
	l.addr, err = bufio.NewReader(out).ReadString('\n')
	noError(l.t, err)
	l.addr = strings.TrimSpace(l.addr)
	l.done = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(l.done)
	}()
	l.t.Cleanup(func() { _ = cmd.Process.Kill(); <-l.done })
}

func (l *ledger) tell(file, text string) {
	l.t.Helper()
	noError(l.t, os.WriteFile(filepath.Join(l.dir, file), []byte(text), 0o600))
}

func (l *ledger) payments() (list []string) {
	text, _ := os.ReadFile(filepath.Join(l.dir, "payments"))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// asked returns how many look-ups there were, and the most at once.
func (l *ledger) asked() (n, most int) {
	text, _ := os.ReadFile(filepath.Join(l.dir, "asked"))
	now := 0
	for line := range strings.Lines(string(text)) {
		if line[0] == '-' {
			now--
			continue
		}
		n, now = n+1, now+1
		most = max(most, now)
	}
	return n, most
}

// gateway starts a gateway before the ledger.
func (l *ledger) gateway(store, settleAfter string) *process {
	l.t.Helper()
	file := writeFile(l.t, "gateway.yaml", fmt.Sprintf(`
version: 1
listen: 127.0.0.1:0
store: {url: %q}
principal: {digest: {headers: [Authorization]}}
upstreams: [{name: ledger, url: "http://%s", idle_timeout: 1s}]
defaults:
  lease: 2s
  heartbeat: 500ms
  on_crash: reconcile
  reconcile:
    url: /payments?key={key}&fence={fence}
    absent: [404]
    keep_response: true
    settle_after: %s
    timeout: 1s
routes:
  - match: POST /payments
    key: {required: true}
`, store, l.addr, settleAfter))
	return startGatewayBy(l.t, file)
}

// pay sends a payment. It may be called from any goroutine.
func pay(g *process, who, key string) (a answer) {
	r, err := http.NewRequest(http.MethodPost, g.url+"/payments", strings.NewReader(`{"amount":1}`))
	if err == nil {
		r.Header.Set("Authorization", who)
		r.Header.Set("Idempotency-Key", key)
		var res *http.Response
		if res, err = http.DefaultClient.Do(r); err == nil {
			defer func() { _ = res.Body.Close() }()
			body, _ := io.ReadAll(res.Body)
			return answer{res.StatusCode, res.Header, string(body)}
		}
	}
	return answer{body: err.Error()}
}

// payUntil pays until the response is not that the outcome is unknown.
func payUntil(t *testing.T, g *process, who, key string) answer {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		a := pay(g, who, key)
		if a.problem() != "outcome-unknown" || time.Now().After(deadline) {
			return a
		}
		after, err := time.ParseDuration(a.header.Get("Retry-After") + "s")
		noError(t, err)
		time.Sleep(after) // as a client is to
	}
}

// A service is killed between its effect and its response. The duplicate gets what
// the service says of it when it is back, and so does every later one; other callers
// with the same key get nothing of it. The trail says how it was settled.
func TestReconcileAfterTheEffect(t *testing.T) {
	l := newLedger(t)
	store := "sqlite:" + filepath.ToSlash(filepath.Join(t.TempDir(), "semel.db"))
	g := l.gateway(store, "1m")
	l.tell("die-after", "")
	first := pay(g, "alice", "k")
	want(t, "the status of the request", first.status, http.StatusBadGateway)
	want(t, "its problem", first.problem(), "outcome-unknown")
	<-l.done
	want(t, "the problem while the service is down", pay(g, "alice", "k").problem(), "outcome-unknown")
	l.start()
	a := payUntil(t, g, "alice", "k")
	want(t, "the status", a.status, http.StatusOK)
	want(t, "the body", a.body, `paid, found by "alice k 1"`)
	want(t, "it is replayed", a.replayed(), true)
	want(t, "the body of a later one", pay(g, "alice", "k").body, a.body)
	want(t, "the response to another caller", pay(g, "bob", "k").body, "paid")
	want(t, "the payments", strings.Join(l.payments(), ", "), "alice k 1, bob k 3")
	n, _ := l.asked()
	want(t, "the number of look-ups", n, 1)
	g.await("was asked what became of an operation")
	g.terminate()
	want(t, "exit code", g.exitCode(), exitOK)
	var trail struct {
		Entries []struct{ Kind, Cause string }
	}
	noError(t, json.Unmarshal([]byte(ok(t, "audit", "search", "--store", store, "--kind", "resolved", "--json")), &trail))
	if len(trail.Entries) != 1 || !strings.HasPrefix(trail.Entries[0].Cause, "reconciled") {
		t.Errorf("the trail says %+v", trail.Entries)
	}
}

// A service is killed before its effect. The duplicate executes, but not before the
// effect can no longer appear; a service that fails or says nothing leaves the outcome
// unknown meanwhile.
func TestReconcileBeforeTheEffect(t *testing.T) {
	l := newLedger(t)
	g := l.gateway("memory:", "3s")
	l.tell("die-before", "")
	sent := time.Now()
	want(t, "the problem of the request", pay(g, "alice", "k").problem(), "outcome-unknown")
	<-l.done
	l.start()
	for _, said := range []string{"500", "hang"} {
		l.tell("lookups", said)
		before, _ := l.asked()
		for after := before; after == before; after, _ = l.asked() {
			want(t, "the problem while look-ups come to "+said, pay(g, "alice", "k").problem(), "outcome-unknown")
		}
	}
	noError(t, os.Remove(filepath.Join(l.dir, "lookups")))
	a := payUntil(t, g, "alice", "k")
	if waited := time.Since(sent); waited < 3*time.Second {
		t.Errorf("it was executed after %v", waited)
	}
	want(t, "the status", a.status, http.StatusCreated)
	want(t, "the number of payments", len(l.payments()), 1)
	want(t, "the body of a later one", pay(g, "alice", "k").body, "paid")
}

// A hundred duplicates of an operation of unknown outcome come at once to two
// gateways on one PostgreSQL, again and again: each gateway has one look-up under way
// at most, and few in all, whatever they come to, and there is one effect.
func TestReconcileOverTwoGateways(t *testing.T) {
	store := testenv.Postgres(t)
	l := newLedger(t)
	gateways := [2]*process{l.gateway(store, "2s"), l.gateway(store, "2s")}
	l.tell("die-before", "")
	want(t, "the problem of the request", pay(gateways[0], "alice", "k").problem(), "outcome-unknown")
	<-l.done
	l.start()
	burst := func() (paid, unknown int64) {
		var made, left atomic.Int64
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				switch a := pay(gateways[i%2], "alice", "k"); {
				case a.status == http.StatusCreated && a.body == "paid":
					made.Add(1)
				case a.problem() == "outcome-unknown", a.problem() == "in-progress":
					left.Add(1)
				default:
					t.Errorf("status %d: %s", a.status, a.body)
				}
			})
		}
		all.Wait()
		return made.Load(), left.Load()
	}
	l.tell("lookups", "500")
	began := time.Now()
	for range 5 {
		paid, _ := burst()
		want(t, "the number of payments acknowledged while look-ups fail", paid, 0)
	}
	// Two gateways, and one in each half second and at once.
	n, most := l.asked()
	if limit := 2 * (1 + int(time.Since(began)/(500*time.Millisecond))); n > limit || n == 0 {
		t.Errorf("500 duplicates in %v made %d look-ups, want 1 to %d", time.Since(began), n, limit)
	}
	if most > 2 {
		t.Errorf("%d look-ups were under way at once", most)
	}
	noError(t, os.Remove(filepath.Join(l.dir, "lookups")))
	for deadline := time.Now().Add(time.Minute); ; {
		if paid, _ := burst(); paid == 100 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is never paid")
		}
	}
	want(t, "the number of payments", len(l.payments()), 1)
	if _, most := l.asked(); most > 2 {
		t.Errorf("%d look-ups were under way at once", most)
	}
}
