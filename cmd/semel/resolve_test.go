package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/semelhttp"
)

// TestResolveAfterAnOutage: the upstream answers 502 for a while. Nothing changes
// without --apply; the command that is printed settles what was unknown then; a
// request that runs, and one of another cause, are left.
func TestResolveAfterAnOutage(t *testing.T) {
	var status sync.Map // by key
	held, release := make(chan struct{}, 1), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if key == "running" {
			held <- struct{}{}
			<-release
		}
		code, ok := status.Load(key)
		if !ok {
			code = 201
		}
		w.WriteHeader(code.(int))
	}))
	defer upstream.Close()
	db := newStore(t)
	g := startGateway(t, "--upstream", upstream.URL, "--store", db)
	for i := range 8 {
		status.Store(fmt.Sprint("k", i), 502)
		post(t, g.url, fmt.Sprint("k", i), "{}")
	}
	status.Store("other", 504)
	post(t, g.url, "other", "{}")
	running := make(chan answer, 1)
	go func() {
		a, err := try(g.url, "running", "{}")
		if err != nil {
			t.Error(err)
		}
		running <- a
	}()
	<-held

	args := []string{"keys", "resolve", "--store", db, "--where", "answered=502", "--where", "operation=POST /orders", "--where", "since=1h"}
	args = append(args, "--as", "no-effect", "--because", "it's not in the ledger")
	dry := ok(t, args...)
	var doc bulkJSON
	noError(t, json.Unmarshal([]byte(ok(t, append(args, "--json")...)), &doc))
	command := slices.DeleteFunc(doc.Command, func(w string) bool { return w == "--json" })
	since := regexp.MustCompile(`since=[^']*Z`) // each dry run counts back from its own now
	for _, part := range []string{"DRY RUN: 8 records are unknown.", "8        POST /orders  the handler answered 502", "Nothing was changed", since.ReplaceAllString(shellWords(command), "since=")} {
		if !strings.Contains(since.ReplaceAllString(dry, "since="), part) {
			t.Errorf("the dry run does not say %q:\n%s", part, dry)
		}
	}
	command = command[1:]
	want(t, "records that are unknown after the dry run", strings.Count(ok(t, "keys", "list", "--store", db, "--state", "unknown"), "unknown"), 9)

	// The same failure once more, after the operator looked.
	status.Store("late", 502)
	post(t, g.url, "late", "{}")

	out := ok(t, command...)
	if !regexp.MustCompile(`^settled\s+8\s+as no-effect\nnewer\s+1\s`).MatchString(out) {
		t.Errorf("the run printed:\n%s", out)
	}
	want(t, "records that are unknown after it", strings.Count(ok(t, "keys", "list", "--store", db, "--state", "unknown"), "unknown"), 2)
	for i := range 8 {
		key := fmt.Sprint("k", i)
		var trail struct {
			Entries []struct {
				Label, Cause string
				RequestID    string `json:"request_id"`
			}
		}
		noError(t, json.Unmarshal([]byte(ok(t, "audit", "search", "--store", db, "--key", key, "--kind", "resolved", "--json")), &trail))
		if len(trail.Entries) != 1 || trail.Entries[0].Label != "no_effect" || trail.Entries[0].RequestID != "operator:tester" ||
			trail.Entries[0].Cause != "it's not in the ledger (by tester)" {
			t.Errorf("the trail of %s is %+v", key, trail.Entries)
		}
		status.Store(key, 201)
		want(t, "a retry of "+key, post(t, g.url, key, "{}").status, 201)
	}
	// Repeating it does nothing.
	if out := ok(t, command...); !strings.HasPrefix(out, "settled  0") {
		t.Errorf("the run again printed:\n%s", out)
	}
	close(release)
	want(t, "the request that ran meanwhile", (<-running).status, 201)
}

