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
	if !slices.Equal(w.State, []Effect{{Reader: "rows", Effects: 2, Expected: 1}}) || !slices.Equal(w.Outside, []Effect{{Reader: "mail", Effects: 1, Expected: 1}}) {
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
	if !slices.Equal(w.Resources, []string{"b", "c"}) || w.Answers != 2 || !slices.Equal(w.State, []Effect{{Reader: "rows", Effects: 4, Expected: 3}}) || w.First != nil {
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
	find := func(ids ...FindingID) (fs []Finding) {
		for _, id := range ids {
			e, ok := Lookup(id)
			if !ok {
				t.Fatal(id)
			}
			fs = append(fs, e.Finding("duplicate"))
		}
		return fs
	}
	seen := []Reader{{Name: "rows", Seen: true}}
	at := func(id FindingID, experiment string, sends ...int) []Finding {
		f := find(id)
		f[0].Experiment, f[0].Sends = experiment, sends
		return f
	}
	// broken is an experiment that is broken, with so many effects where one was due.
	broken := func(name string, effects int64) []Experiment {
		return []Experiment{{Name: name, Outcome: Broken, Changes: []Change{{Reader: "rows", Name: "effects", Effects: effects, Expected: 1}}}}
	}
	failed := []Experiment{{Name: "fresh_key", Outcome: Broken, Sends: []Send{{N: 4, Role: "first", Status: 500}, {N: 5, Role: "duplicate", Status: 201}}}}
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
		"none, and a loss": {Operation{Readers: seen, Findings: append(find("double-effect-sequential"), at("lost-effect", "lost_unread")...)}, []CauseState{Supported, Open, Supported, Open}},
		// Where an effect was lost says what it supports.
		"lost in a race":         {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("lost-effect", "race")}, []CauseState{RuledOut, Supported, Open, Open}},
		"lost by a fresh key":    {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("lost-effect", "fresh_key")}, []CauseState{RuledOut, Open, Open, Supported}},
		"lost by plain request":  {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("lost-effect", "late_retry", 7)}, []CauseState{RuledOut, Open, Open, Open}},
		"lost after a failure":   {Operation{Readers: seen, Experiments: failed, Findings: at("lost-effect", "fresh_key", 4, 5)}, []CauseState{Open, Open, Supported, Open}},
		"lost after a failure 2": {Operation{Readers: seen, Experiments: failed, Findings: at("lost-effect", "duplicate", 4, 5)}, []CauseState{Open, Open, Supported, Open}},
		"keyless, one for all":   {Operation{Readers: seen, Experiments: held("duplicate", "lost_unread", "lost_begun", "failed_first"), Findings: at("keyless-requests-confused", "missing_key")}, []CauseState{RuledOut, Open, RuledOut, Supported}},
		// A duplicate that was recognised once rules A out, whatever came later.
		"forgotten later":       {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("double-effect-sequential", "late_retry", 8, 9)}, []CauseState{RuledOut, Open, Open, Supported}},
		"doubled after failing": {Operation{Readers: seen, Experiments: append(held("duplicate"), failed...), Findings: at("double-effect-sequential", "fresh_key", 4, 5)}, []CauseState{RuledOut, Open, Supported, Open}},
		"another instance":      {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("instance-doubles", "other_instance")}, []CauseState{RuledOut, Open, Open, Supported}},
		"another operation":     {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("key-not-scoped-operation", "other_operation")}, []CauseState{RuledOut, Open, Open, Supported}},
		"altered":               {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("mismatch-executed", "altered")}, []CauseState{RuledOut, Open, Open, Supported}},
		"altered in a race":     {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("mismatch-executed", "race_altered")}, []CauseState{RuledOut, Supported, Open, Open}},
		"truncated":             {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("truncated-executed", "failed_first")}, []CauseState{RuledOut, Open, Supported, Open}},
		"corrected":             {Operation{Readers: seen, Experiments: held("duplicate"), Findings: at("refusal-sticks", "corrected")}, []CauseState{RuledOut, Open, Supported, Open}},
		"mails twice":           {Operation{Readers: seen, Experiments: broken("duplicate", 2), Findings: at("outside-effect-doubled", "duplicate")}, []CauseState{Supported, Open, Open, Open}},
		// What is broken for its responses alone shows the effects all the same.
		"another response":    {Operation{Readers: seen, Experiments: broken("duplicate", 1), Findings: at("replay-differs", "duplicate")}, []CauseState{RuledOut, Open, Open, Open}},
		"no key":              {Operation{Readers: seen, KeyIn: NoKey, Experiments: held("duplicate", "altered", "other_tenant")}, []CauseState{RuledOut, Open, Open, RuledOut}},
		"an event":            {Operation{Readers: seen, Signed: true, Experiments: held("redelivery")}, []CauseState{RuledOut, Open, Open, RuledOut}},
		"leaks, and is bound": {Operation{Readers: seen, Experiments: everything, Findings: at("conflict-leaks-payload", "altered")}, []CauseState{RuledOut, RuledOut, RuledOut, RuledOut}},
		"bound":               {Operation{Readers: seen, Findings: find("key-not-scoped-tenant")}, []CauseState{Open, Open, Open, Supported}},
		"not applicable":      {Operation{Readers: seen, Experiments: append(held("duplicate", "altered"), Experiment{Name: "other_actor", Outcome: NotApplicable, Why: "the plan has no actor_b."})}, []CauseState{RuledOut, Open, Open, Open}},
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
	if !strings.Contains(all[1].Because, "20 overlapping trials; a rate of up to 14 %") {
		t.Errorf("a race that held is said to rule out: %s", all[1].Because)
	}
	// An attempt that was cut off before its last byte is none that failed.
	off := Operation{Readers: seen, Experiments: held("lost_unread", "lost_begun", "failed_first")}
	if _, all := standing(off); !strings.Contains(all[2].Because, "did not run") || !strings.Contains(all[2].Because, "Not tried: an attempt that fails by itself.") {
		t.Error(all[2].Because)
	}
	// Nor is a response lost that was there before the connection could be cut.
	off.Experiments[0].Sends = []Send{{Role: "first", Status: 201}}
	if states, all := standing(off); states[2] != Open || !strings.Contains(all[2].Because, "lost_unread lost no response") {
		t.Error(all[2].Because)
	}
	off.Experiments[0].Sends[0].Cut = "after the last byte of the request"
	off.Experiments[2].Sends = []Send{{Role: "first", Status: 500}}
	if _, all := standing(off); strings.Contains(all[2].Because, "Not tried") {
		t.Error(all[2].Because)
	}
	for _, c := range []struct{ key, never string }{{NoKey, "key"}, {"header X", ""}} {
		o := Operation{KeyIn: c.key, Readers: seen}
		for _, s := range o.Standings() {
			if said := s.Text + s.Next + s.Because; c.never != "" && (strings.Contains(s.Text, "a key") || strings.Contains(said, "actor_b")) {
				t.Errorf("of an operation without a key: %s", said)
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

// Each kind of finding supports a hypothesis or none on purpose.
func TestFindingsSupport(t *testing.T) {
	none := []FindingID{
		"no-specification", "retention-not-published", "replay-unmarked", "replay-differs", "replay-refused", "unstable-5xx-on-duplicate", "duplicate-not-answered",
		"missing-key-accepted", "bad-key-server-error", "in-flight-error-invites-new-key", "audit-missing", "conflict-leaks-payload", "preview-executed",
	}
	for _, e := range Catalogue() {
		o := Operation{}
		got := o.supports(e.Finding("lost_unread"))
		if (got == "") != slices.Contains(none, e.ID) {
			t.Errorf("%s supports %q", e.ID, got)
		}
	}
}

// Witnesses say of each experiment what was due, of the two responses that were
// compared, and nothing by a reader that is blind.
func TestWitnessesAreOfWhatIsAsked(t *testing.T) {
	readers := []Reader{{Name: "rows", Seen: true}, {Name: "blind"}}
	change := func(effects, due int64) Change {
		return Change{Reader: "rows", Name: "effects", Effects: effects, Expected: due}
	}
	e := Experiment{
		Name: "in_flight", Outcome: Held,
		Sends: []Send{
			{N: 1, Role: "ground", Status: 201, Resource: "g"},
			{N: 2, Role: "duplicate", Status: 409, Bytes: 9},
			{N: 3, Role: "duplicate", Status: 409, Bytes: 9},
			{N: 4, Role: "first", Status: 201, Resource: "a", Bytes: 5},
		},
		Changes: []Change{change(1, 1), {Reader: "blind", Name: "effects", Effects: 0, Expected: 1}},
		Second:  &Second{Of: []int{4, 2}, Class: Refused, Timing: "fast-as-a-replay"},
	}
	o := Operation{Readers: readers, Experiments: []Experiment{e}}
	w := o.Witnesses()[0]
	// The ids stand in the order of the two responses.
	swapped := e
	swapped.Sends = slices.Clone(e.Sends)
	swapped.Sends[1].Resource = "b"
	if w := (&Operation{Experiments: []Experiment{swapped}}).Witnesses()[0]; !slices.Equal(w.Resources, []string{"a", "b"}) {
		t.Errorf("ids %v", w.Resources)
	}
	if w.First.Status != 201 || w.Second.Status != 409 || w.Second.Says != "refused" || !slices.Equal(w.Resources, []string{"a"}) {
		t.Errorf("first %+v, second %+v, %v", w.First, w.Second, w.Resources)
	}
	if len(w.State) != 1 || w.State[0].Wrong() || w.Second.Timing != "" {
		t.Errorf("state %+v, timing %q beside a reader that told", w.State, w.Second.Timing)
	}
	// Of several tries it is said that the effects are of all of them, and not of
	// the one whose responses are shown.
	tries := o
	tries.Experiments = slices.Clone(o.Experiments)
	tries.Experiments[0].Changes = []Change{change(1, 1), change(1, 1)}
	if got := tries.Witnesses()[0].State[0]; got.Effects != 2 || got.Tries != 0 {
		t.Errorf("two changes of one try: %+v", got)
	}
	tries.Experiments[0].Sends = append(slices.Clone(e.Sends), Send{N: 5, Role: "first", Status: 201})
	if got := tries.Witnesses()[0].State[0]; got.Effects != 2 || got.Tries != 2 {
		t.Errorf("two tries: %+v", got)
	}
	o.Experiments[0].Changes = nil
	if w := o.Witnesses()[0]; w.Second.Timing == "" || w.State != nil {
		t.Errorf("without a reader: %+v", w)
	}
	// Of an attempt that was cut off, not of one that was answered before.
	lost := Operation{Experiments: []Experiment{{Name: "lost_unread", Outcome: Held, Sends: []Send{
		{N: 1, Role: "first", Status: 200}, {N: 2, Role: "duplicate", Status: 200}, {N: 3, Role: "first", Cut: "x"}, {N: 4, Role: "duplicate", Status: 201},
	}}}}
	if w := lost.Witnesses()[0]; !w.First.Cut || w.Second.Status != 201 {
		t.Errorf("first %+v, second %+v", w.First, w.Second)
	}
	for _, c := range []struct {
		effects, due int64
		name         string
		wrong        bool
	}{{2, -1, "effects", false}, {2, 1, "effects", true}, {0, 0, "effects", false}, {1, 0, "effects", true}, {0, 1, "effects", true}, {0, 1, "effects: 3/2", true}} {
		o.Experiments[0].Changes = []Change{{Reader: "rows", Name: c.name, Effects: c.effects, Expected: c.due}}
		if got := o.Witnesses()[0].State[0]; got.Wrong() != c.wrong || got.Expected != c.due {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// What two responses are said to have in common can be seen from them.
func TestSaysOfTwoResponses(t *testing.T) {
	for _, c := range []struct {
		class         SecondClass
		same          bool
		first, second Send
		want          string
	}{
		{SameResult, true, Send{Resource: "1"}, Send{Resource: "1"}, "the same result"},
		{SameResult, true, Send{Resource: "1", Bytes: 9}, Send{Resource: "1", Bytes: 4}, "the same resource, told otherwise"},
		{SameResult, false, Send{Bytes: 4}, Send{Bytes: 4}, "the same response"},
		{SameResult, false, Send{}, Send{}, "the same status, and no body"},
		{DifferentResult, false, Send{Resource: "1"}, Send{Resource: "2"}, "another result"},
		{DifferentResult, false, Send{Status: 201}, Send{Status: 204}, "another status, and no body"},
		{DifferentResult, false, Send{Resource: "1", Bytes: 7}, Send{Bytes: 4}, "another response"},
		{Refused, false, Send{}, Send{}, "refused"},
		{RefusedWithReference, false, Send{}, Send{}, "refused, naming the first result"},
		{ErrorOrTimeout, false, Send{}, Send{Status: 500}, "a server error"},
		{ErrorOrTimeout, false, Send{}, Send{}, "no response"},
		{ErrorOrTimeout, false, Send{}, Send{Status: 201}, "not to be compared"},
	} {
		s := Second{Class: c.class, Resource: c.same, Body: c.first.Bytes == c.second.Bytes}
		if got := s.says(c.first, c.second); got != c.want {
			t.Errorf("%s: %q, want %q", c.class, got, c.want)
		}
	}
}

// Responses to repeats of another request do not count as responses to the one
// in question.
func TestWitnessesLeaveOutOtherRequests(t *testing.T) {
	send := func(n int, role Role, status int) Send { return Send{N: n, Role: role, Status: status} }
	for _, c := range []struct {
		what          string
		e             Experiment
		first, second int // 0: none
	}{
		{"the newer's repeat", Experiment{Name: "reordered", Sends: []Send{send(1, "first", 201), send(2, "newer", 500), send(3, "duplicate", 503)}}, 201, 0},
		{"the first's after the newer's", Experiment{
			Name: "reordered", Second: &Second{Of: []int{1, 4}, Class: Refused},
			Sends: []Send{send(1, "first", 201), send(2, "newer", 500), send(3, "duplicate", 503), send(4, "duplicate", 409)},
		}, 201, 409},
		{"a control that was refused", Experiment{Name: "lost_unread", Sends: []Send{send(1, "control", 400), send(2, "duplicate", 422)}, Changes: []Change{{Reader: "rows"}}}, 0, 0},
		{"a control before", Experiment{Name: "lost_unread", Sends: []Send{send(1, "control", 500), send(2, "duplicate", 503), send(3, "first", 201), send(4, "duplicate", 200)}}, 201, 200},
		{"a control beside", Experiment{Name: "fresh_key", Sends: []Send{send(1, "first", 201), send(2, "control", 202), send(3, "duplicate", 200)}}, 201, 200},
	} {
		o := Operation{Readers: []Reader{{Name: "rows", Seen: true}}, Experiments: []Experiment{c.e}}
		first, second := 0, 0
		if w := o.Witnesses()[0]; w.First != nil {
			if first = w.First.Status; w.Second != nil {
				second = w.Second.Status
			}
		}
		if first != c.first || second != c.second {
			t.Errorf("%s: %d, then %d; want %d, then %d", c.what, first, second, c.first, c.second)
		}
	}
}

// A moment of the last byte that was noted after the response had come says
// nothing of how long it took.
func TestWaitsThatCannotBeTold(t *testing.T) {
	for _, c := range []struct{ start, write, first, want int64 }{
		{0, 700, 716, -1}, {0, 100, 500, 400}, {0, 40_000, 52_000, 12_000}, {0, -1, 500, -1}, {0, 500, -1, -1}, {0, 500, 300, -1},
	} {
		if got := waited(Send{Status: 412, StartUS: c.start, LastWriteUS: c.write, FirstByteUS: c.first}); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	o := doubled()
	s := &o.Experiments[1].Sends[2]
	s.StartUS, s.FirstByteUS, o.Experiments[1].Second.SecondUS = 5500, 6016, 16
	if w := o.Witnesses()[0]; w.First.WaitedUS != 5000 || w.Second.WaitedUS != -1 {
		t.Errorf("%+v, %+v", w.First, w.Second)
	}
}

// A check that comes after fixing another hypothesis says so once.
func TestNextSaysToFixOnce(t *testing.T) {
	var o Operation
	for _, id := range []FindingID{"double-effect-sequential", "double-effect-race", "double-effect-lost-response"} {
		e, _ := Lookup(id)
		o.Findings = append(o.Findings, e.Finding("duplicate"))
	}
	for _, s := range o.Standings() {
		if strings.Count(strings.ToLower(s.Next), "fix") != 1 && s.Name != "D" || strings.HasSuffix(s.Next, "then ") {
			t.Errorf("%s: %s", s.Name, s.Next)
		}
	}
	if next := o.Standings()[1].Next; !strings.Contains(next, "--trials 60 --max-sends 650 ") {
		t.Error(next)
	}
}

// The next check of a hypothesis that was ruled out is one that has not been
// made.
func TestNextIsNotDoneYet(t *testing.T) {
	seen := []Reader{{Name: "rows", Seen: true}}
	try := func(names ...string) Operation {
		o := Operation{Readers: seen, KeyIn: NoKey}
		for _, n := range names {
			o.Experiments = append(o.Experiments, Experiment{Name: n, Outcome: Held})
		}
		return o
	}
	refused := try("duplicate", "late_retry")
	refused.Experiments = append(refused.Experiments, Experiment{Name: "reordered", Outcome: Inconclusive})
	for _, c := range []struct {
		o    Operation
		want map[string]string
	}{
		{try("duplicate"), map[string]string{"A": "--only duplicate,late_retry", "C": "--only duplicate,lost_unread,lost_begun,failed_first"}},
		{try("duplicate", "late_retry", "lost_unread", "lost_begun"), map[string]string{"A": "nothing more with this plan", "C": "--only duplicate,lost_unread,lost_begun,failed_first"}},
		{try("duplicate", "lost_unread", "lost_begun", "failed_first"), map[string]string{"A": "--only duplicate,late_retry", "C": "nothing more with this plan"}},
		{Operation{}, map[string]string{"A": "--only duplicate,late_retry, with a reader of the state that sees its effect (operations[].readers)"}},
		{refused, map[string]string{"A": "--only duplicate,reordered"}},
	} {
		for _, s := range c.o.Standings() {
			if want, ok := c.want[s.Name]; ok && s.Next != want {
				t.Errorf("%s is %s: %q, want %q", s.Name, s.State, s.Next, want)
			}
		}
	}
}
