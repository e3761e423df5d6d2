package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/testenv"
)

// asApp has this test binary be the app, for labs that start it as a process.
const asApp = "lab-app"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == asApp {
		if err := RunApp(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startProcess returns a lab whose app is a process of its own.
func startProcess(t *testing.T, c Config) (*Lab, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Command, c.Stderr = []string{self, asApp}, os.Stderr
	if c.Path == "" {
		c.Path = filepath.Join(t.TempDir(), "lab.db")
	}
	return serve(t, c)
}

func serve(t *testing.T, c Config) (*Lab, string) {
	t.Helper()
	l, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- l.Run(ctx) }()
	server := httptest.NewServer(l.Handler())
	t.Cleanup(func() {
		server.CloseClientConnections() // pages listen for events
		server.Close()
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, server.URL
}

// until waits for something to become true, which the trail tells of.
func (l *Lab) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond) // rows of the database change untold
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !ok() {
		_, changed := l.trail.list("", 0)
		select {
		case <-changed:
		case <-tick.C:
		case <-limit:
			list, _ := l.trail.list("", 10)
			t.Fatalf("never: %s; the trail: %+v", what, list)
		}
	}
}

// TestCrashMidway kills the app behind the effect and in front of the response,
// and tries again with the same key. What was in memory is forgotten; semel's
// is not.
func TestCrashMidway(t *testing.T) {
	quick.LeaveOut(t)
	for _, c := range []struct {
		name            string
		preset          string
		off             func(*Switches)
		effects, drafts int
		second          int
	}{
		{"look first, act later", "tutorial", func(*Switches) {}, 2, 0, 201},
		// The key is taken for ever: nobody is told what became of it.
		{"lock without a lease", "homemade", func(*Switches) {}, 1, 0, 409},
		{"lock that lapses", "homemade", func(s *Switches) { s.Lease = false }, 2, 0, 201},
		{"semel", "semel", func(s *Switches) { s.Unique = false }, 1, 0, 201},
		// Half of it is left. Where references are accepted once, the retry is told that it was done.
		{"two halves", "unprotected", func(*Switches) {}, 1, 1, 201},
		{"two halves, unique", "unique", func(s *Switches) { s.Transaction = false }, 0, 1, 409},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, url := startProcess(t, Config{Preset: c.preset})
			s := l.Switches("orders")
			c.off(&s)
			s.Crash = true
			if err := l.Set("orders", s); err != nil {
				t.Fatal(err)
			}
			q := request{operation: "orders", key: "k"}
			if a := q.send(t, url); a.status != 0 {
				t.Errorf("the request that was cut off was answered: %+v", a)
			}
			l.until(t, "the trail says that it died", func() bool {
				list, _ := l.trail.list("r", 1)
				return len(list) == 1 && list[0].Died
			})
			// A lock that is going to lapse is waited for.
			var a response
			l.until(t, fmt.Sprint("a response ", c.second), func() bool {
				a = q.send(t, url)
				return a.status == c.second
			})
			drafts, err := l.Drafts(t.Context(), operationNamed("orders"), "acme", "r", 10)
			if n := done(t, l, "orders", "acme", "r"); err != nil || n != c.effects || len(drafts) != c.drafts {
				t.Errorf("done %d times and begun %d times, want %d and %d: %v", n, len(drafts), c.effects, c.drafts, err)
			}
			if up, starts := l.process.up(); !up || starts != 2 {
				t.Errorf("up %v, after %d starts", up, starts)
			}
		})
	}
}