// TestResolveManyRefuses: mistakes change nothing.
func TestResolveManyRefuses(t *testing.T) {
	r := newRecords(t)
	before := r.run("keys", "list", "--json").stdout
	for _, tt := range []struct{ args, want string }{
		{"id --where cause=*", "not both"},
		{"--apply id", "--apply goes with --where only"},
		{"--limit 1 id", "--limit goes with --where only"},
		{"--where cause", "write NAME=VALUE"},
		{"--where colour=red", `names "colour"`},
		{"--where operation=", "write NAME=VALUE"},
		{"--where operation=a --where operation=b", "names operation twice"},
		{"--where cause=* --where answered=502", "names cause twice"},
		{"--where since=yesterday", "2026-11-21T09:00:00Z"},
		{"--where cause=* --as-of now", "the time that the dry run prints"},
		{"--where cause=* --limit -1", "must not be negative"},
		{"--where cause=* --apply", "--as is missing"},
		{"--where cause=* --apply --as no-effect", "run the command without --apply first"},
		{"--where cause=* --apply --as no-effect --as-of 2100-01-01T00:00:00Z", "--because is missing"},
		{"--where cause=* --as result --status 100", "status 100"},
		{"--where cause=* --status 200", "goes with --as result only"},
	} {
		out := r.run(append([]string{"keys", "resolve"}, strings.Fields(tt.args)...)...)
		want(t, "exit code of "+tt.args, out.code, exitUsage)
		if !strings.Contains(out.stderr, tt.want) {
			t.Errorf("%s says: %s", tt.args, out.stderr)
		}
		want(t, "output of "+tt.args, out.stdout, "")
	}
	out := r.run("keys", "resolve", "--where", "operation=nothing")
	want(t, "exit code of nothing", out.code, exitOK)
	want(t, "output of nothing", out.stdout, "")
	r.run("keys", "resolve", "--where", "cause=*", "--as", "no-effect")
	r.run("keys", "resolve", "--where", "tenant=t")
	// The lease of one runs down in these lines, and of nothing else.
	lease := regexp.MustCompile(`"lease_seconds":[-0-9.e]+`)
	if after := r.run("keys", "list", "--json").stdout; lease.ReplaceAllString(after, "") != lease.ReplaceAllString(before, "") {
		t.Errorf("the records were\n%s\nand are\n%s", before, after)
	}
}

// TestResolveManyJSON: lapsed records are marked, what cannot have an HTTP answer
// is left, and the documents say so.
func TestResolveManyJSON(t *testing.T) {
	r := newRecords(t)
	bulk := func(args ...string) (doc bulkJSON) {
		t.Helper()
		out := r.run(append([]string{"keys", "resolve", "--json", "--where", "tenant=t"}, args...)...)
		want(t, "exit code", out.code, exitOK)
		want(t, "messages", out.stderr, "")
		noError(t, json.Unmarshal([]byte(out.stdout), &doc))
		return doc
	}
	dry := bulk()
	want(t, "dry", dry.DryRun, true)
	want(t, "selected", dry.Selected, 2)
	want(t, "lapsed", dry.Lapsed, 1)
	want(t, "groups", fmt.Sprint(dry.Groups), "[{1 POST /foreign cut off false} {1 POST /lapsed  true} {1 POST /unknown cut \x1b[31moff false}]")
	want(t, "sample", len(dry.Sample), 3)
	if line := shellWords(dry.Command); !strings.Contains(line, "--as 'no-effect|execute-again|result' --because 'HOW YOU KNOW'") || strings.Contains(line, "--store") {
		t.Errorf("the command is %s", line)
	}
	asOf := []string{"--apply", "--because", "x", "--as-of", timestamp(*dry.AsOf)}
	done := bulk(append(asOf, "--as", "result", "--status", "202", "--body", "done")...)
	want(t, "decision", done.Decision, "result")
	want(t, "settled", done.Settled, 1)
	want(t, "left", done.Left, 1)
	want(t, "marked", done.Marked, 1)
	want(t, "newer", done.Newer, 1)
	var rec recordJSON
	noError(t, json.Unmarshal([]byte(r.run("keys", "show", "--json", r.ids["unknown"]).stdout), &rec))
	want(t, "label", rec.Result.Label, "202")

	dry = bulk()
	want(t, "selected after the mark", dry.Selected, 2)
	done = bulk("--apply", "--because", "x", "--as-of", timestamp(*dry.AsOf), "--as", "execute-again", "--limit", "1")
	want(t, "settled", done.Settled, 1)
	want(t, "more", done.More, true)
	done = bulk("--apply", "--because", "x", "--as-of", timestamp(*dry.AsOf), "--as", "execute-again")
	want(t, "settled", done.Settled, 1)
	want(t, "more", done.More, false)
	// What waits to be executed again is not marked by the next.
	dry = bulk()
	want(t, "selected in the end", dry.Selected+dry.Lapsed, 0)
	want(t, "state of the living", strings.Count(r.run("keys", "list", "--key", "live").stdout, "in_progress"), 1)
}

