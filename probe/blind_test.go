package probe_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Without a reader nobody has seen that a request had no effect: where keys are
// optional, a success without one is no finding.
func TestMissingKeyWithoutReader(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}))
	defer target.Close()
	op := mustProbe(t, &plan.Plan{
		Version: 1, Name: "blind",
		Target: plan.Target{Allow: []string{strings.TrimPrefix(target.URL, "http://")}, Production: new(false)},
		Operations: []plan.Operation{{
			Name: "orders.create", Request: plan.Request{Method: "POST", URL: target.URL}, Key: &plan.Key{Header: "Idempotency-Key"},
		}},
		Experiments: []plan.Experiment{plan.MissingKey},
		Contract:    &plan.Contract{Profile: "stripe"},
	}, probe.Options{})
	if e := op.Experiments[0]; e.Outcome != evidence.Inconclusive || len(op.Findings) != 0 {
		t.Errorf("%s: %s, %d findings", e.Outcome, e.Why, len(op.Findings))
	}
}
