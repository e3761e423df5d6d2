package probe_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// politely refuses with 200 and an error in the body.
type politely struct {
	mu      sync.Mutex
	refuses func(nth int) bool // of the nth key, from 1
	keys    []string
	made    map[string]bool
}

func (p *politely) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(map[string]int{"n": len(p.made)})
		return
	}
	key := r.Header.Get("Idempotency-Key")
	known := slices.Contains(p.keys, key)
	if !known {
		p.keys = append(p.keys, key)
	}
	nth := slices.Index(p.keys, key) + 1
	if !known && nth == 2 {
		// The one that is cut off: its client is gone before the response.
		p.mu.Unlock()
		select {
		case <-r.Context().Done():
		case <-time.After(3 * time.Second):
		}
		p.mu.Lock()
	}
	if p.refuses(nth) {
		fmt.Fprint(w, `{"error":{"code":"ratelimited"}}`)
		return
	}
	p.made[key] = true
	fmt.Fprintf(w, `{"id":"made-%d"}`, nth)
}

// Where the same request again and a fresh one were refused as well, those that
// are refused later are not sent again, until one succeeds.
func TestRefusedOnceIsEnough(t *testing.T) {
	refuses := func(upTo int64, twice ...int64) *counter {
		c, n := &counter{}, atomic.Int64{}
		c.before = func(w http.ResponseWriter, _ *http.Request) bool {
			if n := n.Add(1); n > upTo && !slices.Contains(twice, n) {
				return false
			}
			w.WriteHeader(http.StatusUnprocessableEntity)
			return true
		}
		return c
	}
	const alike = "was refused with 422, and not sent again: in an earlier experiment the same request again and a fresh one were refused as well"
	for name, c := range map[string]struct {
		target *counter
		roles  []string
		alike  []bool
	}{
		"always":                {refuses(1 << 30), []string{"first duplicate control", "first", "first"}, []bool{false, true, true}},
		"at first":              {refuses(4), []string{"first duplicate control", "first", "first duplicate"}, []bool{false, true, false}},
		"the first, and others": {refuses(3, 6), []string{"first duplicate control", "first fresh-key", "first duplicate duplicate"}, []bool{false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			op := mustRun(t, simple(c.target.serve(t).URL, plan.Duplicate, plan.FreshKey, plan.LateRetry), probe.Options{Send: true}).Run.Operations[0]
			for i, e := range []plan.Experiment{plan.Duplicate, plan.FreshKey, plan.LateRetry} {
				got := outcome(t, op, e)
				if sent := strings.Join(roles(got), " "); sent != c.roles[i] || strings.Contains(got.Why, alike) != c.alike[i] {
					t.Errorf("%s sent %s: %s: %s", e, sent, got.Outcome, got.Why)
				}
			}
		})
	}
}

// A retry that is refused in the body of a 200 is compared with a fresh request:
// where that is refused likewise, the key is not to blame.
func TestRefusedInTheBody(t *testing.T) {
	for name, c := range map[string]struct {
		refuses func(nth int) bool
		outcome evidence.Outcome
		why     string
		finds   bool
	}{
		"everything after the first": {
			func(nth int) bool { return nth > 1 }, evidence.Inconclusive,
			"the retry was refused with 200 with an error in its body, and so was a fresh request: 200 with an error in its body", false,
		},
		"what was lost only": {
			func(nth int) bool { return nth == 2 }, evidence.Broken,
			"the retry was refused with 200 with an error in its body the one time it was sent again, and there is no effect", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(&politely{refuses: c.refuses, made: map[string]bool{}})
			defer server.Close()
			op := mustProbe(t, simple(server.URL, plan.LostUnread), probe.Options{})
			e := outcome(t, op, plan.LostUnread)
			if e.Outcome != c.outcome || e.Why != c.why {
				t.Errorf("%s: %s", e.Outcome, e.Why)
			}
			i := slices.IndexFunc(op.Findings, func(f evidence.Finding) bool { return f.ID == "failure-blocks-key" })
			if i >= 0 != c.finds {
				t.Fatalf("failure-blocks-key: %v", i >= 0)
			}
			if i >= 0 && !slices.ContainsFunc(op.Findings[i].Causes, func(c evidence.Cause) bool {
				return c.Name == "tied-to-client" && strings.HasSuffix(c.For, "refused the one time it was sent again.")
			}) {
				t.Errorf("causes: %+v", op.Findings[i].Causes)
			}
		})
	}
}

