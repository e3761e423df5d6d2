package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
)

// TestUsage: what is wrong is named, by flag and variable, and nothing is done.
func TestUsage(t *testing.T) {
	db := newStore(t)
	tests := []struct {
		args []string
		env  []string
		want []string
	}{
		{args: []string{"kyes"}, want: []string{`unknown command "kyes"`, "keys"}},
		{args: []string{"keys"}, want: []string{"list, release, resolve, show"}},
		{args: []string{"keys", "list"}, want: []string{"--store (SEMEL_STORE): it is not set"}},
		{args: []string{"keys", "list", "--store", "memory:"}, want: []string{"lives in its gateway's process"}},
		{args: []string{"keys", "list", "--store", "mysql:x"}, want: []string{`"mysql:x", which does not name a store`}},
		{args: []string{"keys", "list", "--store", "sqlite:"}, want: []string{"without a path"}},
		{args: []string{"keys", "list", "--store", "sqlite://x.db"}, want: []string{"must be absolute"}},
		{args: []string{"keys", "list", "--store", db, "--state", "done"}, want: []string{"--state", "in_progress, completed, unknown"}},
		{args: []string{"keys", "show", "--store", db}, want: []string{"name one record by its id"}},
		{args: []string{"keys", "list", "--nope"}, want: []string{"--nope", "semel keys list --help"}},
		{args: []string{"gateway", "extra"}, want: []string{"extra"}},
		{args: []string{"gateway"}, want: []string{"--upstream (SEMEL_UPSTREAM) is not set", "--store (SEMEL_STORE)"}},
		{args: []string{"gateway"}, env: []string{"SEMEL_LEASE=soon"}, want: []string{`SEMEL_LEASE (flag --lease) cannot be "soon"`}},
		{args: []string{"gateway"}, env: []string{"SEMEL_MAX_RESULT=many"}, want: []string{"SEMEL_MAX_RESULT", "such as 256KiB"}},
		{args: []string{"gateway"}, env: []string{"SEMEL_ON_CRASH=panic"}, want: []string{"SEMEL_ON_CRASH", "hold, retry"}},
		{
			args: []string{"gateway", "--upstream", "localhost:9000", "--store", "x", "--lease", "1s", "--heartbeat", "600ms", "--drain", "0s", "--methods", "POST,GET", "--max-result", "1GiB", "--max-upstream-conns", "-1"},
			want: []string{"--upstream (SEMEL_UPSTREAM)", "--store (SEMEL_STORE)", "--heartbeat (SEMEL_HEARTBEAT)", "--drain (SEMEL_DRAIN)", `--methods (SEMEL_METHODS) names "GET"`, "--max-result (SEMEL_MAX_RESULT)", "--max-upstream-conns"},
		},
		{args: []string{"gateway", "--upstream", "http://u:p@x", "--store", "memory:"}, want: []string{"--upstream (SEMEL_UPSTREAM) may hold"}},
		{args: []string{"gateway", "--upstream", "http://x", "--store", "memory:", "--credential-header", "a b"}, want: []string{`Credentials names "a b"`}},
		{args: []string{"gateway", "--trust-forwarded", "--upstream", "http://x", "--store", "memory:"}, want: []string{"http://x"}}, // it has taken what is behind it
		{args: []string{"gateway", "--upstream", "http://x", "--store", "memory:", "--trust-forwarded"}, want: []string{"needs an argument: --trust-forwarded"}},
		{args: []string{"gateway", "--upstream", "http://x", "--store", "memory:", "--trust-forwarded=true"}, want: []string{`--trust-forwarded (SEMEL_TRUST_FORWARDED) names "true"`, "as in --trust-forwarded 10.1.2.0/24"}},
		{args: []string{"gateway", "--upstream", "http://x", "--store", "memory:"}, env: []string{"SEMEL_TRUST_FORWARDED=1"}, want: []string{`names "1", which is no network`}},
		{args: []string{"gateway", "--upstream", "http://x", "--store", "memory:", "--trust-forwarded", "0.0.0.0/0"}, want: []string{"trusts everybody"}},
		{args: []string{"audit"}, want: []string{"search"}},
		{args: []string{"outbox"}, want: []string{"list, purge, redrive, show, status"}},
		{args: []string{"outbox", "status"}, want: []string{"--store (SEMEL_STORE): it is not set"}},
		{args: []string{"outbox", "status", "--store", "redis://x/y"}, want: []string{"--store"}},
		{args: []string{"outbox", "list", "--store", db, "--state", "new"}, want: []string{"--state", "pending, delivered, dead, unknown"}},
		{args: []string{"outbox", "show", "--store", db}, want: []string{"name one message by its id"}},
		{args: []string{"outbox", "redrive", "--store", db, "x", "--state", "dead"}, want: []string{"select many with --state"}},
		{args: []string{"outbox", "redrive", "--store", db, "--topic", "t"}, want: []string{"--state is missing"}},
		{args: []string{"outbox", "redrive", "--store", db, "--state", "pending"}, want: []string{"dead, unknown"}},
		{args: []string{"outbox", "purge", "--store", db, "--apply"}, want: []string{"name one message"}},
		{args: []string{"jobs"}, want: []string{"cancel, list, rerun, show, status"}},
		{args: []string{"jobs", "rerun", "--store", db, "--queue", "q"}, want: []string{"--state is missing"}},
		{args: []string{"jobs", "cancel", "--store", db, "--state", "dead"}, want: []string{"pending"}},
		{args: []string{"steps"}, want: []string{"list, resolve, retry, show"}},
		{args: []string{"steps", "list", "--store", "memory:"}, want: []string{"--store (SEMEL_STORE)", "lives in its service's process"}},
		{args: []string{"steps", "list", "--store", db, "--phase", "new"}, want: []string{"--phase", "open, held, finished"}},
		{args: []string{"steps", "show", "--store", db, "order-17"}, want: []string{"by its number"}},
		{args: []string{"steps", "retry", "--store", db, "0"}, want: []string{"by its number"}},
		{args: []string{"relay"}, want: []string{"--sink (SEMEL_SINK) is not set"}},
		{args: []string{"relay", "--sink", "http://x"}, want: []string{"--store (SEMEL_STORE): it is not set"}},
		{args: []string{"relay", "--sink", "ftp://x"}, want: []string{`scheme "ftp"`}},
		{args: []string{"relay", "--sink", "smtp://u:secret@x"}, want: []string{"SEMEL_SMTP_PASSWORD"}},
		{args: []string{"relay", "--sink", "http://x", "--header", "nonsense"}, want: []string{"'Name: value'"}},
		{args: []string{"relay", "--sink", "smtp://x/y"}, want: []string{"has a path"}},
		{args: []string{"relay", "--sink", "http://x", "--store", db, "--topic", "a,a"}, want: []string{"two routes"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(append(tt.args, tt.env...), " "), func(t *testing.T) {
			out := semelWith(tt.env, "", tt.args...)
			want(t, "exit code", out.code, exitUsage)
			want(t, "standard output", out.stdout, "")
			for _, w := range append(tt.want, "Nothing was done.") {
				if !strings.Contains(out.stderr, w) {
					t.Errorf("the message does not hold %q:\n%s", w, out.stderr)
				}
			}
		})
	}
	if _, err := os.Stat(strings.TrimPrefix(db, "sqlite:")); err == nil {
		t.Error("wrong usage has created a store")
	}
}

// TestFlagWins: a flag goes before its variable, and a variable that is set to
// nothing is not set.
func TestFlagWins(t *testing.T) {
	a, b := newRecords(t), newRecords(t)
	for _, r := range []struct {
		env, flag string
		want      int
	}{
		{"SEMEL_STORE=" + a.url, "", exitOK},
		{"SEMEL_STORE=sqlite:/nowhere/x.db", b.url, exitOK},
		{"SEMEL_STORE=", "", exitUsage},
	} {
		args := []string{"keys", "list"}
		if r.flag != "" {
			args = append(args, "--store", r.flag)
		}
		out := semelWith([]string{r.env}, "", args...)
		want(t, "exit code with "+r.env+" "+r.flag, out.code, r.want)
	}
}

// TestHelp: every flag of the gateway names its variable, every command that
// does something has an example, and every listing can be had as JSON.
func TestHelp(t *testing.T) {
	help := ok(t, "gateway", "--help")
	for _, name := range []string{
		"UPSTREAM", "LISTEN", "STORE", "REQUIRE_KEY", "STRICT_KEYS", "CREDENTIAL_HEADER", "LEASE", "HEARTBEAT", "DEADLINE", "RETENTION",
		"MAX_REQUEST_BODY", "MAX_RESULT", "DRAIN", "ON_CRASH", "FAIL_OPEN", "LOG_FORMAT",
	} {
		flag := "--" + strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		if !strings.Contains(help, "$SEMEL_"+name+"]") || !strings.Contains(help, flag) {
			t.Errorf("the help of gateway does not name %s and SEMEL_%s", flag, name)
		}
	}
	for _, words := range []string{"keys list", "keys show", "keys release", "keys resolve", "audit search", "version", "schema", "outbox status", "outbox list", "outbox show", "outbox redrive", "outbox purge"} {
		help := ok(t, append(strings.Fields(words), "--help")...)
		if !strings.Contains(help, "Examples:") {
			t.Errorf("semel %s has no example", words)
		}
		if !strings.Contains(help, "--json") {
			t.Errorf("semel %s has no --json", words)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if !strings.Contains(ok(t, "completion", shell), "semel") {
			t.Errorf("there is no completion for %s", shell)
		}
	}
	if out := ok(t, "__complete", "keys", "resolve", "--as", ""); !strings.Contains(out, "execute-again") {
		t.Errorf("--as completes to:\n%s", out)
	}
	codes := ok(t, "help", "exit-codes")
	for code, word := range map[int]string{exitOK: "done", exitFailed: "failed", exitUsage: "usage", exitNotFound: "no such record", exitRefused: "refused"} {
		line := fmt.Sprintf("\n  %d  ", code)
		if _, rest, ok := strings.Cut(codes, line); !ok || !strings.Contains(strings.SplitN(rest, "\n", 2)[0], word) {
			t.Errorf("help exit-codes does not explain %d", code)
		}
	}
}

func TestVersionAndSchema(t *testing.T) {
	var v versionInfo
	noError(t, json.Unmarshal([]byte(ok(t, "version", "--json")), &v))
	if !strings.HasPrefix(v.Go, "go1.") || v.OS == "" || v.Arch == "" || v.Version == "" {
		t.Errorf("the version is %+v", v)
	}
	if !strings.Contains(ok(t, "version"), v.Go) {
		t.Error("the version in words does not name Go's")
	}
	if short, long := ok(t, "--version"), ok(t, "version"); short != long {
		t.Errorf("semel --version says %q, semel version %q", short, long)
	}
	released := versionInfo{Version: "v1.2.3", Revision: "abc", Time: "2026-11-23T01:02:03Z", Go: "go1.26", OS: "linux", Arch: "arm64"}
	if got, want := released.String(), "semel v1.2.3, revision abc of 2026-11-23T01:02:03Z, go1.26 linux/arm64"; got != want {
		t.Errorf("a release says that it is %q, want %q", got, want)
	}
	want(t, "schema", ok(t, "schema", "--store", "sqlite"), sqlite.Schema())
}

// records is a store with a record in each state.
type records struct {
	t   *testing.T
	url string
	ids map[string]string // by key
}

func newRecords(t *testing.T) *records {
	t.Helper()
	path := filepath.Join(t.TempDir(), "semel.db")
	ctx := context.Background()
	s, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	noError(t, err)
	r := &records{t: t, url: "sqlite:" + path, ids: map[string]string{}}
	begin := func(key string, lease time.Duration, scheme string) semel.Claim {
		t.Helper()
		a := semel.NewAttempt(semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a-" + key, Operation: "POST /" + key}, Key: key},
			semel.Fingerprint{Scheme: scheme, Sum: [32]byte{1}}, lease, time.Hour)
		a.Origin = semel.Origin{RequestID: "req-" + key, EventID: "evt-" + key, TraceID: "trace-" + key}
		c, err := s.Begin(ctx, a)
		noError(t, err)
		r.ids[key] = c.RecordID()
		return c
	}
	res, err := semelhttp.EncodeResult("POST", 201, http.Header{"Location": {"/x/1"}}, nil, []byte("secret-body"))
	noError(t, err)
	_, err = begin("completed", time.Hour, semelhttp.SchemeHTTP).Complete(ctx, res)
	noError(t, err)
	begin("live", time.Hour, semelhttp.SchemeHTTP)
	begin("lapsed", time.Microsecond, semelhttp.SchemeHTTP)
	noError(t, begin("unknown", time.Hour, semelhttp.SchemeHTTP).Hold(ctx, "cut \x1b[31moff"))
	noError(t, begin("foreign", time.Hour, semel.SchemeParts).Hold(ctx, "cut off"))
	s.Note(semel.TrailEntry{Kind: semel.TrailMismatch, RecordID: r.ids["live"], Key: "live", Count: 7})
	noError(t, s.Close(context.Background()))
	return r
}

func (r *records) run(args ...string) output {
	return semelWith([]string{"SEMEL_STORE=" + r.url, "USER=tester"}, "from stdin", args...)
}

// TestList: filters, pages and both forms.
func TestList(t *testing.T) {
	r := newRecords(t)
	list := func(args ...string) (keys []string, next uint64) {
		t.Helper()
		out := r.run(append([]string{"keys", "list", "--json"}, args...)...)
		want(t, "exit code of "+strings.Join(args, " "), out.code, exitOK)
		var l listed
		noError(t, json.Unmarshal([]byte(out.stdout), &l))
		for _, rec := range l.Records {
			want(t, "id", rec.ID, r.ids[rec.Key])
			keys = append(keys, rec.Key)
		}
		return keys, l.Next
	}
	for _, tt := range []struct{ args, want string }{
		{"", "completed live lapsed unknown foreign"},
		{"--state completed", "completed"},
		{"--state in_progress", "live lapsed"},
		{"--state unknown", "unknown foreign"},
		{"--lapsed", "lapsed"},
		{"--key live", "live"},
		{"--actor a-live", "live"},
		{"--tenant t --limit 2 --after 2", "lapsed unknown"},
		{"--tenant nobody", ""},
		{"--all --limit 1", "completed live lapsed unknown foreign"},
	} {
		keys, _ := list(strings.Fields(tt.args)...)
		want(t, "listing of "+tt.args, strings.Join(keys, " "), tt.want)
	}
	keys, _ := list("--operation", "POST /unknown")
	want(t, "listing of an operation", strings.Join(keys, " "), "unknown")

	var all []string
	for next := uint64(0); ; {
		keys, more := list("--limit", "2", "--after", fmt.Sprint(next))
		all = append(all, keys...)
		if next = more; next == 0 {
			break
		}
	}
	want(t, "all pages", strings.Join(all, " "), "completed live lapsed unknown foreign")

	out := r.run("keys", "list", "--limit", "5")
	want(t, "lines", strings.Count(out.stdout, "\n"), 6)
	for _, part := range []string{"ID ", "in_progress, lapsed", "POST /live"} {
		if !strings.Contains(out.stdout, part) {
			t.Errorf("the table does not hold %q:\n%s", part, out.stdout)
		}
	}
	if !strings.Contains(out.stderr, "--after 5") {
		t.Errorf("a full page does not say how to go on: %s", out.stderr)
	}
	want(t, "exit code", r.run("keys", "list", "--limit", "0").code, exitUsage)
	want(t, "exit code", r.run("keys", "list", "--limit", "1001").code, exitUsage)
}

// TestShow: everything but payload, and nothing that a terminal would obey.
func TestShow(t *testing.T) {
	r := newRecords(t)
	var rec recordJSON
	out := r.run("keys", "show", "--json", r.ids["completed"])
	noError(t, json.Unmarshal([]byte(out.stdout), &rec))
	want(t, "state", rec.State, semel.StateCompleted)
	want(t, "label", rec.Result.Label, "201")
	want(t, "bytes", rec.Result.Bytes, len("secret-body"))
	want(t, "reference", rec.Result.Reference, "/x/1")
	want(t, "request id", rec.Origin.RequestID, "req-completed")
	want(t, "retention", rec.RetentionSeconds, 3600.0)
	for _, form := range []string{"--json=true", "--json=false"} {
		if out := r.run("keys", "show", form, r.ids["completed"]); strings.Contains(out.stdout+out.stderr, "secret") {
			t.Errorf("%s shows payload", form)
		}
	}
	out = r.run("keys", "show", r.ids["unknown"])
	want(t, "exit code", out.code, exitOK)
	if strings.Contains(out.stdout, "\x1b") || !strings.Contains(out.stdout, "cut \uFFFD[31moff") {
		t.Errorf("a control character came through:\n%q", out.stdout)
	}
	if !strings.Contains(out.stderr, "semel keys resolve") {
		t.Errorf("of an unknown record it does not say what to do: %s", out.stderr)
	}
	for key, part := range map[string]string{"live": "left; renewed", "lapsed": "ago"} {
		if out := r.run("keys", "show", r.ids[key]); !strings.Contains(out.stdout, part) {
			t.Errorf("of the lease of %s it says:\n%s", key, out.stdout)
		}
	}
	out = r.run("keys", "show", "nothing")
	want(t, "exit code of a missing record", out.code, exitNotFound)
	want(t, "output of a missing record", out.stdout, "")
}

// TestSettleRefuses: only what is unknown can be settled.
func TestSettleRefuses(t *testing.T) {
	r := newRecords(t)
	because := []string{"--because", "I looked", "--by", "alice"}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"release", "live"}, exitRefused, "in progress under a lease"},
		{[]string{"release", "completed"}, exitRefused, "is completed"},
		{[]string{"release", "nothing"}, exitNotFound, "no record"},
		{[]string{"resolve", "live", "--as", "execute-again"}, exitRefused, "in progress under a lease"},
		{[]string{"resolve", "completed", "--as", "result"}, exitRefused, "is completed"},
		{[]string{"resolve", "foreign", "--as", "result"}, exitRefused, "not of an HTTP request"},
		{[]string{"resolve", "unknown"}, exitUsage, "--as is missing"},
		{[]string{"resolve", "unknown", "--as", "maybe"}, exitUsage, "result, no-effect, execute-again"},
		{[]string{"resolve", "unknown", "--as", "no-effect", "--status", "200"}, exitUsage, "--status goes with --as result"},
		{[]string{"resolve", "unknown", "--as", "result", "--status", "100"}, exitUsage, "status 100"},
		{[]string{"resolve", "unknown", "--as", "result", "--header", "no colon"}, exitUsage, `--header is "no colon"`},
		{[]string{"resolve", "unknown", "--as", "result", "--header", "A: b\nC: d"}, exitUsage, "--header is"},
		{[]string{"resolve", "unknown", "--as", "result", "--header", "Content-Length: 7"}, exitUsage, "the response cannot be recorded"},
		{[]string{"resolve", "unknown", "--as", "result", "--body", "@/nowhere/file"}, exitUsage, "--body"},
	} {
		args := append([]string{"keys"}, tt.args...)
		if id, ok := r.ids[args[2]]; ok {
			args[2] = id
		}
		out := r.run(append(args, because...)...)
		name := strings.Join(tt.args, " ")
		want(t, "exit code of "+name, out.code, tt.code)
		if !strings.Contains(out.stderr, tt.want) {
			t.Errorf("%s says: %s", name, out.stderr)
		}
		want(t, "output of "+name, out.stdout, "")
	}
	out := r.run("keys", "release", r.ids["unknown"])
	want(t, "exit code without a reason", out.code, exitUsage)
	out = semelWith([]string{"SEMEL_STORE=" + r.url}, "", "keys", "release", r.ids["unknown"], "--because", "x")
	want(t, "exit code without a name", out.code, exitUsage)
	want(t, "records left", strings.Count(r.run("keys", "list").stdout, "\n"), 6)
}

