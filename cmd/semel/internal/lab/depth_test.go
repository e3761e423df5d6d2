package lab

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel/internal/quick"
)

// TestLockThatLapses sends again and again while the first request works for longer than
// the lock holds.
func TestLockThatLapses(t *testing.T) {
	quick.LeaveOut(t)
	for _, c := range []struct {
		name    string
		change  func(*Switches)
		effects int
	}{
		{"by the clock", func(s *Switches) { s.Failures, s.Lease = false, false }, 2},
		{"homemade, never", func(s *Switches) { s.Failures = false }, 1},
		{"semel", func(*Switches) {}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, "semel")
			s := l.Switches("charges")
			c.change(&s)
			s.Unique, s.Before = false, 4000 // longer than semel's lease as well
			if err := l.Set("charges", s); err != nil {
				t.Fatal(err)
			}
			var first sync.WaitGroup
			first.Go(func() { request{key: "k"}.send(t, url) })
			l.until(t, "the first has begun", func() bool {
				list, _ := l.trail.list("r", 1)
				return len(list) > 0 && (s.semels() || list[0].Decision == decidedExecuted)
			})
			var others sync.WaitGroup
			l.until(t, "the first has ended, or a second has begun", func() bool {
				others.Go(func() { request{key: "k"}.send(t, url) })
				attempts, _ := l.trail.list("r", 1000)
				return done(t, l, "charges", "acme", "r") > 0 || auditOf("charges", attempts).Decisions[decidedExecuted] > 1
			})
			first.Wait()
			others.Wait()
			if n := done(t, l, "charges", "acme", "r"); n < c.effects || c.effects == 1 && n > 1 {
				t.Errorf("done %d times, want %d", n, c.effects)
			}
		})
	}
}

// TestClockSkew sends the second request to an instance whose clock is ahead.
func TestClockSkew(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Switches)
		effects int
	}{
		{"each its own clock", func(s *Switches) { s.Failures, s.Lease = false, false }, 2},
		{"homemade, never", func(s *Switches) { s.Failures = false }, 1},
		{"semel", func(*Switches) {}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, "semel")
			s := l.Switches("charges")
			c.change(&s)
			s.Unique, s.ClockSkew = false, true
			if err := l.Set("charges", s); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if a := (request{key: "k"}).send(t, url); a.status != 201 {
					t.Errorf("answered %+v", a)
				}
			}
			if n := done(t, l, "charges", "acme", "r"); n != c.effects {
				t.Errorf("done %d times, want %d", n, c.effects)
			}
		})
	}
}

// TestJobs sends a job twice under one key, and has its worker fail behind the effect.
func TestJobs(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Switches)
		sends   int
		effects int
	}{
		{"no key", func(s *Switches) { s.Key, s.Queue = KeyIgnored, false }, 2, 2},
		{"no key, semel's queue", func(s *Switches) { s.Key = KeyIgnored }, 2, 2},
		{"memory", func(s *Switches) { s.Queue = false }, 2, 1},
		{"semel", func(*Switches) {}, 2, 1},
		{"memory, the worker fails", func(s *Switches) { s.Queue, s.FailAfter = false, true }, 1, 2},
		{"semel, the worker fails", func(s *Switches) { s.FailAfter = true }, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, "semel")
			s := l.Switches("roles")
			s.Unique = false
			c.change(&s)
			if err := l.Set("roles", s); err != nil {
				t.Fatal(err)
			}
			if s.FailAfter { // who accepts it is to succeed
				l.First("failure", Attempt{Operation: "roles", Tenant: "acme", Reference: "r"})
			}
			q := request{key: "k", body: `{"reference": "r", "user": "bob", "role": "admin"}`}
			var said struct {
				Job string
				At  string `json:"status_url"`
			}
			for range c.sends {
				a := q.post(t, url+"/jobs/roles")
				if err := json.Unmarshal([]byte(a.text), &said); err != nil || a.status != 202 {
					t.Fatalf("answered %+v", a)
				}
			}
			worked := func() (n int) {
				list, _ := l.trail.list("r", 100)
				for _, a := range list {
					if a.Path == "worker" && a.Status == http.StatusOK {
						n++
					}
				}
				return n
			}
			jobs := c.sends
			if s.Key != KeyIgnored {
				jobs = 1
			}
			l.until(t, "all is worked off", func() bool { return worked() == jobs && done(t, l, "roles", "acme", "r") >= c.effects })
			if n := done(t, l, "roles", "acme", "r"); n != c.effects {
				t.Errorf("done %d times, want %d", n, c.effects)
			}
			if n := mails(t, l, "r"); n != c.effects {
				t.Errorf("%d mails, want %d", n, c.effects)
			}
			var status struct{ Status, ID string }
			l.until(t, "the job says so", func() bool {
				resp, err := once.Get(url + said.At)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				return json.NewDecoder(resp.Body).Decode(&status) == nil && status.Status == "done"
			})
			if !strings.HasPrefix(status.ID, "rol_") {
				t.Errorf("the job is %+v", status)
			}
			attempts, _ := l.trail.list("r", 100)
			found := explain(operationNamed("roles"), s, attempts, c.effects, c.effects)
			if c.name == "memory, the worker fails" && (len(found) == 0 || !strings.Contains(found[0].Causes[1].Name, "queue")) {
				t.Errorf("why: %+v", found)
			}
		})
	}
}

