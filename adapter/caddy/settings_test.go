package semelcaddy

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// TestCaddyfile sets everything, and has the same as JSON.
func TestCaddyfile(t *testing.T) {
	const text = `semel {
	store sqlite:/tmp/x.db
	tenant {http.request.host}
	actor {http.auth.user.id} {http.auth.user.unit}
	shared
	operation payments.create
	key required
	strict_keys
	methods POST PUT
	lease 20s
	deadline 1m
	retention 2d
	in_flight wait
	wait 3s
	max_wait 4s
	contract stripe
	prefix /x
	unreached release
	max_request_body 1MiB
	max_result 2MiB
	max_executions 5
	max_tenant_executions 6
	max_waiters 7
}`
	const want = `{"store":"sqlite:/tmp/x.db","tenant":"{http.request.host}","actor":["{http.auth.user.id}","{http.auth.user.unit}"],` +
		`"shared":true,"operation":"payments.create","key":"required","strict_keys":true,"methods":["POST","PUT"],` +
		`"lease":20000000000,"deadline":60000000000,"retention":172800000000000,"in_flight":"wait","wait":3000000000,"max_wait":4000000000,` +
		`"contract":"stripe","prefix":"/x","unreached":"release","max_request_body":1048576,"max_result":2097152,` +
		`"max_executions":5,"max_tenant_executions":6,"max_waiters":7}`
	h := &Handler{}
	noError(t, h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text)))
	got, err := json.Marshal(h)
	noError(t, err)
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	noError(t, h.configure())
	if h.policy.Lease != 20*time.Second || h.config.InFlight.String() != "wait" || !h.config.RequireKey || h.config.MaxResult != 2<<20 {
		t.Errorf("it is configured as %+v, %+v", h.policy, h.config)
	}
	again := &Handler{}
	noError(t, caddy.StrictUnmarshalJSON([]byte(want), again))
	if err := caddy.StrictUnmarshalJSON([]byte(`{"sotre":"x"}`), again); err == nil {
		t.Error("an unknown field is taken")
	}
}

// adapt makes JSON of a whole Caddyfile.
func adapt(text string) ([]byte, []caddyconfig.Warning, error) {
	return caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}.Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
}

// TestCaddyfileErrors: what is wrong is said, with its line.
func TestCaddyfileErrors(t *testing.T) {
	for text, part := range map[string]string{
		"semel x {\n}":                     "takes a matcher and a block",
		"semel {\nsotre x\n}":              `has no setting "sotre"; it has actor,`,
		"semel {\nstore a\nstore b\n}":     "store is there twice",
		"semel {\nstore\n}":                "store takes one argument",
		"semel {\nstore a b\n}":            "store takes one argument, not 2",
		"semel {\nshared yes\n}":           "shared takes no argument",
		"semel {\nactor\n}":                "actor takes arguments",
		"semel {\nlease soon\n}":           "lease takes one argument such as 15s",
		"semel {\nlease 0s\n}":             "lease takes one argument such as 15s",
		"semel {\nmax_result -1\n}":        "max_result takes one argument such as 32MiB",
		"semel {\nmax_waiters many\n}":     "max_waiters takes one argument such as 1000",
		"semel {\nshared {\nstore a\n}\n}": "shared takes no block",
	} {
		_, _, err := adapt(":1 {\n" + text + "\n}")
		if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%q: the error is %v; want %q, and a line", text, err, part)
		}
	}
}

// TestSettingsErrors: all that cannot be is named at once, without secrets.
func TestSettingsErrors(t *testing.T) {
	for _, tt := range []struct {
		h     *Handler
		parts []string
	}{
		{&Handler{}, []string{"store is not set", "actor is not set"}},
		{
			&Handler{Store: "sqlite:x", Shared: true, Key: "maybe", InFlight: "drop", Contract: "x", Unreached: "x", Methods: []string{"GET"}, Lease: -1, MaxWaiters: -1, MaxResult: 64 << 20},
			[]string{`key is "maybe"`, `in_flight is "drop"`, `contract is "x"`, `unreached is "x"`, `methods names "GET"`, "lease is negative", "max_waiters is negative", "max_result is"},
		},
		{&Handler{Store: "postgres://u:secret@h:bad/x", Shared: true}, []string{"not the URL of a PostgreSQL database"}},
		{&Handler{Store: "mysql://u:secret@h/x", Shared: true}, []string{"does not name a store"}},
		{&Handler{Store: "sqlite://x", Shared: true}, []string{"two slashes"}},
		{&Handler{Store: "sqlite:", Shared: true}, []string{"has no path"}},
		{&Handler{Store: "{env.SEMEL_NOT_SET}", Shared: true}, []string{"SEMEL_NOT_SET"}},
		{&Handler{Store: "sqlite:x", Actor: []string{"{http.auth.candidate.id}"}}, []string{"who was refused"}},
		{&Handler{Store: "sqlite:x", Actor: []string{"somebody"}}, []string{"the same for all callers"}},
		{&Handler{Store: "sqlite:x", Actor: []string{"{a}{b}"}}, []string{"more than one placeholder"}},
		{&Handler{Store: "sqlite:x", Actor: []string{"{http.request.header.authorization}"}}, []string{"a secret that would be kept in clear"}},
		{&Handler{Store: "sqlite:x", Tenant: "{http.request.cookie.session}", Shared: true}, []string{"a secret that would be kept in clear"}},
		{&Handler{Store: "sqlite:x", Actor: []string{"{a}"}, Credentials: []string{"X"}}, []string{"actor is set, and so is credentials"}},
		{&Handler{Store: "sqlite:x", Credentials: []string{"Host"}}, []string{`"Host", which`}},
		{&Handler{Store: "sqlite:x", Shared: true, Operation: "{x}"}, []string{"a name without placeholders"}},
	} {
		err := tt.h.configure()
		for _, part := range tt.parts {
			if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "secret@") {
				t.Errorf("%q: the error is %v; want %q", tt.parts, err, part)
			}
		}
	}
	// What semelhttp and the policy refuse is refused when Caddy loads it, too.
	s := newService(t)
	caddy := startCaddy(t, s.protect(newSQLite(t), "shared"))
	for setting, part := range map[string]string{
		"deadline 2h\nretention 1h": "shorter than the Deadline", "prefix x": "Prefix", "wait 40s\nin_flight wait": "longer than MaxWait",
		"prefix off\nin_flight accept": "Resources is nil",
	} {
		status, said := caddy.tryReload(t, s.protect(newSQLite(t), "shared", setting))
		if status == http.StatusOK || !strings.Contains(said, part) {
			t.Errorf("%q is answered with %d: %s", setting, status, said)
		}
	}
}