// TestSettle: what is printed is what was done.
func TestSettle(t *testing.T) {
	r := newRecords(t)
	// Its owner could have come back since anyone looked, so the first call
	// only shuts it out.
	out := r.run("keys", "release", r.ids["lapsed"], "--because", "not there")
	want(t, "exit code for a record that nobody marked", out.code, exitRefused)
	if !strings.Contains(out.stderr, "Check again") {
		t.Errorf("release said:\n%s", out.stderr)
	}
	out = r.run("keys", "release", r.ids["lapsed"], "--because", "not there")
	want(t, "exit code", out.code, exitOK)
	if !strings.Contains(out.stdout, "was    unknown\nnow    gone") {
		t.Errorf("release printed:\n%s", out.stdout)
	}
	want(t, "exit code of a second release", r.run("keys", "release", r.ids["lapsed"], "--because", "x").code, exitNotFound)

	out = r.run("keys", "resolve", r.ids["unknown"], "--as", "result", "--status", "202", "--body", "-", "--because", "it is there", "--json")
	var done settledJSON
	noError(t, json.Unmarshal([]byte(out.stdout), &done))
	want(t, "decision", done.Decision, "result")
	want(t, "was", done.Was, "unknown")
	want(t, "state", done.Record.State, semel.StateCompleted)
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: strings.TrimPrefix(r.url, "sqlite:")})
	noError(t, err)
	defer func() { noError(t, s.Close(context.Background())) }()
	rec, err := s.Find(context.Background(), semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a-unknown", Operation: "POST /unknown"}, Key: "unknown"})
	noError(t, err)
	status, header, _, err := semelhttp.DecodeHead(rec.Result.Head)
	noError(t, err)
	want(t, "status", status, 202)
	want(t, "Content-Type", header.Get("Content-Type"), "text/plain; charset=utf-8")
	want(t, "body", string(rec.Result.Body), "from stdin")

	// Of a library's records, too, what needs no response can be settled.
	want(t, "exit code", r.run("keys", "resolve", r.ids["foreign"], "--as", "execute-again", "--because", "x").code, exitOK)
	if out := r.run("keys", "list", "--key", "foreign"); !strings.Contains(out.stdout, "reopened") {
		t.Errorf("the listing says:\n%s", out.stdout)
	}
}

