package evidence

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// doubled is an operation that takes effect twice, told by all four witnesses.
func doubled() Operation {
	e, _ := Lookup("double-effect-sequential")
	o := Operation{
		Name: "orders.create", Verdict: UnknownVerdict(),
		Readers: []Reader{{Name: "rows", Seen: true}, {Name: "mail", Outside: true, Seen: true}},
		Experiments: []Experiment{
			{Name: "specification", Outcome: Held},
			{
				Name: "duplicate", Outcome: Broken, Audit: []string{"a", "b"},
				Sends: []Send{
					{N: 1, Role: "read"},
					{N: 2, Role: "first", Status: 201, Resource: "ord_1", LastWriteUS: 10, FirstByteUS: 5010},
					{N: 3, Role: "duplicate", Status: 201, Resource: "ord_2", LastWriteUS: 6000, FirstByteUS: 9000},
				},
				Changes: []Change{
					{Reader: "rows", Before: "0", After: "2", Effects: 2, Expected: 1},
					{Reader: "mail", Before: "0", After: "1", Effects: 1, Expected: 1},
				},
				Second: &Second{Class: DifferentResult, FirstUS: 5000, SecondUS: 3000, Timing: "undecided"},
			},
		},
		Findings: []Finding{e.Finding("duplicate", 2, 3)},
	}
	return o
}

func TestWitnesses(t *testing.T) {
	o := doubled()
	all := o.Witnesses()
	if len(all) != 1 {
		t.Fatalf("%d rows; the specification sends nothing", len(all))
	}
	w := all[0]
	if w.Experiment != "duplicate" || !slices.Equal(w.Resources, []string{"ord_1", "ord_2"}) || w.Answers != 2 || w.AuditLines != 2 {
		t.Errorf("%+v", w)
	}
	if !slices.Equal(w.State, []Effect{{"rows", 2, 1}}) || !slices.Equal(w.Outside, []Effect{{"mail", 1, 1}}) {
		t.Errorf("state %v, outside %v", w.State, w.Outside)
	}
	if w.First == nil || w.First.Status != 201 || w.First.WaitedUS != 5000 || w.Second == nil || w.Second.Class != DifferentResult || w.Second.WaitedUS != 3000 {
		t.Errorf("first %+v, second %+v", w.First, w.Second)
	}
	// An audit trail that was searched for nothing is no audit trail.
	o.Experiments[1].Audit = nil
	if got := o.Witnesses()[0].AuditLines; got != -1 {
		t.Errorf("%d audit lines where none was searched", got)
	}
	missing, _ := Lookup("audit-missing")
	o.Findings = append(o.Findings, missing.Finding("duplicate"))
	if got := o.Witnesses()[0].AuditLines; got != 0 {
		t.Errorf("%d audit lines where none was found", got)
	}
}

// Of a race the trial with most ids counts, and its control does not.
func TestWitnessesOfRace(t *testing.T) {
	id := []string{"a", "a", "b", "c", "d", "d"}
	e := Experiment{Name: "race", Race: &Race{Width: 2, Trials: 3}, Sends: []Send{{Role: "control", Resource: "z"}}}
	for i, r := range id {
		e.Sends = append(e.Sends, Send{N: i, Role: "race", Status: 201, Resource: r})
	}
	e.Changes = []Change{{Reader: "rows", Effects: 1, Expected: 1}, {Reader: "rows", Effects: 2, Expected: 1}, {Reader: "rows", Effects: 1, Expected: 1}}
	o := Operation{Experiments: []Experiment{e}}
	w := o.Witnesses()[0]
	if !slices.Equal(w.Resources, []string{"b", "c"}) || w.Answers != 2 || !slices.Equal(w.State, []Effect{{"rows", 4, 3}}) || w.First != nil {
		t.Errorf("%+v", w)
	}
}

func standing(o Operation) (states []CauseState, all []Standing) {
	all = o.Standings()
	for _, s := range all {
		states = append(states, s.State)
	}
	return states, all
}

