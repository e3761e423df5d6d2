package targets

import (
	"slices"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	found := map[string]bool{}
	wrongs, rights := 0, 0
	for _, target := range slices.Concat(All(), Reach(), Finer()) {
		if seen[target.Name] || target.About == "" {
			t.Errorf("%s: the name is there twice, or it says nothing about itself", target.Name)
		}
		seen[target.Name] = true
		e := target.Expect
		if target.Wrong != (len(e.Must) > 0) {
			t.Errorf("%s: wrong is %v and it must be found to have %q", target.Name, target.Wrong, e.Must)
		}
		if target.Wrong {
			wrongs++
		} else {
			rights++
		}
		for _, id := range slices.Concat(e.Must, e.May) {
			if _, ok := evidence.Lookup(id); !ok {
				t.Errorf("%s: the catalogue has no %s", target.Name, id)
			}
			if slices.Contains(e.MustNot(), id) {
				t.Errorf("%s: %s may be found and must not", target.Name, id)
			}
		}
		for _, id := range e.Must {
			found[string(id)] = true
		}
		if n := len(e.Must) + len(e.May) + len(e.MustNot()); n != len(evidence.Catalogue()) {
			t.Errorf("%s: findings are decided %d times, the catalogue has %d", target.Name, n, len(evidence.Catalogue()))
		}
		for name, values := range e.Verdict {
			for _, value := range values {
				v := evidence.UnknownVerdict()
				for _, f := range fields(&v) {
					if f.name == name {
						*f.value = value
						name = ""
					}
				}
				if name != "" {
					t.Errorf("%s: a verdict has no field %s", target.Name, name)
				}
				if err := v.Validate(); err != nil {
					t.Errorf("%s: %v", target.Name, err)
				}
				name = ""
			}
		}
		for x := range e.Outcomes {
			if !slices.Contains(target.Experiments, x) {
				t.Errorf("%s: the outcome of %s is expected, and it is not run", target.Name, x)
			}
		}
	}
	if wrongs < 14 || rights < 10 {
		t.Errorf("%d wrong targets and %d right ones", wrongs, rights)
	}
	for _, f := range evidence.Catalogue() {
		if !found[string(f.ID)] {
			t.Errorf("no target has %s", f.ID)
		}
	}
}

type field struct {
	name  string
	value *string
}

func fields(v *evidence.Verdict) []field {
	return []field{
		{"idempotency_support", &v.IdempotencySupport},
		{"key_scope_binding", &v.KeyScopeBinding},
		{"result_replay", &v.ResultReplay},
		{"in_progress_handling", &v.InProgressHandling},
		{"atomicity", &v.Atomicity},
		{"race_behavior", &v.RaceBehavior},
		{"outbox_pattern", &v.OutboxPattern},
		{"retry_behavior", &v.RetryBehavior},
		{"audit_strength", &v.AuditStrength},
	}
}

// TestPlans renders what the probe would send, and checks that no experiment of
// a plan is left out for want of something.
func TestPlans(t *testing.T) {
	for _, target := range All() {
		s := &Server{URL: "http://127.0.0.1:8080", Addr: "127.0.0.1:8080"}
		p := target.Plan(s, "127.0.0.1:9090")
		r, err := plan.NewRenderer(p, plan.Source{Env: Env})
		if err != nil {
			t.Errorf("%s: %v", target.Name, err)
			continue
		}
		op := &r.Plan().Operations[0]
		if got := r.Plan().ExperimentsFor(op); len(got) != len(target.Experiments) {
			t.Errorf("%s: %d experiments of %d", target.Name, len(got), len(target.Experiments))
		}
		for _, x := range target.Experiments {
			if err := p.Applies(op, x); err != nil {
				t.Errorf("%s: %s: %v", target.Name, x, err)
			}
		}
		v, err := r.Draw(op.Name)
		if err != nil {
			t.Errorf("%s: %v", target.Name, err)
			continue
		}
		for _, c := range []plan.Change{{}, {Altered: true}, {NoKey: true}} {
			if _, err := r.Request(v, c); err != nil {
				t.Errorf("%s: %+v: %v", target.Name, c, err)
			}
		}
		for i := range op.Readers {
			if _, err := r.Reading(v, &op.Readers[i], ""); err != nil {
				t.Errorf("%s: %v", target.Name, err)
			}
		}
		for i := range op.Audit {
			if _, err := r.Search(v, &op.Audit[i], ""); err != nil {
				t.Errorf("%s: %v", target.Name, err)
			}
		}
	}
}