// TestAudit: filters, pages and both forms.
func TestAudit(t *testing.T) {
	r := newRecords(t)
	search := func(args ...string) (kinds []string) {
		t.Helper()
		out := r.run(append([]string{"audit", "search", "--json"}, args...)...)
		want(t, "exit code of "+strings.Join(args, " "), out.code, exitOK)
		var l struct {
			Entries []semel.TrailEntry
		}
		noError(t, json.Unmarshal([]byte(out.stdout), &l))
		for _, e := range l.Entries {
			kinds = append(kinds, string(e.Kind))
		}
		return kinds
	}
	for _, tt := range []struct{ args, want string }{
		{"", "executed held held mismatch"},
		{"--kind held", "held held"},
		{"--key completed", "executed"},
		{"--record " + r.ids["live"], "mismatch"},
		{"--actor a-unknown", "held"},
		{"--tenant t --limit 1", "executed"},
		{"--after 1 --limit 2", "held held"},
		{"--all --limit 1", "executed held held mismatch"},
		{"--request-id req-unknown", "held"},
		{"--event-id evt-unknown", "held"},
		{"--trace-id trace-completed", "executed"},
		{"--since 1h", "executed held held mismatch"},
		{"--until 1h", ""},
		{"--since 2100-01-01T00:00:00Z", ""},
	} {
		want(t, "entries of "+tt.args, strings.Join(search(strings.Fields(tt.args)...), " "), tt.want)
	}
	want(t, "entries of an operation", strings.Join(search("--operation", "POST /completed"), " "), "executed")
	want(t, "exit code", r.run("audit", "search", "--since", "yesterday").code, exitUsage)
	want(t, "exit code", r.run("audit", "search", "--kind", "nope").code, exitUsage)
	out := r.run("audit", "search", "--kind", "held")
	if strings.Count(out.stdout, "\n") != 3 || strings.Contains(out.stdout, "\x1b") {
		t.Errorf("the table is:\n%q", out.stdout)
	}
	out = r.run("audit", "search", "--kind", "mismatch")
	if !strings.Contains(out.stdout, "7 times") {
		t.Errorf("seven answers in one entry read:\n%s", out.stdout)
	}
	out = r.run("audit", "search", "--kind", "lost")
	want(t, "output of nothing", out.stdout, "")
}

