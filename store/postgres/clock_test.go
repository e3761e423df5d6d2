package postgres_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// hostVariable makes this test binary a host on the database that it names: it
// does what its standard input calls for and answers on its standard output.
const hostVariable = "SEMEL_TEST_HOST_ON"

// halfAnHour is longer than any test and shorter than clocks are apart: a lease
// or retention of it is not over, unless somebody asks the wrong clock.
const halfAnHour = 30 * time.Minute

type hostCall struct {
	// Op is clock, submit, hold (submit, and stay in the handler), finish
	// (let that handler go on), find, or sweep.
	Op      string
	Mode    postgres.Mode
	Key     string
	OnCrash semel.CrashPolicy
	Lease   time.Duration
}

type hostReply struct {
	Clock     time.Time
	Answer    string
	State     string // of the record found; empty if there is none
	Lease     time.Duration
	ExpiresAt time.Time
	Swept     int
	Err       string
}

// serveHost is the other process.
func serveHost(t *testing.T, url string) {
	pool := connect(t, url, nil)
	stores := map[postgres.Mode]*postgres.Store{
		postgres.ModeLeased: open(t, pool, postgres.Config{}), postgres.ModeTransactional: open(t, pool, transactional()),
	}
	submitted := func(c hostCall, handler func(ctx context.Context) error) hostReply {
		g := guard(t, stores[c.Mode], semel.Policy{Lease: c.Lease, Heartbeat: min(50*time.Millisecond, c.Lease/3), Retention: halfAnHour, OnCrash: c.OnCrash})
		out, err := g.Do(t.Context(), submit(c.Key), func(ctx context.Context) (semel.Result, error) {
			if err := handler(ctx); err != nil {
				return semel.Result{}, err
			}
			if c.Mode == postgres.ModeTransactional {
				return result("paid"), pay(ctx, c.Key)
			}
			_, err := pool.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", c.Key)
			return result("paid"), err
		})
		r := hostReply{Answer: out.Answer.String(), ExpiresAt: out.Record.ExpiresAt}
		if _, ok := errors.AsType[*semel.Error](err); !ok && err != nil {
			r.Err = err.Error()
		}
		return r
	}
	type work struct {
		goOn chan struct{}
		done chan hostReply
	}
	held := map[string]work{}
	do := func(c hostCall) hostReply {
		switch c.Op {
		case "clock":
			return hostReply{Clock: time.Now()}
		case "submit":
			return submitted(c, func(context.Context) error { return nil })
		case "hold":
			w := work{make(chan struct{}), make(chan hostReply, 1)}
			held[c.Key] = w
			begun := make(chan struct{})
			go func() {
				w.done <- submitted(c, func(ctx context.Context) error {
					close(begun)
					select {
					case <-w.goOn:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			}()
			select {
			case <-begun:
				return hostReply{Answer: "at work"}
			case r := <-w.done:
				return r
			}
		case "finish":
			close(held[c.Key].goOn)
			return <-held[c.Key].done
		case "find":
			rec, err := stores[c.Mode].Find(t.Context(), attempt(c.Key).Identity)
			if errors.Is(err, semel.ErrNotFound) {
				return hostReply{}
			}
			r := hostReply{State: rec.State.String(), Lease: rec.Lease, ExpiresAt: rec.ExpiresAt}
			if err != nil {
				r.Err = err.Error()
			}
			return r
		case "sweep":
			n, err := stores[postgres.ModeLeased].Sweep(t.Context(), 100)
			r := hostReply{Swept: n}
			if err != nil {
				r.Err = err.Error()
			}
			return r
		}
		return hostReply{Err: "no such call: " + c.Op}
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c hostCall
		if err := in.Decode(&c); err != nil {
			return // the other side is gone
		}
		if err := out.Encode(do(c)); err != nil {
			return
		}
	}
}

// host is a process with a clock of its own.
type host struct {
	name    string
	skew    time.Duration
	process *osexec.Cmd
	stdin   io.Closer
	calls   *json.Encoder
	replies *json.Decoder
	stderr  bytes.Buffer
}

func startHost(t *testing.T, program, url, name string, skew time.Duration) *host {
	t.Helper()
	h := &host{name: name, skew: skew, process: osexec.Command(program, "-test.run=^TestHostsWithClocksApart$")}
	h.process.Env = append(os.Environ(), hostVariable+"="+url, testenv.EnvSkew+"="+skew.String())
	h.process.Stderr = &h.stderr
	in, err := h.process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.process.Start(); err != nil {
		t.Fatal(err)
	}
	h.stdin, h.calls, h.replies = in, json.NewEncoder(in), json.NewDecoder(out)
	t.Cleanup(func() {
		_ = h.stdin.Close() // at which it ends
		late := time.AfterFunc(time.Minute, func() { _ = h.process.Process.Kill() })
		defer late.Stop()
		_ = h.process.Wait() // some were killed
	})
	return h
}

func (h *host) ask(t *testing.T, c hostCall) (r hostReply) {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = h.process.Process.Kill() })
	defer late.Stop()
	err := h.calls.Encode(c)
	if err == nil {
		err = h.replies.Decode(&r)
	}
	if err != nil {
		_ = h.process.Process.Kill()
		_ = h.process.Wait()
		t.Fatalf("host %s does not answer %+v: %v\n%s", h.name, c, err, &h.stderr)
	}
	if r.Err != "" {
		t.Fatalf("host %s answers %+v: %s", h.name, c, r.Err)
	}
	return r
}

// TestHostsWithClocksApart has processes with clocks an hour ahead and an hour
// behind use one database beside one whose clock is right. The whole process
// has that clock, the driver too.
func TestHostsWithClocksApart(t *testing.T) {
	if url := os.Getenv(hostVariable); url != "" {
		serveHost(t, url)
		return
	}
	shop := newShop(t)
	open(t, shop.direct, postgres.Config{}) // makes the tables
	program := testenv.BuildSkewed(t, "test", "-c", ".")
	start := func(t *testing.T) []*host {
		return []*host{
			startHost(t, os.Args[0], shop.url, "right", 0),
			startHost(t, program, shop.url, "ahead", time.Hour),
			startHost(t, program, shop.url, "behind", -time.Hour),
		}
	}
	now := func(t *testing.T) (now time.Time) {
		t.Helper()
		if err := shop.direct.QueryRow(context.Background(), "SELECT clock_timestamp()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		return now
	}
	began := now(t)
	hosts := start(t)
	for _, h := range hosts {
		before, clock, after := now(t), h.ask(t, hostCall{Op: "clock"}).Clock, now(t)
		if clock.Before(before.Add(h.skew-time.Minute)) || clock.After(after.Add(h.skew+time.Minute)) {
			t.Fatalf("host %s tells %v at %v; it is to be wrong by %v", h.name, clock, before, h.skew)
		}
	}

	// replayed asserts that all hosts answer from the record, and tell the
	// same end of it.
	replayed := func(t *testing.T, c hostCall, expires time.Time) {
		t.Helper()
		for _, h := range hosts {
			c.Op = "submit"
			if r := h.ask(t, c); r.Answer != "replayed" || !r.ExpiresAt.Equal(expires) {
				t.Fatalf("host %s answers %s from %q, which expires at %v; want it replayed until %v", h.name, r.Answer, c.Key, r.ExpiresAt, expires)
			}
			c.Op = "find"
			if r := h.ask(t, c); r.State != "completed" || !r.ExpiresAt.Equal(expires) {
				t.Fatalf("host %s finds %q %s until %v; want it completed until %v", h.name, c.Key, r.State, r.ExpiresAt, expires)
			}
		}
	}
	swept := func(t *testing.T, h *host, want int) {
		t.Helper()
		if r := h.ask(t, hostCall{Op: "sweep"}); r.Swept != want {
			t.Fatalf("host %s swept %d records; want %d", h.name, r.Swept, want)
		}
	}

	for _, mode := range []postgres.Mode{postgres.ModeLeased, postgres.ModeTransactional} {
		t.Run(mode.String(), func(t *testing.T) {
			for _, owner := range hosts {
				c := hostCall{Mode: mode, Key: mode.String() + " of " + owner.name, OnCrash: semel.CrashRetry, Lease: halfAnHour}
				ask := func(h *host, op string) hostReply { t.Helper(); c.Op = op; return h.ask(t, c) }
				start := now(t)
				if r := ask(owner, "hold"); r.Answer != "at work" {
					t.Fatalf("%s: %s; want it at work", c.Key, r.Answer)
				}
				if mode == postgres.ModeLeased {
					await(t, func() (renewed bool) {
						err := shop.direct.QueryRow(t.Context(), "SELECT lease_until > begun_at + $2::interval FROM semel.record WHERE key = $1", c.Key, halfAnHour).Scan(&renewed)
						return err == nil && renewed
					})
				}
				for _, h := range hosts {
					if r := ask(h, "submit"); r.Answer != "in_progress" {
						t.Fatalf("host %s answers %s beside the owner of %q; want it in progress", h.name, r.Answer, c.Key)
					}
					r := ask(h, "find")
					if mode == postgres.ModeLeased && (r.State != "in_progress" || r.Lease <= halfAnHour-10*time.Minute || r.Lease > halfAnHour) {
						t.Fatalf("host %s sees %q %s with %v left of a lease of %v", h.name, c.Key, r.State, r.Lease, halfAnHour)
					}
				}
				shop.want(t, c.Key, 0)
				before := now(t)
				r := ask(owner, "finish")
				if after := now(t); r.Answer != "executed" || r.ExpiresAt.Before(before.Add(halfAnHour)) || r.ExpiresAt.After(after.Add(halfAnHour)) {
					t.Fatalf("%q completed: %s until %v; want it executed until %v", c.Key, r.Answer, r.ExpiresAt, after.Add(halfAnHour))
				}
				replayed(t, c, r.ExpiresAt)
				shop.want(t, c.Key, 1)
				var begunAt, settledAt time.Time
				if err := shop.direct.QueryRow(t.Context(), "SELECT begun_at, settled_at FROM semel.record WHERE key = $1", c.Key).Scan(&begunAt, &settledAt); err != nil {
					t.Fatal(err)
				}
				if begunAt.Before(start) || settledAt.Before(begunAt) || !r.ExpiresAt.Equal(settledAt.Add(halfAnHour)) {
					t.Fatalf("%q was begun after %v, at %v, and completed at %v, until %v", c.Key, start, begunAt, settledAt, r.ExpiresAt)
				}

				// Before its end by the server's clock nobody removes or
				// replaces it, after it anybody does.
				for _, h := range hosts {
					swept(t, h, 0)
				}
				advance(t, shop.direct, "semel", halfAnHour-time.Minute)
				for _, h := range hosts {
					swept(t, h, 0)
				}
				replayed(t, c, r.ExpiresAt.Add(time.Minute-halfAnHour))
				for i, h := range hosts {
					advance(t, shop.direct, "semel", halfAnHour)
					for _, other := range hosts {
						if r := ask(other, "find"); r.State != "" {
							t.Fatalf("host %s finds %q %s past its retention", other.name, c.Key, r.State)
						}
					}
					r := ask(h, "submit")
					if r.Answer != "executed" {
						t.Fatalf("host %s answers %s past the retention of %q; want it executed", h.name, r.Answer, c.Key)
					}
					replayed(t, c, r.ExpiresAt)
					shop.want(t, c.Key, 2+i)
				}
				advance(t, shop.direct, "semel", halfAnHour)
				swept(t, owner, 1)
			}
		})
	}

	t.Run("a killed owner", func(t *testing.T) {
		const lease = 2 * time.Second
		victims := start(t)
		calls := map[string]hostCall{}
		for _, v := range victims {
			for _, p := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
				c := hostCall{Op: "hold", Key: p.String() + " after " + v.name, OnCrash: p, Lease: lease}
				if r := v.ask(t, c); r.Answer != "at work" {
					t.Fatalf("%s: %s; want it at work", c.Key, r.Answer)
				}
				calls[c.Key] = c
			}
		}
		for _, v := range victims {
			if err := v.process.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		look := func(key string) (clock, until time.Time) {
			t.Helper()
			if err := shop.direct.QueryRow(t.Context(), "SELECT clock_timestamp(), lease_until FROM semel.record WHERE key = $1", key).Scan(&clock, &until); err != nil {
				t.Fatal(err)
			}
			return clock, until
		}
		for key, c := range calls {
			await(t, func() bool {
				lapsed := 0
				for _, h := range hosts {
					c.Op = "find"
					before, until := look(key)
					r := h.ask(t, c)
					after, same := look(key)
					if !same.Equal(until) {
						continue // the last thing the victim had sent
					}
					switch over := r.Lease <= 0; {
					case r.State != "in_progress":
						t.Fatalf("host %s finds %q %s", h.name, key, r.State)
					case over && after.Before(until), !over && before.After(until):
						t.Fatalf("between %v and %v host %s sees %v left of a lease until %v", before, after, h.name, r.Lease, until)
					case over:
						lapsed++
					}
				}
				return lapsed == len(hosts)
			})
		}
		for key, c := range calls {
			c.Op = "submit"
			want, payments := []string{"unknown", "unknown", "unknown"}, 0
			if c.OnCrash == semel.CrashRetry {
				want, payments = []string{"executed", "replayed", "replayed"}, 1
			}
			for i, h := range hosts {
				if r := h.ask(t, c); r.Answer != want[i] {
					t.Errorf("host %s answers %s for %q; want %s", h.name, r.Answer, key, want[i])
				}
			}
			shop.want(t, key, payments)
		}
	})

	t.Run("the audit trail", func(t *testing.T) {
		for _, h := range hosts {
			_ = h.stdin.Close()
			if err := h.process.Wait(); err != nil {
				t.Fatalf("host %s: %v\n%s", h.name, err, &h.stderr)
			}
		}
		var entries, off int
		// Those of executions are dated as their records were, which were moved into
		// the past above.
		if err := shop.direct.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE at NOT BETWEEN $1 AND clock_timestamp()) FROM semel.trail
			WHERE kind <> 'executed'`, began).Scan(&entries, &off); err != nil {
			t.Fatal(err)
		}
		if entries < 50 || off > 0 {
			t.Errorf("%d of %d entries are dated by another clock than the server's", off, entries)
		}
	})
}

// Two hosts whose clocks are an hour apart agree, because the package asks no
// clock but the server's: time.Now measures ages and durations only.
func TestNoClockOfItsOwn(t *testing.T) {
	allowed := map[string]bool{"notes.go": true, "sweep.go": true, "outboxlook.go": true, "pending.go": true, "wait.go": true}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || allowed[name] {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && (s.Sel.Name == "Now" || s.Sel.Name == "Since" || s.Sel.Name == "Until") {
					t.Errorf("%s asks this host's clock: time.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// A transaction that was begun long ago does not carry its old time along.
func TestTimesAreOfTheMomentNotTheTransaction(t *testing.T) {
	shop := newShop(t)
	s := open(t, shop.direct, transactional())
	tx, err := shop.direct.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.2)"); err != nil {
		t.Fatal(err)
	}
	claim, err := s.Begin(postgres.WithTx(t.Context(), tx), attempt("k"))
	if err != nil {
		t.Fatal(err)
	}
	expires, err := claim.Complete(t.Context(), result("done"))
	if err != nil {
		t.Fatal(err)
	}
	var age time.Duration
	if err := tx.QueryRow(t.Context(), "SELECT $1::timestamptz - interval '24 hours' - now()", expires).Scan(&age); err != nil {
		t.Fatal(err)
	}
	if age < 200*time.Millisecond {
		t.Fatalf("completed %v after the transaction began, which slept for 200 ms", age)
	}
}