// TestRedelivery has the provider deliver one event, which it does once more.
func TestRedelivery(t *testing.T) {
	for preset, want := range map[string]int{"unprotected": 2, "semel": 1} {
		l, url := start(t, preset)
		s := l.Switches("confirmations")
		s.Redeliver = true
		if err := l.Set("confirmations", s); err != nil {
			t.Fatal(err)
		}
		resp, err := once.Post(url+"/lab/deliver/confirmations?times=1", "application/json", strings.NewReader(`{"reference": "r"}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if n := done(t, l, "confirmations", "acme", "r"); n != want {
			t.Errorf("%s: done %d times, want %d", preset, n, want)
		}
	}
}

// TestOneTrace follows a request through API, job, effect and sending.
func TestOneTrace(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for _, preset := range []string{"unprotected", "semel"} {
		l, url := start(t, preset)
		r, err := http.NewRequestWithContext(t.Context(), "POST", url+"/jobs/charges", strings.NewReader(`{"reference": "r", "amount": 500}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer alice@acme")
		r.Header.Set("Idempotency-Key", `"k"`)
		r.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		resp, err := once.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		l.until(t, "all is sent", func() bool { return len(l.world.because(trace)) == 2 })
		l.until(t, "it is done", func() bool { return done(t, l, "charges", "acme", "r") == 1 })
		if resp, err = once.Get(url + "/lab/trace/" + trace); err != nil {
			t.Fatal(err)
		}
		var said struct{ Items []Event }
		err = json.NewDecoder(resp.Body).Decode(&said)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for _, e := range said.Items {
			found[e.What]++
		}
		for _, what := range []string{"request", "worker", "effect", "mail", "hook"} {
			if found[what] != 1 {
				t.Errorf("%s: %d times %s: %+v", preset, found[what], what, said.Items)
			}
		}
	}
}

// TestAudit counts what was decided.
func TestAudit(t *testing.T) {
	l, url := start(t, "semel")
	for _, q := range []request{{key: "k"}, {key: "k"}, {key: "k", body: `{"reference": "r", "amount": 900}`}, {key: "k2"}} {
		q.send(t, url)
	}
	attempts, _ := l.trail.list("", 100)
	n := auditOf("charges", attempts)
	if n.Attempts != 4 || n.Duplicates != 2 || n.Collisions != 1 || n.Decisions[decidedMismatch] != 1 || n.Decisions[decidedReplayed] != 1 {
		t.Errorf("%+v", n)
	}
}

// TestLateOwner has an execution that was taken for dead go on, when another has done its
// work: their effects have one key.
func TestLateOwner(t *testing.T) {
	l, _ := start(t, "semel")
	c := call{
		Reference: "r", Amount: 500, who: caller{"acme", "alice"}, operation: operationNamed("charges"),
		switches: Switches{Transaction: true, Outbox: true}, trace: "t", madeBy: "ck_1",
	}
	if _, err := l.app.perform(t.Context(), c, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.app.perform(t.Context(), c, func(string) {}); !errors.Is(err, errAgain) {
		t.Errorf("the late one: %v", err)
	}
	if n := done(t, l, "charges", "acme", "r"); n != 1 {
		t.Errorf("done %d times", n)
	}
	if cents, err := l.balance(t.Context(), c.who); err != nil || cents != startBalance-500 {
		t.Errorf("the balance is %d: %v", cents, err)
	}
}