// TestMissingStore: a wrong path creates nothing.
func TestMissingStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "typo.db")
	out := semelWith(nil, "", "keys", "list", "--store", "sqlite:"+path)
	want(t, "exit code", out.code, exitFailed)
	if !strings.Contains(out.stderr, "there is no store at") {
		t.Errorf("it says: %s", out.stderr)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was created")
	}
	noError(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
	out = semelWith(nil, "", "keys", "list", "--store", "sqlite:"+path)
	want(t, "exit code of another file", out.code, exitFailed)
	if !strings.Contains(out.stderr, "a retry is safe") {
		t.Errorf("of another file it says: %s", out.stderr)
	}
}

func TestByteSize(t *testing.T) {
	for in, size := range map[string]byteSize{"1": 1, "512B": 512, "256KiB": 256 << 10, "32 MiB": 32 << 20, "1GiB": 1 << 30} {
		var b byteSize
		noError(t, b.Set(in))
		want(t, in, b, size)
	}
	for _, in := range []string{"", "0", "-1", "1.5MiB", "1MB", "9999999999GiB", "KiB"} {
		var b byteSize
		if b.Set(in) == nil {
			t.Errorf("%q is taken for %d bytes", in, b)
		}
	}
	b := byteSize(32 << 20)
	want(t, "text", b.String(), "32MiB")
}