// TestCrashedJob kills the worker midway in a job that was accepted. In memory the job is
// gone with it; in the database it is done, once.
func TestCrashedJob(t *testing.T) {
	quick.LeaveOut(t)
	for _, queue := range []bool{false, true} {
		t.Run(map[bool]string{false: "memory", true: "semel"}[queue], func(t *testing.T) {
			t.Parallel()
			l, url := startProcess(t, Config{Preset: "semel"})
			s := l.Switches("charges")
			s.Queue, s.Crash = queue, true
			if err := l.Set("charges", s); err != nil {
				t.Fatal(err)
			}
			q := request{key: "k", body: `{"reference": "r", "amount": 500}`}
			if a := q.post(t, url+"/jobs/charges"); a.status != 202 && !queue {
				t.Fatalf("answered %+v", a)
			}
			l.until(t, "the app died in it and came back", func() bool { up, starts := l.process.up(); return up && starts == 2 })
			want := 0 // it had not begun to commit, and nobody knows of it any more
			if queue {
				want = 1
				l.until(t, "the job is done", func() bool { return done(t, l, "charges", "acme", "r") > 0 })
				if n := mailsOf(t, l, "r"); n != 1 {
					t.Errorf("%d mails", n)
				}
			}
			// With semel the worker can be first: then nobody was told, and asks again.
			l.until(t, "the job is accepted", func() bool { return q.post(t, url+"/jobs/charges").status == 202 })
			if a := q.post(t, url+"/jobs/charges"); a.status != 202 || !a.replayed {
				t.Errorf("asked again: %+v", a)
			}
			if n := done(t, l, "charges", "acme", "r"); n != want {
				t.Errorf("done %d times, want %d", n, want)
			}
			attempts, _ := l.trail.list("r", 10)
			lost := slices.ContainsFunc(leftBehind(operationNamed("charges"), s, attempts, want, 0), func(i Incident) bool {
				return i.What == lostJob
			})
			if lost == queue {
				t.Errorf("that the job is lost is said: %v", lost)
			}
		})
	}
}

// TestCrashWhileAccepting kills the app when a job is enqueued and nobody has been told.
// Whoever asks again has the same job accepted.
func TestCrashWhileAccepting(t *testing.T) {
	quick.LeaveOut(t)
	l, url := startProcess(t, Config{Preset: "semel"})
	s := l.Switches("charges")
	s.Unique, s.After = false, 5000
	if err := l.Set("charges", s); err != nil {
		t.Fatal(err)
	}
	q := request{key: "k", body: `{"reference": "r", "amount": 500}`}
	first := make(chan response, 1)
	go func() { first <- q.post(t, url+"/jobs/charges") }()
	accepted := func(a Attempt) bool { return a.Path == "job" && len(a.Steps) > 0 }
	l.until(t, "it is enqueued", func() bool {
		list, _ := l.trail.list("r", 10)
		return slices.ContainsFunc(list, accepted)
	})
	if !l.process.crash() {
		t.Fatal("it did not crash")
	}
	if a := <-first; a.status != 0 {
		t.Errorf("answered %+v", a)
	}
	s.After = 0
	if err := l.Set("charges", s); err != nil {
		t.Fatal(err)
	}
	l.until(t, "it is accepted", func() bool { return q.post(t, url+"/jobs/charges").status == 202 })
	l.until(t, "it is done", func() bool { return done(t, l, "charges", "acme", "r") > 0 })
	if n := done(t, l, "charges", "acme", "r"); n != 1 {
		t.Errorf("done %d times", n)
	}
	attempts, _ := l.trail.list("r", 100)
	jobs := map[string]bool{}
	for _, a := range attempts {
		if a.Job != "" {
			jobs[a.Job] = true
		}
	}
	if len(jobs) != 1 {
		t.Errorf("jobs %v", jobs)
	}
}

// mailsOf waits for the mail of what was done.
func mailsOf(t *testing.T, l *Lab, reference string) (n int) {
	t.Helper()
	l.until(t, "a mail", func() bool { n = len(l.world.list("", reference, 10)); return n > 0 })
	return n
}