// busy executes every request, and of those at once it refuses the nth with 500.
type busy struct {
	mu    sync.Mutex
	sent  map[string]int // by key
	order []string
	n     int
	drops func(race, nth int) (status int)
}

func (b *busy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(map[string]int{"n": b.n})
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if b.sent[key]++; b.sent[key] == 1 {
		b.order = append(b.order, key)
	}
	if status := b.drops(slices.Index(b.order, key), b.sent[key]); status != 0 {
		w.WriteHeader(status)
		fmt.Fprint(w, "{}")
		return
	}
	b.n++
	fmt.Fprintf(w, `{"id":"made-%d"}`, b.n)
}

// What races doubled is told in sum, and those that failed, or succeeded without
// an effect, are not said to have had one.
func TestRacesInSum(t *testing.T) {
	for name, c := range map[string]struct {
		drops func(race, nth int) int
		why   string
		state evidence.CauseState
		rests string
	}{
		"some fail": {
			func(race, nth int) int { return map[bool]int{true: 500}[race == 2 && nth == 3] },
			"3 to 4 effects by reader n instead of 1; more than one effect in 2 of 2 trials",
			evidence.Refuted, "Every duplicate that succeeded had an effect, even those that came at once.",
		},
		"some have no effect": {
			func(race, nth int) int { return map[bool]int{true: 200}[race > 0 && nth > 2] },
			"2 effects by reader n instead of 1; more than one effect in 2 of 2 trials",
			evidence.Open, "Some of the simultaneous requests that succeeded had no effect of their own. A duplicate that came once the state had settled had one.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(&busy{sent: map[string]int{}, drops: c.drops})
			defer server.Close()
			p := simple(server.URL, plan.Duplicate, plan.RaceSame)
			p.Race.Trials = 2
			op := mustProbe(t, p, probe.Options{})
			if e := outcome(t, op, plan.RaceSame); e.Why != c.why {
				t.Errorf("%s: %s", e.Outcome, e.Why)
			}
			var causes []evidence.Cause
			for _, f := range op.Findings {
				causes = append(causes, f.Causes...)
			}
			if !slices.ContainsFunc(causes, func(x evidence.Cause) bool { return x.Name == "forgotten" && x.State == c.state && x.For == c.rests }) {
				t.Errorf("causes: %+v", causes)
			}
		})
	}
}

// That a duplicate gets a result is held against a target only where the plan says
// that it does.
func TestRefusedDuplicateOfNoContract(t *testing.T) {
	for name, c := range map[string]struct {
		contract *plan.Contract
		found    bool
	}{
		"none":           {nil, false},
		"without replay": {&plan.Contract{Missing: []int{400}}, false},
		"a profile":      {&plan.Contract{Profile: "ietf"}, true},
		"replay":         {&plan.Contract{Replay: "original"}, true},
	} {
		var mu sync.Mutex
		seen := map[string]bool{}
		target := &counter{before: func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			key := r.Header.Get("Idempotency-Key")
			if seen[key] {
				w.WriteHeader(http.StatusConflict)
				return true
			}
			seen[key] = true
			return false
		}}
		p := simple(target.serve(t).URL, plan.Duplicate)
		p.Contract = c.contract
		op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
		if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Held || (finding(op, "replay-refused") != nil) != c.found {
			t.Errorf("%s: %s", name, describe(op))
		}
	}
}
