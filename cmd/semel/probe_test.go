package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe/evidence"
)

// startOrders runs the order example, unprotected, in a process of its own.
func startOrders(t *testing.T) (url string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "orders")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../../examples/orders")
	build.Stderr = os.Stderr
	noError(t, build.Run())
	cmd := exec.Command(program, "--listen", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	noError(t, err)
	noError(t, cmd.Start())
	found := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			if i := strings.Index(in.Text(), "http://"); i >= 0 {
				select {
				case found <- strings.Fields(in.Text()[i:])[0]:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	select {
	case url = <-found:
	case <-done:
		t.Fatal("the order example ended without saying where it listens")
	}
	return strings.TrimRight(url, "/,.")
}

// ordersPlan is the sample plan for another address.
func ordersPlan(t *testing.T, base, allow string) string {
	t.Helper()
	text, err := os.ReadFile("../../probe/plan/testdata/orders.yaml")
	noError(t, err)
	s := strings.ReplaceAll(string(text), `["127.0.0.1:9000", "127.0.0.1:8080"]`, allow)
	s = strings.ReplaceAll(s, "http://127.0.0.1:9000\"", base+"\"")
	return writeFile(t, "orders.yaml", s)
}

func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	noError(t, err)
	return u.Host
}

// TestProbe: the order example is found out bare, and held behind the gateway.
func TestProbe(t *testing.T) {
	quick.LeaveOut(t)
	orders := startOrders(t)
	g := startGateway(t, "--upstream", orders, "--store", newStore(t), "--require-key")
	dir := t.TempDir()
	bare, held := filepath.Join(dir, "bare"), filepath.Join(dir, "held")
	junit, sarif := filepath.Join(dir, "probe.xml"), filepath.Join(dir, "probe.sarif")

	out := semelWith(nil, "", "probe", "run", ordersPlan(t, orders, "[]"), "--send", "--allow", hostOf(t, orders),
		"--out", bare, "--junit", junit, "--sarif", sarif, "--json", "--quiet")
	want(t, "exit code of the bare service", out.code, probeFindings)
	var run evidence.Run
	noError(t, json.Unmarshal([]byte(out.stdout), &run))
	want(t, "worst finding", run.Worst(), evidence.P0)
	found := map[string]bool{}
	for _, id := range run.Operations[0].All() {
		found[string(id)] = true
	}
	for _, id := range []string{"double-effect-sequential", "double-effect-race", "double-effect-lost-response"} {
		if !found[id] {
			t.Errorf("%s was not found; what was is %v", id, found)
		}
	}
	for _, name := range []string{"run.json", "plan.yaml", "exchanges.har", "report.html", "report.md", "results.sarif", "junit.xml"} {
		if info, err := os.Stat(filepath.Join(bare, name)); err != nil || info.Size() == 0 {
			t.Errorf("evidence %s: %v", name, err)
		}
	}
	text, err := os.ReadFile(junit)
	noError(t, err)
	var suites struct {
		XMLName xml.Name
	}
	noError(t, xml.Unmarshal(text, &suites))
	text, err = os.ReadFile(sarif)
	noError(t, err)
	if !json.Valid(text) || !strings.Contains(string(text), "double-effect-sequential") {
		t.Error("SARIF does not tell of the double")
	}

	out = semelWith(nil, "", "probe", "run", ordersPlan(t, g.url, "[]"), "--send", "--allow", hostOf(t, g.url), "--out", held)
	if out.code != probeHeld || !strings.Contains(out.stdout, "idempotency_support(header_key)") || !strings.Contains(out.stdout, "race_behavior(safe_converge)") {
		t.Fatalf("behind the gateway: exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	if !strings.Contains(out.stderr, "race") {
		t.Errorf("no progress was told: %s", out.stderr)
	}

	for format, sign := range map[string]string{
		"terminal": "verdict", "html": "<!DOCTYPE html>", "json": `"operations"`, "junit": "<testcase", "sarif": `"2.1.0"`, "markdown": "orders.create",
	} {
		out := semelWith(nil, "", "probe", "report", bare, "--format", format)
		if out.code != exitOK || !strings.Contains(strings.ToLower(out.stdout), strings.ToLower(sign)) {
			t.Errorf("report as %s: exit code %d, %d bytes: %s", format, out.code, len(out.stdout), out.stderr)
		}
	}
	if diff := semelWith(nil, "", "probe", "diff", bare, held, "--exit-code"); diff.code != exitOK || !strings.Contains(diff.stdout, "race_behavior: double_apply -> safe_converge") {
		t.Errorf("diff: exit code %d\n%s", diff.code, diff.stdout)
	}
	want(t, "exit code of the diff the other way", semelWith(nil, "", "probe", "diff", held, bare, "--exit-code").code, probeFindings)
	want(t, "exit code of a run onto another", semelWith(nil, "", "probe", "run", ordersPlan(t, g.url, "[]"), "--send", "--out", held).code, probeUsage)
}

// TestProbeSendsNothing: without --send, without an allow list, or with a plan
// that is wrong, no connection is made.
func TestProbeSendsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	var connections atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	base := "http://" + l.Addr().String()
	allowed := fmt.Sprintf("[%q]", l.Addr().String())

	dry := semelWith(nil, "", "probe", "run", ordersPlan(t, base, allowed))
	if dry.code != exitOK || !strings.Contains(dry.stdout, "POST /orders HTTP/1.1") || !strings.Contains(dry.stdout, "nothing was sent") {
		t.Errorf("dry run: exit code %d\n%s%s", dry.code, dry.stdout, dry.stderr)
	}
	const apart = "; what readers by a command send is not counted\n"
	counted := writeFile(t, "command.yaml", fmt.Sprintf(`version: 1
name: x
target: {allow: %s, production: false}
operations:
  - name: a
    request: {method: POST, url: %q}
    readers: [{name: rows, command: {argv: [none, --count]}}]
`, allowed, base+"/"))
	if out := semelWith(nil, "", "probe", "run", counted); !strings.Contains(out.stdout, apart) || !strings.Contains(out.stdout, "duplicate: first, once\n") || strings.Contains(dry.stdout, apart) {
		t.Errorf("reads that are not counted: %s%s", out.stdout, out.stderr)
	}
	asJSON := semelWith(nil, "", "probe", "run", ordersPlan(t, base, allowed), "--json")
	if asJSON.code != exitOK || !json.Valid([]byte(asJSON.stdout)) {
		t.Errorf("dry run as JSON: exit code %d: %s", asJSON.code, asJSON.stderr)
	}
	bad := writeFile(t, "bad.yaml", "version: 1\nname: x\nsurprise: 1\n")
	for name, args := range map[string][]string{
		"no allow list":        {ordersPlan(t, base, "[]"), "--send"},
		"another host":         {ordersPlan(t, base, `["127.0.0.1:1"]`), "--send"},
		"a plan that is wrong": {bad, "--send"},
		"no plan":              {"none.yaml", "--send"},
		"no such experiment":   {ordersPlan(t, base, allowed), "--send", "--only", "magic"},
		"no such operation":    {ordersPlan(t, base, allowed), "--send", "--operation", "magic"},
		"a flag that is not":   {ordersPlan(t, base, allowed), "--sent"},
		"two arguments":        {ordersPlan(t, base, allowed), "x"},
		"production, unspoken": {production(t, ordersPlan(t, base, allowed)), "--send"},
		"negative trials":      {ordersPlan(t, base, allowed), "--send", "--trials", "-1"},
	} {
		out := semelWith(nil, "", append([]string{"probe", "run"}, args...)...)
		want(t, name+": exit code", out.code, probeUsage)
		if out.stderr == "" {
			t.Errorf("%s: nothing is said", name)
		}
	}
	if out := semelWith(nil, "", "probe", "run", bad); !strings.Contains(out.stderr, "bad.yaml:3") {
		t.Errorf("a wrong plan is not told by its line: %s", out.stderr)
	}
	want(t, "connections", connections.Load(), 0)
}

func production(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	noError(t, err)
	return writeFile(t, "production.yaml", strings.Replace(string(text), "production: false", "production: true", 1))
}

func TestProbeUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	addr := l.Addr().String()
	noError(t, l.Close())
	dir := filepath.Join(t.TempDir(), "run")
	out := semelWith(nil, "", "probe", "run", ordersPlan(t, "http://"+addr, fmt.Sprintf("[%q]", addr)), "--send", "--out", dir, "--quiet")
	want(t, "exit code", out.code, probeUnreachable)
	if _, err := os.Stat(filepath.Join(dir, "run.json")); err != nil {
		t.Error("there is no evidence")
	}
}