// TestCrashIsTold has who listens hear that the app died and came back, and pages that
// stay up meanwhile.
func TestCrashIsTold(t *testing.T) {
	l, url := startProcess(t, Config{})
	r, err := http.NewRequestWithContext(t.Context(), "GET", url+"/lab/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := once.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	hears := func(what string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasSuffix(lines.Text(), what) {
				return
			}
		}
		t.Fatalf("the stream has ended before %s: %v", what, lines.Err())
	}
	hears(`{"up": true, "starts": 1}`)
	resp2, err := once.Post(url+"/lab/crash", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp2.Body.Close()
	if resp2.StatusCode != http.StatusNoContent {
		t.Errorf("the crash: %d", resp2.StatusCode)
	}
	page, err := once.Get(url + "/")
	if err != nil {
		t.Fatal(err)
	}
	page.Body.Close()
	if page.StatusCode != http.StatusOK {
		t.Errorf("the page: %d", page.StatusCode)
	}
	hears(`"starts": 2}`)
	if a := (request{key: "k"}).send(t, url); a.status != 201 {
		t.Errorf("afterwards: %+v", a)
	}
	// An app that does not come up the first time is said, and not tried for ever.
	l.config.Command = []string{l.config.Command[0], "-test.run=^$"}
	fails, err := Open(t.Context(), Config{Path: filepath.Join(t.TempDir(), "other.db"), Command: l.config.Command})
	if err != nil {
		t.Fatal(err)
	}
	if err := fails.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "does not start") {
		t.Errorf("it says %v", err)
	}
	if err := fails.Close(); err != nil {
		t.Error(err)
	}
}

// TestPostgres has both halves of the lab work on a PostgreSQL database: what is
// homemade, and semel's, each operation by each way.
func TestPostgres(t *testing.T) {
	url := testenv.Postgres(t)
	for _, c := range []struct {
		preset  string
		effects int
	}{{"unprotected", 2}, {"tutorial", 1}, {"homemade", 1}, {"semel", 1}} {
		t.Run(c.preset, func(t *testing.T) {
			l, at := startProcess(t, Config{Postgres: url, Preset: c.preset})
			if err := l.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, o := range Operations {
				q := request{operation: o.Name, key: c.preset + "-" + o.Name, reference: "ref-" + o.Name}
				for range 2 {
					if a := q.send(t, at); a.status != 201 {
						t.Errorf("%s: answered %+v", o.Name, a)
					}
				}
				q.key += "-later"
				q.body = strings.ReplaceAll(o.Example, "REF", "job-"+o.Name)
				for range 2 {
					a := q.post(t, at+"/jobs/"+o.Name)
					var said struct{ Job string }
					if err := json.Unmarshal([]byte(a.text), &said); err != nil || a.status != 202 || said.Job == "" {
						t.Fatalf("%s: answered %+v", o.Name, a)
					}
				}
				for _, reference := range []string{"ref-", "job-"} {
					l.until(t, "all done", func() bool { return done(t, l, o.Name, "acme", reference+o.Name) >= c.effects })
				}
				l.until(t, "all sent", func() bool {
					return len(l.world.list(o.Name, "job-"+o.Name, 10)) >= c.effects && len(l.world.hooks(o.Name, "ref-"+o.Name, 10)) >= c.effects
				})
				for _, reference := range []string{"ref-", "job-"} {
					if n := done(t, l, o.Name, "acme", reference+o.Name); n != c.effects {
						t.Errorf("%s: done %d times, want %d", reference+o.Name, n, c.effects)
					}
				}
			}
		})
	}
}

// TestAppEndsWithItsLab has the lab die: its app does not outlive it.
func TestAppEndsWithItsLab(t *testing.T) {
	l, _ := start(t, "semel")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, asApp)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer()
	gone := make(chan struct{})
	if err := server.RegisterName("Lab", &office{l, gone}); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(pipe{out, in})
	}()
	l.until(t, "the app is up", func() bool { _, starts := l.process.up(); return starts == 2 })
	if err := in.Close(); err != nil { // as the system does for who dies
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the app goes on")
		_ = cmd.Process.Kill()
	}
	close(gone)
	<-served
}
