package conformance_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe/conformance"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// outage is a store that can be taken away.
type outage struct {
	*memory.Store
	down atomic.Bool
}

func (o *outage) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if o.down.Load() {
		return nil, errors.New("down")
	}
	return o.Store.Begin(ctx, a)
}

const maxBody = 4096

type setup struct {
	contract string
	inFlight semelhttp.InFlight
	gateway  bool
	http2    bool
	change   func(http.Handler) http.Handler // around everything
}

// start serves a protected test endpoint and returns what to check.
func (s setup) start(t testing.TB) conformance.Config {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	store := &outage{Store: m}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	contract, err := semelhttp.ContractNamed(s.contract)
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler
	if s.gateway {
		upstream := httptest.NewUnstartedServer(conformance.Endpoint())
		upstream.Config.ErrorLog = log.New(io.Discard, "", 0)
		upstream.Start()
		t.Cleanup(upstream.Close)
		u, err := url.Parse(upstream.URL)
		if err != nil {
			t.Fatal(err)
		}
		h, err = gateway.New(gateway.Config{
			Upstream: u, Guard: guard, Contract: contract, InFlight: s.inFlight, RequireKey: true, MaxRequestBody: maxBody,
		})
		if err != nil {
			t.Fatal(err)
		}
	} else {
		scope := func(r *http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: r.Header.Get("Authorization")}, nil
		}
		resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: guard, Scope: scope, Contract: contract})
		if err != nil {
			t.Fatal(err)
		}
		middleware, err := semelhttp.New(semelhttp.Config{
			Guard: guard, Scope: scope, Contract: contract, InFlight: s.inFlight, RequireKey: true, MaxRequestBody: maxBody, Resources: resources,
		})
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.Handle(semelhttp.DefaultPrefix+"/", resources)
		mux.Handle("/", middleware(conformance.Endpoint()))
		h = mux
	}
	if s.change != nil {
		h = s.change(h)
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	c := conformance.Config{
		Contract: s.contract, InFlight: s.inFlight.String(), Prefix: semelhttp.DefaultPrefix, MaxRequestBody: maxBody, Outage: store.down.Store,
		Header: http.Header{"Authorization": {"Bearer a"}}, Other: http.Header{"Authorization": {"Bearer b"}},
	}
	if s.http2 {
		server.EnableHTTP2 = true
		server.StartTLS()
		c.TLS, c.Protocol = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone(), "http2"
	} else {
		server.Start()
	}
	c.URL = server.URL + "/conformance"
	t.Cleanup(func() {
		server.Close()
		if err := guard.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func run(t testing.TB, c conformance.Config) conformance.Report {
	t.Helper()
	report, err := conformance.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var contracts = []string{"ietf", "stripe", "oasis"}

var update = flag.Bool("update", false, "rewrite the generated table in docs/http.md")

// TestMatrix checks every case of the contract, in each of the three forms,
// over the middleware and over the gateway, and that docs/http.md shows it.
func TestMatrix(t *testing.T) {
	reports := map[string]conformance.Report{}
	for _, contract := range contracts {
		for _, over := range []string{"middleware", "gateway"} {
			t.Run(contract+"/"+over, func(t *testing.T) {
				report := run(t, setup{contract: contract, gateway: over == "gateway"}.start(t))
				for _, r := range report.Results {
					t.Run(r.Case, func(t *testing.T) {
						if r.Outcome == conformance.Failed {
							t.Errorf("want %s; %s", r.Expected, r.Detail)
						}
					})
					if strings.HasPrefix(r.Case, "first-sent") || r.Case == "not-protected" {
						continue
					}
					if r.Outcome == conformance.NotApplicable {
						t.Errorf("%s was not checked: %s", r.Case, r.Detail)
					}
				}
				reports[contract] = report
			})
		}
	}
	if t.Failed() {
		return
	}
	compareDocs(t, table(reports))
}

// table is the matrix in the form of the documentation.
func table(reports map[string]conformance.Report) string {
	var b strings.Builder
	b.WriteString("| case | `ietf` | `stripe` | `oasis` |\n|---|---|---|---|\n")
	for i, r := range reports["ietf"].Results {
		fmt.Fprintf(&b, "| `%s` ", r.Case)
		var cells []string
		for _, contract := range contracts {
			c := reports[contract].Results[i]
			cell := c.Expected
			if c.Outcome == conformance.NotApplicable {
				cell = ""
			}
			cells = append(cells, cell)
		}
		if cells[1] == cells[0] && cells[2] == cells[0] {
			cells = []string{cells[0], "the same", "the same"}
		}
		for _, cell := range cells {
			fmt.Fprintf(&b, "| %s ", cell)
		}
		b.WriteString("|\n")
	}
	return b.String()
}

const (
	docs      = "../../docs/http.md"
	tableFrom = "<!-- generated by probe/conformance.TestMatrix -->\n"
	tableTo   = "<!-- end of the generated table -->\n"
)

func compareDocs(t *testing.T, want string) {
	t.Helper()
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableFrom)
	got, after, ok2 := strings.Cut(rest, tableTo)
	if !ok || !ok2 {
		t.Fatalf("%s has no generated table", docs)
	}
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is out of date: go test ./probe/conformance -run TestMatrix -update", docs)
	}
	if err := os.WriteFile(docs, []byte(before+tableFrom+want+tableTo+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMatrixInFlight checks the other ways to treat a duplicate in flight, and
// HTTP/2.
func TestMatrixInFlight(t *testing.T) {
	for _, s := range []setup{
		{contract: "ietf", inFlight: semelhttp.InFlightWait},
		{contract: "ietf", inFlight: semelhttp.InFlightAccept},
		{contract: "stripe", inFlight: semelhttp.InFlightWait, gateway: true},
		{contract: "oasis", inFlight: semelhttp.InFlightAccept, gateway: true},
		{contract: "ietf", http2: true},
		{contract: "stripe", http2: true, gateway: true},
	} {
		t.Run(fmt.Sprintf("%s/%v/gateway=%v/http2=%v", s.contract, s.inFlight, s.gateway, s.http2), func(t *testing.T) {
			for _, r := range run(t, s.start(t)).Results {
				if r.Outcome == conformance.Failed {
					t.Errorf("%s: want %s; %s", r.Case, r.Expected, r.Detail)
				}
			}
		})
	}
}

// wrong replaces what reaches the operation, or what comes back.
type wrong struct {
	name  string
	cases []string // that have to fail
	setup setup
}

// TestWrongServers: each way to be wrong fails the cases that are about it.
func TestWrongServers(t *testing.T) {
	quick.LeaveOut(t)
	header := func(change func(h http.Header, status *int)) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(&changed{ResponseWriter: w, change: change}, r)
			})
		}
	}
	for _, w := range []wrong{
		{"nothing is protected", []string{"replay", "replay-empty", "replay-failure", "key-missing", "key-empty", "key-twice", "mismatch", "raced", "other-caller"}, setup{change: func(next http.Handler) http.Handler {
			bare := conformance.Endpoint()
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { bare.ServeHTTP(w, r) })
		}}},
		{"the key is dropped on the way", []string{"replay", "mismatch", "raced"}, setup{change: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") != "" {
					r.Header.Set("Idempotency-Key", fmt.Sprint(unique.Add(1)))
				}
				next.ServeHTTP(w, r)
			})
		}}},
		{"callers are not told apart", []string{"other-caller"}, setup{change: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("Authorization")
				next.ServeHTTP(w, r)
			})
		}}},
		{"replays are not marked", []string{"replay", "client-gone"}, setup{change: header(func(h http.Header, _ *int) { h.Del("Idempotency-Replayed") })}},
		{"every response is marked", []string{"first", "mismatch", "no-effect"}, setup{change: header(func(h http.Header, _ *int) { h.Set("Idempotency-Replayed", "true") })}},
		{"header lines are merged", []string{"replay"}, setup{change: header(func(h http.Header, _ *int) {
			if v := h.Values("X-Conformance"); len(v) > 1 && h.Get("Idempotency-Replayed") != "" {
				h.Set("X-Conformance", strings.Join(v, ", "))
			}
		})}},
		{"no Retry-After", []string{"in-flight", "store-unavailable"}, setup{change: header(func(h http.Header, _ *int) { h.Del("Retry-After") })}},
		{"a conflict for a mismatch", []string{"mismatch", "mismatch-in-flight"}, setup{change: header(func(_ http.Header, status *int) {
			if *status == 422 {
				*status = 409
			}
		})}},
		{"expiry is not told", []string{"first", "replay"}, setup{change: header(func(h http.Header, _ *int) { h.Del("Idempotency-Expires") })}},
		{"problems are of another type", []string{"key-missing", "mismatch"}, setup{change: header(func(h http.Header, _ *int) {
			if h.Get("Content-Type") == "application/problem+json" {
				h.Set("Content-Type", "application/json")
			}
		})}},
		{"two key lines become one", []string{"key-twice"}, setup{change: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if v := r.Header["Idempotency-Key"]; len(v) > 1 {
					r.Header["Idempotency-Key"] = v[:1]
				}
				next.ServeHTTP(w, r)
			})
		}}},
		{"the client's end is the operation's", []string{"client-gone"}, setup{change: func(next http.Handler) http.Handler {
			bare := conformance.Endpoint()
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.RawQuery, "client-gone") || r.Method == http.MethodPost && strings.HasPrefix(r.Header.Get("Idempotency-Key"), "client-gone") {
					bare.ServeHTTP(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
		}}},
	} {
		t.Run(w.name, func(t *testing.T) {
			w.setup.contract = "ietf"
			c := w.setup.start(t)
			c.Timeout = 3e9
			failed := map[string]string{}
			for _, r := range run(t, c).Results {
				if r.Outcome == conformance.Failed {
					failed[r.Case] = r.Detail
				}
			}
			for _, name := range w.cases {
				if failed[name] == "" {
					t.Errorf("%s did not fail; what did is %v", name, failed)
				}
			}
		})
	}
}

var unique atomic.Int64

// changed lets change have its way with the head of a response.
type changed struct {
	http.ResponseWriter
	change func(http.Header, *int)
	done   bool
}

func (c *changed) WriteHeader(status int) {
	if !c.done {
		c.done = true
		c.change(c.Header(), &status)
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *changed) Write(p []byte) (int, error) {
	if !c.done {
		c.WriteHeader(http.StatusOK)
	}
	return c.ResponseWriter.Write(p)
}

func (c *changed) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func TestConfig(t *testing.T) {
	for _, c := range []conformance.Config{{}, {URL: "ftp://x"}, {URL: "http://x?y"}, {URL: "http://x", Contract: "z"}, {URL: "http://x", InFlight: "z"}, {URL: "http://x", InFlight: "accept"}} {
		if _, err := conformance.Run(t.Context(), c); err == nil || errors.Is(err, conformance.ErrUnreachable) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	if _, err := conformance.Run(t.Context(), conformance.Config{URL: closed.URL}); !errors.Is(err, conformance.ErrUnreachable) {
		t.Error(err)
	}
	if slices.Contains(contracts, "") {
		t.Fatal()
	}
}