func TestStandings(t *testing.T) {
	held := func(names ...string) (es []Experiment) {
		for _, n := range names {
			es = append(es, Experiment{Name: n, Outcome: Held})
			if n == "race" {
				es[len(es)-1].Race = &Race{Overlapped: 20, Trials: 20}
			}
		}
		return es
	}
	find := func(ids ...string) (fs []Finding) {
		for _, id := range ids {
			e, ok := Lookup(id)
			if !ok {
				t.Fatal(id)
			}
			fs = append(fs, e.Finding("x"))
		}
		return fs
	}
	seen := []Reader{{Name: "rows", Seen: true}}
	everything := held("duplicate", "altered", "other_actor", "other_tenant", "race", "lost_unread", "lost_begun", "failed_first")
	for name, c := range map[string]struct {
		o    Operation
		want []CauseState
	}{
		"nothing":          {Operation{}, []CauseState{Open, Open, Open, Open}},
		"the default":      {Operation{Readers: seen, Experiments: held("duplicate")}, []CauseState{RuledOut, Open, Open, Open}},
		"everything":       {Operation{Readers: seen, Experiments: everything}, []CauseState{RuledOut, RuledOut, RuledOut, RuledOut}},
		"blind":            {Operation{Readers: []Reader{{Name: "rows"}}, Experiments: everything}, []CauseState{Open, Open, Open, Open}},
		"late instead":     {Operation{Readers: seen, Experiments: held("late_retry", "lost_unread")}, []CauseState{RuledOut, Open, Open, Open}},
		"race":             {Operation{Readers: seen, Experiments: held("duplicate"), Findings: find("double-effect-race")}, []CauseState{RuledOut, Supported, Open, Open}},
		"none at all":      {Operation{Readers: seen, Findings: find("double-effect-sequential", "double-effect-race", "double-effect-lost-response")}, []CauseState{Supported, Open, Open, Open}},
		"none, and a loss": {Operation{Readers: seen, Findings: find("double-effect-sequential", "lost-effect")}, []CauseState{Supported, Open, Supported, Open}},
		"bound":            {Operation{Readers: seen, Findings: find("key-not-scoped-tenant")}, []CauseState{Open, Open, Open, Supported}},
		"not applicable":   {Operation{Readers: seen, Experiments: append(held("duplicate", "altered"), Experiment{Name: "other_actor", Outcome: NotApplicable, Why: "the plan has no actor_b."})}, []CauseState{RuledOut, Open, Open, Open}},
	} {
		states, all := standing(c.o)
		if !slices.Equal(states, c.want) {
			t.Errorf("%s: %q; want %q", name, states, c.want)
		}
		for _, s := range all {
			if s.Because == "" || s.Next == "" || s.Text == "" {
				t.Errorf("%s: %s says too little: %+v", name, s.Name, s)
			}
		}
	}
	_, all := standing(Operation{Readers: seen, Experiments: held("race")})
	if !strings.Contains(all[1].Because, "20 overlapping trials; a rate of up to 13.9 %") {
		t.Errorf("a race that held is said to rule out: %s", all[1].Because)
	}
	for _, h := range hypotheses {
		for _, id := range h.findings {
			if _, ok := Lookup(id); !ok {
				t.Errorf("%s rests on %s, which is no finding", h.name, id)
			}
		}
	}
}

func TestRecordsFitTheirSchema(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(RecordJSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("record.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("record.json")
	if err != nil {
		t.Fatal(err)
	}
	tree := func(v any) any {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	r := Run{ID: "1", Interrupted: "budget", Operations: []Operation{doubled(), {Verdict: UnknownVerdict(), Findings: []Finding{{ID: "later", Priority: P1, Basis: Inferred}}}}}
	if err := schema.Validate(tree(r.Records())); err != nil {
		t.Error(err)
	}
	if err := schema.Validate(tree((&Run{}).Records())); err != nil {
		t.Errorf("a run without operations: %v", err)
	}
	// The schema says what a verdict may be, as Validate does.
	for i, f := range verdictFields {
		for _, value := range append(slices.Clone(f.values), "perhaps") {
			v := UnknownVerdict()
			*f.get(&v) = value
			r := Run{Operations: []Operation{{Verdict: v}}}
			if got, want := schema.Validate(tree(r.Records())) == nil, v.Validate() == nil; got != want {
				t.Errorf("%s(%s): the schema says %v, Validate %v", verdictFields[i].name, value, got, want)
			}
		}
	}
	if b := RecordJSONSchema(); !bytes.Contains(b, []byte(RecordSchema)) {
		t.Error("the schema is of another version than the records")
	}
}