// TestNoPasswordInTheCommand: the command of a dry run can be pasted anywhere.
func TestNoPasswordInTheCommand(t *testing.T) {
	p := &program{env: map[string]string{}}
	cmd := p.keysResolveCommand()
	noError(t, cmd.ParseFlags([]string{"--store", "postgres://me:hunter2@host/db", "--as", "no-effect", "--header", "A: b"}))
	if line := shellWords(p.repeatable(cmd)); strings.Contains(line, "hunter2") || !strings.Contains(line, `--store "$SEMEL_STORE"`) || !strings.Contains(line, "--header 'A: b'") ||
		!strings.Contains(line, "--by 'WHO DECIDES'") {
		t.Errorf("the command is %s", line)
	}
}

func TestShellWords(t *testing.T) {
	for word, quoted := range map[string]string{
		"plain": "plain", "": "''", "sqlite:a/b-1.db": "sqlite:a/b-1.db", "POST /orders": "'POST /orders'", "it's": `'it'\''s'`,
		"$HOME": "'$HOME'", "$SEMEL_STORE": `"$SEMEL_STORE"`, "cause=*": "'cause=*'", "a\nb": "'a\nb'", "~": "'~'", "é": "'é'",
	} {
		want(t, word, shellWords([]string{word}), quoted)
	}
}

// TestProgress: a short command says nothing; a long one now and then, on one
// line, and leaves nothing behind.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{w: &out, since: time.Now()}
		for i := range 100 {
			p.say("%d settled", i)
			time.Sleep(30 * time.Millisecond)
		}
		p.end()
		want(t, "progress", out.String(), "\r67 settled\r84 settled\r          \r")
	})
	p := (&program{stderr: &bytes.Buffer{}}).newProgress()
	p.say("nothing")
	p.end()
}