// TestProbeInconclusive: a run that shows nothing is neither held nor wrong usage.
func TestProbeInconclusive(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("[]"))
	}))
	t.Cleanup(target.Close)
	out := semelWith(nil, "", "probe", "run", ordersPlan(t, target.URL, fmt.Sprintf("[%q]", hostOf(t, target.URL))), "--send",
		"--only", "duplicate", "--out", filepath.Join(t.TempDir(), "run"), "--quiet")
	want(t, "exit code", out.code, probeInconclusive)
	if !strings.Contains(out.stderr, "inconclusive") {
		t.Errorf("it does not say why: %s", out.stderr)
	}
}

func TestProbeInit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.yaml")
	curl := `curl -H 'Authorization: Bearer hunter2hunter2' -H 'Idempotency-Key: "k"' -d '{"item":"book"}' http://127.0.0.1:9000/orders`
	out := semelWith(nil, "", "probe", "init", "--curl", curl, "--out", file)
	if out.code != exitOK || !strings.Contains(out.stderr, "environment variable") {
		t.Fatalf("exit code %d: %s", out.code, out.stderr)
	}
	text, err := os.ReadFile(file)
	noError(t, err)
	if strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), "/orders") {
		t.Errorf("the plan is\n%s", text)
	}
	want(t, "exit code for standard input", semelWith(nil, curl, "probe", "init", "--curl", "-").code, exitOK)
	for _, args := range [][]string{{}, {"--curl", "wget x"}, {"--har", "none.har"}, {"--curl", curl, "--har", "x"}, {"--curl", curl, "--out", file}, {"--postman", file}, {"--openapi", file}, {"--burp", file}} {
		want(t, strings.Join(args, " ")+": exit code", semelWith(nil, "", append([]string{"probe", "init"}, args...)...).code, probeUsage)
	}
	if out := semelWith(nil, "", "probe", "schema"); out.code != exitOK || !json.Valid([]byte(out.stdout)) {
		t.Error("the schema is no JSON")
	}
	for _, args := range [][]string{{"report", "none"}, {"diff", "none", "none"}} {
		want(t, strings.Join(args, " ")+": exit code", semelWith(nil, "", append([]string{"probe"}, args...)...).code, probeFailed)
	}
}