// TestKeysErase: a response that is erased is nowhere any more, a retry is told
// that it is not retained and does not execute, and what is open is told and
// left.
func TestKeysErase(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	g := startGateway(t, "--upstream", u.url, "--store", db, "--preserve-host")
	want(t, "status", post(t, g.url, "done", `{"for": "alice"}`).status, 201)
	u.held.Store(true)
	running := make(chan answer, 1)
	go func() {
		a, err := try(g.url, "running", "{}")
		if err != nil {
			t.Error(err)
		}
		running <- a
	}()
	for key := range u.entered {
		if key == "running" {
			break
		}
	}
	erase := []string{"keys", "erase", "--store", db, "--tenant", strings.TrimPrefix(g.url, "http://")}
	var dry, did erasureJSON
	noError(t, json.Unmarshal([]byte(ok(t, append(erase, "--because", "ticket 4711", "--json")...)), &dry))
	want(t, "completed", dry.Completed, 1)
	want(t, "open", dry.Open, 1)
	want(t, "erased by the dry run", dry.Erased, 0)
	want(t, "status of a retry after the dry run", post(t, g.url, "done", `{"for": "alice"}`).status, 201)
	noError(t, json.Unmarshal([]byte(ok(t, dry.Command[1:]...)), &did))
	want(t, "erased", did.Erased, 1)
	want(t, "left open", did.Open, 1)
	for range 2 { // also by a gateway that had the response in memory
		a := post(t, g.url, "done", `{"for": "alice"}`)
		want(t, "status of a retry", a.status, 409)
		if !strings.Contains(a.body, "result-not-retained") || strings.Contains(a.body, "/orders/1") || a.header.Get("Location") != "" {
			t.Errorf("a retry is told %s", a.body)
		}
	}
	want(t, "status of another request with the key", post(t, g.url, "done", `{"for": "bob"}`).status, 409)
	u.release()
	want(t, "status of what was running", (<-running).status, 201)
	want(t, "effects", u.effects.Load(), 2)
	if out := ok(t, dry.Command[1:len(dry.Command)-1]...); !strings.Contains(out, `"completed": 2`) || !strings.Contains(out, `"open": 0`) {
		t.Errorf("another dry run says:\n%s", out)
	}
	noError(t, json.Unmarshal([]byte(ok(t, dry.Command[1:]...)), &did))
	want(t, "erased then", did.Erased, 1)
	want(t, "bare then", did.Bare, 1)
	trail := ok(t, "audit", "search", "--store", db, "--kind", "erased", "--key", "done")
	if !strings.Contains(trail, "ticket 4711 (by tester)") || strings.Count(trail, "erased") != 1 {
		t.Errorf("the trail says:\n%s", trail)
	}
	for _, tt := range []struct{ args, want string }{
		{"", "--tenant or --actor is missing"},
		{"--tenant t --apply", "--because is missing"},
		{"--tenant t --since yesterday", "2026-11-21T09:00:00Z"},
		{"--tenant t x", "unknown command"},
	} {
		out := semelWith([]string{"USER=tester"}, "", append([]string{"keys", "erase", "--store", db}, strings.Fields(tt.args)...)...)
		want(t, "exit code of "+tt.args, out.code, exitUsage)
		if !strings.Contains(out.stderr, tt.want) {
			t.Errorf("%s says: %s", tt.args, out.stderr)
		}
	}
}