// TestResolveTensOfThousands: a run over the whole outage is interrupted by its
// operator, then killed, and goes on each time with what is left. In the end each
// record was resolved once, and the owner that lives has noticed nothing.
func TestResolveTensOfThousands(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := newStore(t)
			if kind == "postgres" {
				url = testenv.Postgres(t) + "&pool_max_conns=8"
			}
			n := 20_000
			if raceEnabled {
				n = 6000
			}
			s, err := openStore(t.Context(), nil, url, 0, func(int, error) {})
			noError(t, err)
			defer func() { noError(t, s.Close(context.Background())) }()
			living := manyUnknown(t, s, n)

			env := []string{"SEMEL_STORE=" + url, "USER=tester"}
			where := []string{"keys", "resolve", "--where", "answered=502", "--as", "no-effect", "--because", "not in the ledger", "--json"}
			dry := semelWith(env, "", where...)
			want(t, "messages of the dry run", dry.stderr, "")
			var doc bulkJSON
			noError(t, json.Unmarshal([]byte(dry.stdout), &doc))
			want(t, "selected", doc.Selected, n)
			command := doc.Command[1:]

			// By Ctrl-C. The limit is for where that comes late.
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var stdout, stderr bytes.Buffer
			ended := make(chan int, 1)
			start := time.Now()
			limited := func(most int) []string { return append(slices.Clone(command), "--limit", fmt.Sprint(most)) }
			go func() { ended <- run(ctx, limited(n/2), env, strings.NewReader(""), &stdout, &stderr) }()
			seen := &resolutions{of: map[string]int{}}
			seen.await(t, s, n/4)
			interrupt()
			code := <-ended
			if !strings.Contains(strings.ToLower(stderr.String()), "run the same command again to go on") {
				t.Errorf("the interrupted run said: %s", stderr.String())
			}
			var first bulkJSON
			noError(t, json.Unmarshal(stdout.Bytes(), &first))
			if code != exitFailed && first.Settled < n/2 {
				t.Errorf("the interrupted run ended with %d after %d", code, first.Settled)
			}
			want(t, "more", first.More, true)
			// A slow store may not confirm a decision in time; the report says so.
			if of := len((&resolutions{of: map[string]int{}}).read(t, s).of); of < first.Settled || of > first.Settled+first.InDoubt {
				t.Errorf("the report has %d settled and %d in doubt, the trail %d", first.Settled, first.InDoubt, of)
			}
			t.Logf("settled %d in %v", first.Settled, time.Since(start))

			// By a crash.
			killed := exec.Command(binary(t), limited(n/4)...)
			killed.Env = append(env, "PATH="+os.Getenv("PATH"), "SYSTEMROOT="+os.Getenv("SYSTEMROOT"))
			noError(t, killed.Start())
			seen.await(t, s, first.Settled+n/8)
			noError(t, killed.Process.Kill())
			_ = killed.Wait()

			start = time.Now()
			settled, inDoubt := 0, 0
			for range 5 {
				last := semelWith(env, "", command...)
				doc = bulkJSON{}
				noError(t, json.Unmarshal([]byte(last.stdout), &doc))
				settled, inDoubt = settled+doc.Settled, inDoubt+doc.InDoubt
				if last.code == exitOK {
					break
				}
				t.Logf("interrupted by %s", last.stderr)
				want(t, "exit code of a last run", last.code, exitFailed)
				if doc.InDoubt == 0 {
					t.Errorf("it failed without a decision in doubt: %s", last.stderr)
				}
			}
			t.Logf("settled %d more in %v: %.0f each second", settled, time.Since(start), float64(settled)/time.Since(start).Seconds())
			if settled+inDoubt < n/4 || settled > n-first.Settled-n/8 || doc.More || doc.Left+doc.InDoubt+doc.Newer > 0 {
				t.Errorf("the last run says %+v", doc)
			}

			// Anew: a transaction can put an entry before one that was read.
			of := (&resolutions{of: map[string]int{}}).read(t, s).of
			want(t, "records that were resolved", len(of), n)
			for id, times := range of {
				if times != 1 {
					t.Fatalf("record %s was resolved %d times", id, times)
				}
			}
			left, err := s.List(t.Context(), semel.Filter{})
			noError(t, err)
			if len(left) != 1 || left[0].ID != living.RecordID() || left[0].Fence != living.Fence() {
				t.Fatalf("left are %+v", left)
			}
			_, err = living.Complete(t.Context(), semel.Result{Codec: "test/1", Label: "ok"})
			noError(t, err)
		})
	}
}

// manyUnknown leaves n unknown records, and in their middle one whose owner lives.
func manyUnknown(t *testing.T, s store, n int) (living semel.Claim) {
	t.Helper()
	next := make(chan int)
	var workers sync.WaitGroup
	for range 64 {
		workers.Go(func() {
			for i := range next {
				a := semel.NewAttempt(semel.Identity{Scope: semel.Scope{Operation: "POST /payments"}, Key: fmt.Sprint("k", i)},
					semel.Fingerprint{Scheme: semelhttp.SchemeHTTP}, time.Hour, time.Hour)
				c, err := s.Begin(t.Context(), a)
				if err == nil && i == n/2 {
					living = c
					continue
				}
				if err == nil {
					err = c.Hold(t.Context(), "the handler answered 502")
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range n + 1 {
		next <- i
	}
	close(next)
	workers.Wait()
	return living
}

// resolutions follows the trail and counts those of each record.
type resolutions struct {
	of    map[string]int
	after uint64
}

func (r *resolutions) read(t *testing.T, s store) *resolutions {
	t.Helper()
	for {
		entries, err := s.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailResolved, After: r.after, Limit: 1000})
		noError(t, err)
		for _, e := range entries {
			r.of[e.RecordID]++
			r.after = e.Position
		}
		if len(entries) < 1000 {
			return r
		}
	}
}

func (r *resolutions) await(t *testing.T, s store, n int) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for len(r.read(t, s).of) < n {
		<-tick.C
	}
}