// TestProbeDryRunTellsWhatIsMissing: a dry run says what cannot be planned, and
// that the budget is too small.
// TestProbeInitRuns: a draft made of a recording of a create, a list and a get runs
// as it is, and judges: only the address has to be allowed.
func TestProbeInitRuns(t *testing.T) {
	quick.LeaveOut(t)
	for name, right := range map[string]bool{"right": true, "wrong": false} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var orders []map[string]any
			keys := map[string]map[string]any{}
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				if r.Method == http.MethodGet {
					_ = json.NewEncoder(w).Encode(map[string]any{"total": len(orders), "orders": orders})
					return
				}
				var order map[string]any
				_ = json.NewDecoder(r.Body).Decode(&order)
				key := r.Header.Get("Idempotency-Key")
				if known := keys[key]; right && known != nil {
					order = known
				} else {
					order["id"] = fmt.Sprint("o-", len(orders)+1)
					orders = append(orders, order)
					keys[key] = order
				}
				w.WriteHeader(http.StatusCreated)
				_ = json.NewEncoder(w).Encode(order)
			}))
			defer service.Close()

			type pair struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			}
			var entries []any
			record := func(method, path, body string) {
				req, err := http.NewRequest(method, service.URL+path, strings.NewReader(body))
				noError(t, err)
				req.Header.Set("Idempotency-Key", `"recorded"`)
				res, err := http.DefaultClient.Do(req)
				noError(t, err)
				answer, err := io.ReadAll(res.Body)
				noError(t, err)
				_ = res.Body.Close()
				request := map[string]any{"method": method, "url": service.URL + path, "headers": []pair{
					{"User-Agent", "Mozilla"}, {"sec-fetch-mode", "cors"}, {"Accept-Language", "de"}, {"Cookie", "lang=de"}, {"Accept", "application/json"}, {"Idempotency-Key", `"recorded"`},
				}}
				if body != "" {
					request["postData"] = map[string]any{"mimeType": "application/json", "text": body}
				}
				entries = append(entries, map[string]any{"request": request, "response": map[string]any{
					"status": res.StatusCode, "headers": []pair{}, "content": map[string]any{"mimeType": "application/json", "text": string(answer)},
				}})
			}
			record("POST", "/orders", `{"item":"book","reference":"my order"}`)
			record("GET", "/orders", "")
			record("GET", "/orders/o-1", "")
			file, err := json.Marshal(map[string]any{"log": map[string]any{"version": "1.2", "entries": entries}})
			noError(t, err)
			draft := filepath.Join(t.TempDir(), "orders.yaml")
			init := semelWith(nil, "", "probe", "init", "--har", writeFile(t, "traffic.har", string(file)), "--method", "POST", "--out", draft)
			if init.code != exitOK {
				t.Fatalf("exit code %d\n%s", init.code, init.stderr)
			}
			text, err := os.ReadFile(draft)
			noError(t, err)
			out := semelWith(nil, "", "probe", "run", draft, "--send", "--production", "--allow", hostOf(t, service.URL), "--out", filepath.Join(t.TempDir(), "run"))
			code, verdict := probeHeld, "1 effect, 1 due"
			if !right {
				code, verdict = probeFindings, "double-effect-sequential"
			}
			if out.code != code || !strings.Contains(out.stdout, verdict) || strings.Contains(string(text), "Mozilla") {
				t.Errorf("exit code %d\n%s%s\n%s", out.code, out.stdout, out.stderr, text)
			}
		})
	}
}

