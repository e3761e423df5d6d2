package probe_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

// looker looks for a key, works, and writes it down after: requests at the same
// time take effect each. It works until the client goes or work is over, and if
// they are to meet until another request has the key; and does not write down the key of a client that
// has gone. Its keys are everybody's, and what is under them is not compared.
type looker struct {
	mu     sync.Mutex
	work   time.Duration
	meet   bool
	busy   map[string]chan struct{}
	byKey  map[string]string
	orders []map[string]any
	auth   []string
	keys   []string
}

func (l *looker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(l.orders)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	l.auth, l.keys = append(l.auth, r.Header.Get("Authorization")), append(l.keys, key)
	id, known := l.byKey[key]
	if !known {
		other := l.busy[key]
		if other == nil {
			other = make(chan struct{})
			l.busy[key] = other
			over := time.NewTimer(l.work)
			l.mu.Unlock()
			select {
			case <-other:
			case <-r.Context().Done():
			case <-over.C:
			}
			over.Stop()
			l.mu.Lock()
			if l.busy[key] == other {
				delete(l.busy, key)
			}
		} else if l.meet {
			delete(l.busy, key)
			close(other)
		} else {
			l.mu.Unlock()
			time.Sleep(l.work)
			l.mu.Lock()
		}
		var order map[string]any
		if json.Unmarshal(body, &order) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		id = fmt.Sprintf("ord_%d", len(l.orders)+1)
		order["id"] = id
		l.orders = append(l.orders, order)
		if r.Context().Err() == nil {
			l.byKey[key] = id
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%q}`, id)
}

// keysAndOrders are what was asked and done since it was last called.
func (l *looker) since(orders, requests int) (made []map[string]any, keys, auth []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.orders[orders:]), slices.Clone(l.keys[requests:]), slices.Clone(l.auth[requests:])
}

var scriptOf = regexp.MustCompile(`(?m)^# semel probe, run .*, ([a-z_]+): ([a-z-]+)$`)

var holdsTimes = regexp.MustCompile(`(?m)^state (before|after)( trial \d+)? holds [0-9a-f]{16} (\d+) times; one effect may hold it more than once$`)

// The script of each finding is run as it is in the folder, and shows the same
// as the probe: with values of its own, and the secret from the environment.
func TestScripts(t *testing.T) {
	quick.LeaveOut(t)
	for _, program := range []string{"sh", "curl", "awk", "od"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here", program)
		}
	}
	const token = "secret-of-the-'quoted'-$(test)"
	target := &looker{work: 300 * time.Millisecond, busy: map[string]chan struct{}{}, byKey: map[string]string{}}
	server := httptest.NewServer(target)
	defer server.Close()

	p := simple(server.URL, plan.Duplicate, plan.Altered, plan.OtherTenant, plan.RaceSame, plan.LostUnread, plan.FailedFirst)
	bearer := func(name string) *plan.Principal {
		return &plan.Principal{Headers: plan.Header{{Name: "Authorization", Value: `Bearer {{env "` + name + `"}}`}}}
	}
	p.Principals = plan.Principals{ActorA: bearer("SCRIPT_A"), TenantB: bearer("SCRIPT_B")}
	op := &p.Operations[0]
	op.Request.Body = &plan.Body{JSON: plan.JSON(`{"ref":"{{.ref}}","note":"it's %s \\n 100% \u0007 ü $HOME ` + "`id`" + `"}`)}
	op.Altered = &plan.Alteration{Edits: []plan.Edit{{Pointer: new(plan.Pointer("/note")), Value: plan.JSON(`"other"`)}}}
	op.Readers = []plan.Reader{{Name: "orders", HTTP: &plan.HTTPReader{URL: server.URL + "/", Count: new(plan.Pointer("")), Where: plan.Pairs{{Name: "/ref", Value: "{{.ref}}"}}}}}
	// A race that doubles takes the blame for what a retry meanwhile does.
	alone := *op
	alone.Name, alone.Experiments = "count-alone", []plan.Experiment{plan.InFlight}
	p.Operations = append(p.Operations, alone)
	p.Budget = plan.Budget{MaxSends: 100}
	env := map[string]string{"SCRIPT_A": token, "SCRIPT_B": "token-of-b"}
	res := mustRun(t, p, probe.Options{Send: true, Source: plan.Source{Env: func(n string) (string, bool) { v, ok := env[n]; return v, ok }}})
	dir := filepath.Join(t.TempDir(), "run")
	if err := report.Write(dir, res.Run, report.Files{HAR: res.WriteHAR}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, report.ScriptDir, "*.sh"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(res.Run.Operations[0].Findings) + len(res.Run.Operations[1].Findings); len(files) != n {
		t.Errorf("%d scripts for %d findings", len(files), n)
	}
	var exchanges strings.Builder
	if err := res.WriteHAR(&exchanges); err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// What a machine that is slow finds has another name now and then, but
		// not another experiment.
		m := scriptOf.FindStringSubmatch(string(text))
		if m == nil {
			t.Fatalf("%s does not say what it is of:\n%s", file, text)
		}
		of, id := m[1], m[2]
		tried[of] = true
		for _, secret := range []string{token, "token-of-b"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s holds a secret", id)
			}
		}
		t.Run(of+" "+id, func(t *testing.T) {
			target.mu.Lock()
			orders, requests := len(target.orders), len(target.keys)
			// Long enough for any machine where requests have to meet.
			if target.work, target.meet = 0, true; of == "race" || of == "lost_unread" || of == "in_flight" {
				target.work = 4 * time.Second
			}
			target.mu.Unlock()
			c := exec.CommandContext(t.Context(), "sh", file)
			c.Dir = t.TempDir()
			c.Env = append(os.Environ(), "SETTLE=0.2", "TRIALS=2", "CUT_AFTER=1", "SCRIPT_A="+token, "SCRIPT_B=token-of-b")
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, text)
			}
			if strings.Contains(string(out), token) {
				t.Errorf("a secret is printed:\n%s", out)
			}
			made, keys, auth := target.since(orders, requests)
			for _, a := range auth {
				if a != "Bearer "+token && a != "Bearer token-of-b" {
					t.Errorf("a request has the credentials %q", a)
				}
			}
			for _, k := range keys {
				if strings.Contains(exchanges.String(), strings.Trim(k, `"`)) {
					t.Errorf("the key %s is one of the run's", k)
				}
			}
			counts := map[string]int{}
			for _, k := range keys {
				counts[k]++
			}
			var after []string
			for _, m := range holdsTimes.FindAllStringSubmatch(string(out), -1) {
				after = append(after, m[1]+m[2]+" "+m[3])
			}
			switch of {
			case "race":
				if len(counts) != 2 || len(keys) != 2*4 || len(made) <= 2 || !strings.HasPrefix(after[0], "after trial 1 ") || after[0] == "after trial 1 1" {
					t.Errorf("%d orders of %d requests under %d keys, and %q\n%s", len(made), len(keys), len(counts), after, out)
				}
			case "lost_unread", "in_flight":
				if len(counts) != 1 || len(keys) != 2 || len(made) != 2 || !slices.Equal(after, []string{"after 2"}) {
					t.Errorf("%d orders of %d requests under %d keys, and %q\n%s", len(made), len(keys), len(counts), after, out)
				}
			case "altered", "other_tenant":
				if len(counts) != 1 || len(made) != 1 || !slices.Equal(after, []string{"after 1"}) || strings.Count(string(out), made[0]["id"].(string)+`"}`) < 2 {
					t.Errorf("%d orders of %d requests under %d keys, and %q\n%s", len(made), len(keys), len(counts), after, out)
				}
				if of == "other_tenant" && !slices.Contains(auth, "Bearer token-of-b") {
					t.Error("the other tenant did not ask")
				}
			}
			for _, o := range made {
				if note := o["note"].(string); note != "other" && note != "it's %s \\n 100% \a ü $HOME `id`" {
					t.Errorf("the body came as %q", note)
				}
			}
		})
	}
	for _, of := range []string{"race", "lost_unread", "in_flight", "altered", "other_tenant"} {
		if !tried[of] {
			t.Errorf("there is no script of a finding of %s; there are %q", of, files)
		}
	}
	for _, c := range []string{"SCRIPT_A", "SCRIPT_B"} {
		if !slices.ContainsFunc(res.Run.Secrets, func(n evidence.SecretName) bool { return n.From == "env "+c }) {
			t.Errorf("the evidence does not name %s: %v", c, res.Run.Secrets)
		}
	}
}
