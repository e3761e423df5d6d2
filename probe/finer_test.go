package probe

import (
	"context"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// A dry run in a description is found by its usual names.
func TestPreviewIsNoticed(t *testing.T) {
	at := "http://x.example/v1/orders"
	for doc, want := range map[string]string{
		`{"openapi":"3.1.0","paths":{"/orders":{"post":{"parameters":[{"name":"x","in":"query"},{"name":"dryRun","in":"query"}]}}}}`:                                                      "the parameter dryRun (query)",
		`{"openapi":"3.1.0","components":{"parameters":{"d":{"name":"validate_only","in":"header"}}},"paths":{"/orders":{"post":{"parameters":[{"$ref":"#/components/parameters/d"}]}}}}`: "the parameter validate_only (header)",
		`{"openapi":"3.1.0","paths":{"/orders":{"post":{}},"/orders/validate":{"post":{}}}}`:                                                                                              "the path /orders/validate",
		`{"openapi":"3.1.0","paths":{"/orders":{"post":{}},"/carts/preview":{"post":{}}}}`:                                                                                                "",
		`{"openapi":"3.1.0","paths":{"/orders":{"post":{"parameters":[{"name":"preview_image","in":"query"},{}]}}}}`:                                                                      "",
	} {
		op := &plan.Operation{Name: "o", Request: plan.Request{Method: "POST", URL: at}}
		if got := read([]byte(doc), op, at).preview; got != want {
			t.Errorf("%s names %q, want %q", doc, got, want)
		}
	}
}

// A sign counts if there is more of it than before, or a query finds it; and what
// decides is inferred beside a race that converged only, from signs of one kind.
func TestSigns(t *testing.T) {
	log := filepath.Join(t.TempDir(), "db.log")
	if err := os.WriteFile(log, []byte("duplicate key of others\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &plan.Plan{
		Version: 1, Name: "p", Target: plan.Target{Production: new(false)},
		Operations: []plan.Operation{{
			Name: "o", Request: plan.Request{Method: "POST", URL: "http://x.example/"},
			Atomicity: []plan.Mechanism{
				{Is: "db_unique", Log: &plan.LogReader{File: log, Pattern: "duplicate key"}},
				{Is: "tx_lock", Answer: "waited"},
			},
		}},
	}
	r, err := newRunner(p, Options{Send: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	o := r.newOperation(&r.p.Operations[0])
	x := &exp{o: o, e: evidence.Experiment{Name: "race"}}
	v, err := x.draw(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	look := func(more string) []*sign {
		list, err := x.signs(t.Context(), &watch{v: v})
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(more)
			_ = f.Close()
		}
		if err == nil {
			err = x.found(t.Context(), list)
		}
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := look("something else\n"); list[0].found != "" || list[1].found != "" {
		t.Errorf("what was there before was found: %+v", list)
	}
	list := look("duplicate key of ours\n")
	if list[0].found != "the log" || list[1].found != "" {
		t.Errorf("found %+v", list)
	}
	one := delta{state: true, most: big.NewRat(1, 1), least: big.NewRat(1, 1)}
	j := &judgement{o: o, e: &x.e}
	j.mechanisms(list, &attempt{settled: true, total: delta{state: true, most: big.NewRat(2, 1)}})
	if len(o.facts.signs) > 0 {
		t.Error("a sign beside two effects counts")
	}
	j.mechanisms(list, &attempt{settled: true, total: one})
	o.atomicity()
	if _, basis := o.tellAtomicity(); o.ev.Verdict.Atomicity != "unknown" || basis != evidence.Unknowable {
		t.Errorf("without a race it is %s", o.ev.Verdict.Atomicity)
	}
	o.ev.Verdict.RaceBehavior = "safe_converge"
	o.atomicity()
	if _, basis := o.tellAtomicity(); o.ev.Verdict.Atomicity != "db_unique" || basis != evidence.Inferred {
		t.Errorf("it is %s, %s", o.ev.Verdict.Atomicity, basis)
	}
	list[1].found = "a response"
	j.mechanisms(list, &attempt{settled: true, total: one})
	o.ev.Verdict.Atomicity = "unknown"
	if o.atomicity(); o.ev.Verdict.Atomicity != "unknown" {
		t.Errorf("of two kinds it is %s", o.ev.Verdict.Atomicity)
	}
}