func TestProbeDryRunTellsWhatIsMissing(t *testing.T) {
	file := writeFile(t, "hooks.yaml", `version: 1
name: hooks
target: {allow: ["127.0.0.1:9"], production: false}
operations:
  - name: paid
    request: {method: POST, url: "http://127.0.0.1:9/", body: {json: {type: paid}}}
    key: {header: webhook-id, value: "msg_{{hex 24}}"}
    signature: {scheme: standard-webhooks, secret: '{{env "HOOK_SECRET"}}'}
experiments: [duplicate, redelivery, other_actor]
race: {width: 2}
`)
	var planned struct {
		MaxSends     int                                `json:"max_sends"`
		PlannedSends int                                `json:"planned_sends"`
		Warning      string                             `json:"warning"`
		Requests     []map[string]any                   `json:"requests"`
		Not          []struct{ Experiment, Why string } `json:"not_planned"`
	}
	out := semelWith(nil, "", "probe", "run", file)
	if out.code != exitOK || !strings.Contains(out.stdout, "webhook-signature: ") || strings.Contains(out.stdout, "warning") ||
		!strings.Contains(out.stdout, "# paid, other_actor: nothing is planned: ") {
		t.Errorf("an unset secret: exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}

	wrong := []string{"HOOK_SECRET=whsec_?"}
	out = semelWith(wrong, "", "probe", "run", file)
	if out.code != probeInconclusive || !strings.Contains(out.stdout, "# paid, duplicate: nothing is planned: ") || !strings.Contains(out.stdout, "the secret is not base64") {
		t.Errorf("a wrong secret: exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	out = semelWith(wrong, "", "probe", "run", file, "--json")
	noError(t, json.Unmarshal([]byte(out.stdout), &planned))
	if out.code != probeInconclusive || len(planned.Requests) != 0 || len(planned.Not) != 3 || !strings.Contains(planned.Not[0].Why, "base64") {
		t.Errorf("a wrong secret: exit code %d, %+v", out.code, planned)
	}

	out = semelWith(nil, "", "probe", "run", file, "--max-sends", "2")
	if out.code != exitOK || !strings.Contains(out.stdout, "warning: ") || !strings.Contains(out.stdout, "max_sends is 2") {
		t.Errorf("a budget that is too small: exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	out = semelWith(nil, "", "probe", "run", file, "--max-sends", "2", "--json")
	noError(t, json.Unmarshal([]byte(out.stdout), &planned))
	if planned.MaxSends != 2 || planned.PlannedSends <= 2 || planned.Warning == "" {
		t.Errorf("a budget that is too small: %+v", planned)
	}
	want(t, "exit code", semelWith(nil, "", "probe", "run", file, "--max-sends", "-1").code, probeUsage)
}

func TestStandIn(t *testing.T) {
	for _, name := range []string{"A", "HOOK_SECRET", "Ä", strings.Repeat("LONG_", 20)} {
		key, err := base64.StdEncoding.DecodeString(standIn(name))
		if err != nil || len(key) < 24 || !strings.HasPrefix(standIn(name), "unset") {
			t.Errorf("%q: %d bytes, %v", standIn(name), len(key), err)
		}
	}
}