// TestHostIsWhateverItsCase: names of hosts that differ in case are one tenant.
func TestHostIsWhateverItsCase(t *testing.T) {
	repl := caddy.NewEmptyReplacer()
	repl.Set("http.request.host", "API.Example.com.")
	got, err := expand(repl, "{http.request.host}")
	noError(t, err)
	want(t, "host", got, "api.example.com")
}

// TestReadme runs Caddy as the README shows it, but for what it listens on and
// where things are.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	noError(t, err)
	_, rest, _ := strings.Cut(string(text), "```caddyfile\n")
	file, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("there is no Caddyfile in it")
	}
	s := newService(t)
	t.Setenv("SEMEL_STORE", "sqlite:"+filepath.Join(t.TempDir(), "semel.db"))
	_, port, _ := strings.Cut(freePort(t), ":")
	site := strings.NewReplacer("api.example.com", "https://localhost:"+port, "127.0.0.1:9000", strings.TrimPrefix(s.URL, "http://"),
		"$2a$14$...", "$2a$04$bhGcNJ1V9DYBnFda1qjUnO2gP5Wa0lNfd4jjz318TjrqYa6ClkjAm").Replace(file)
	if strings.Contains(site, "example") || strings.Contains(site, "9000") {
		t.Fatalf("not all of it is replaced:\n%s", site)
	}
	dir, err := os.MkdirTemp("", "semelcaddy")
	noError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	options := "{\nadmin unix/" + filepath.Join(dir, "a") + "\npersist_config off\ndefault_bind 127.0.0.1\nauto_https disable_redirects\nskip_install_trust\nlocal_certs\n}\n"
	path := filepath.Join(dir, "Caddyfile")
	noError(t, os.WriteFile(path, []byte(options+site), 0o600))
	p := start(t, "caddy", "run", "--config", path, "--adapter", "caddyfile")
	p.awaitTLS(port)
	c := tlsClient()
	url := "https://localhost:" + port + "/orders"
	first := sendBy(t.Context(), c, http.MethodPost, url, "book", "Idempotency-Key: secret-key", alice)
	want(t, "status", first.status, http.StatusCreated)
	wantReplay(t, "again", first, sendBy(t.Context(), c, http.MethodPost, url, "book", "Idempotency-Key: secret-key", alice))
	want(t, "without credentials", sendBy(t.Context(), c, http.MethodPost, url, "book", "Idempotency-Key: secret-key").status, http.StatusUnauthorized)
	want(t, "without a key", sendBy(t.Context(), c, http.MethodPost, url, "book", alice).status, http.StatusBadRequest)
	want(t, "effects", s.effectsOf("book"), 1)

	// The access log says what became of the request, and not its key.
	for _, said := range []string{`"semel_answer":"executed"`, `"semel_answer":"replayed"`, `"semel_record":"`} {
		p.await(said)
	}
	if strings.Contains(p.stderr(), "secret-key") {
		t.Errorf("the key is in the log:\n%s", p.stderr())
	}
}

// TestLog: what the handler says holds neither keys nor payload nor credentials.
func TestLog(t *testing.T) {
	addr, _ := cutting(t)
	caddy := startCaddy(t, "semel {\n"+newSQLite(t)+"\nactor {http.request.header.X-Who}\nlease 1s\n}\nreverse_proxy "+addr)
	caddy.await("the scope is what the client says")
	a := post(t, caddy.url, "secret-key", "secret-body", "Authorization: secret-token", "X-Who: somebody")
	want(t, "problem", a.problem(), unknown)
	line := caddy.await("the outcome is unknown")
	if !strings.Contains(line, `"record":"`) {
		t.Errorf("the line names no record: %s", line)
	}
	if said := caddy.stderr(); strings.Contains(said, "secret") {
		t.Errorf("there is a secret in the log:\n%s", said)
	}
}
