package evidence

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestVerdictKey(t *testing.T) {
	v := UnknownVerdict()
	if err := v.Validate(); err != nil {
		t.Fatal(err)
	}
	const want = "idempotency_support(unknown) + key_scope_binding(unknown) + result_replay(unknown) + in_progress_handling(unknown) + atomicity(unknown) + race_behavior(unknown) + outbox_pattern(unknown) + retry_behavior(unknown) + audit_strength(unknown) + confidence(0.00)"
	if v.Key() != want {
		t.Fatal(v.Key())
	}
	v.KeyScopeBinding, v.RaceBehavior, v.Confidence = "tenant+actor+operation", "safe_converge", 0.876
	if err := v.Validate(); err != nil || !strings.HasSuffix(v.Key(), "confidence(0.88)") || !strings.Contains(v.Key(), "key_scope_binding(tenant+actor+operation) + ") {
		t.Fatal(v.Key(), err)
	}
	for _, bad := range []func(*Verdict){
		func(v *Verdict) { v.Atomicity = "yes" },
		func(v *Verdict) { v.Confidence = 1.01 },
		func(v *Verdict) { v.Confidence = math.NaN() },
		func(v *Verdict) { v.AuditStrength = "" },
	} {
		w := v
		if bad(&w); w.Validate() == nil {
			t.Errorf("%+v was accepted", w)
		}
	}
}

// 0 of 60 bounds the rate below about 5 %, by the rule of three.
func TestRateBound(t *testing.T) {
	for _, c := range []struct {
		doubled, trials int
		want            float64
	}{{0, 0, 1}, {0, 1, 0.95}, {0, 60, 0.0487}, {0, 300, 0.00994}, {1, 60, 0.0766}, {30, 60, 0.6126}, {60, 60, 1}} {
		if got := RateBound(c.doubled, c.trials); math.Abs(got-c.want) > 0.0005 {
			t.Errorf("%d of %d: %v; want %v", c.doubled, c.trials, got, c.want)
		}
	}
}

func TestRunJudgement(t *testing.T) {
	var r Run
	if r.Conclusive() || r.Worst() != "" {
		t.Fatal("nothing was shown")
	}
	r.Operations = []Operation{{Experiments: []Experiment{{Outcome: Held}, {Outcome: NotApplicable}}}}
	if !r.Conclusive() {
		t.Fatal("something was shown")
	}
	r.Operations[0].Findings = []Finding{{Priority: P2}, {Priority: P0}, {Priority: P1}}
	if r.Worst() != P0 {
		t.Fatal(r.Worst())
	}
	for _, spoil := range []func(r *Run){
		func(r *Run) { r.Interrupted = "budget" },
		func(r *Run) { r.DryRun = true },
		func(r *Run) {
			r.Operations = append(r.Operations, Operation{Experiments: []Experiment{{Outcome: NotRun}}})
		},
		func(r *Run) {
			r.Operations = append(r.Operations, Operation{Experiments: []Experiment{{Outcome: Held}, {Outcome: Inconclusive}}})
		},
	} {
		var s Run
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		if !s.Conclusive() {
			t.Fatal("the JSON form does not keep the run")
		}
		if spoil(&s); s.Conclusive() {
			t.Errorf("%+v is conclusive", s)
		}
	}
}
