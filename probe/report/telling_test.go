package report

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
)

func TestTelling(t *testing.T) {
	send := func(n int, role string) evidence.Send { return evidence.Send{N: n, Role: role} }
	two := []evidence.Send{send(1, "first"), send(2, "duplicate")}
	five := append(append([]evidence.Send{}, two...), send(3, "duplicate"), send(4, "duplicate"), send(5, "duplicate"))
	for _, c := range []struct {
		what string
		op   evidence.Operation
		want string
	}{
		{"nothing", evidence.Operation{}, ""},
		{"nothing but readers", evidence.Operation{Experiments: []evidence.Experiment{{Name: "a", Sends: []evidence.Send{send(1, "read"), send(2, "warm-up")}}}}, ""},
		{"most to see", evidence.Operation{Experiments: []evidence.Experiment{{Name: "a", Sends: two}, {Name: "b", Sends: five}, {Name: "c"}}}, "b"},
		{"broken", evidence.Operation{Experiments: []evidence.Experiment{{Name: "a", Sends: two, Outcome: evidence.Broken}, {Name: "b", Sends: five}}}, "a"},
		{"worst finding", evidence.Operation{
			Experiments: []evidence.Experiment{{Name: "a", Sends: two}, {Name: "b", Sends: five, Outcome: evidence.Broken}},
			Findings:    []evidence.Finding{find("replay-unmarked", "b"), find("lost-effect", "a")},
		}, "a"},
	} {
		got := ""
		if e := telling(&c.op); e != nil {
			got = e.Name
		}
		if got != c.want {
			t.Errorf("%s: %q; want %q", c.what, got, c.want)
		}
	}
}

// A picture has the sends that a finding names, else the first trial.
func TestShown(t *testing.T) {
	r := raceRun()
	e := &r.Operations[0].Experiments[2]
	numbers := func(fs ...evidence.Finding) (ns []int) {
		for _, s := range shown(fs, e) {
			ns = append(ns, s.N)
		}
		return ns
	}
	for _, c := range []struct {
		got  []int
		want string
	}{
		{numbers(), "5-9"}, {numbers(find("double-effect-race", "race", 10, 13)), "10, 13"}, {numbers(find("double-effect-race", "race", 99)), "5-9"},
	} {
		if got := ranges(c.got); got != c.want {
			t.Errorf("%s; want %s", got, c.want)
		}
	}
}

// Whatever the times of a send are, its bar has its marks in order and lies
// within the picture.
func TestBarsAreInThePicture(t *testing.T) {
	values := []int64{-1 << 63, -1, 0, 1, 999, 1 << 40, 1<<63 - 1}
	for _, start := range values {
		for _, write := range values {
			for _, first := range values {
				for _, done := range values {
					bs, begin, whole := bars([]evidence.Send{{StartUS: start, LastWriteUS: write, FirstByteUS: first, DoneUS: done}, {StartUS: 5, LastWriteUS: 6, FirstByteUS: 7, DoneUS: 8}})
					if len(bs) != 2 || !(whole > 0) {
						t.Fatalf("%d bars, %v wide", len(bs), whole)
					}
					for _, b := range bs {
						for _, x := range []float64{b.start, b.lastWrite, b.firstByte, b.finis} {
							if x != -1 && (x < begin || x > begin+whole) {
								t.Fatalf("%d %d %d %d: a mark at %v; the picture is from %v, %v wide", start, write, first, done, x, begin, whole)
							}
						}
						if b.start >= 0 && b.finis < b.start {
							t.Fatalf("%d %d %d %d: ends at %v, before its start at %v", start, write, first, done, b.finis, b.start)
						}
					}
					for _, x := range ticks(begin, whole) {
						if x < begin || x > begin+whole {
							t.Fatalf("a tick at %v; the picture is from %v, %v wide", x, begin, whole)
						}
					}
				}
			}
		}
	}
}

// An answer that is cut in the picture is told in full below it, with whose it is.
func TestAnswersInFull(t *testing.T) {
	const one, two = "01998f2e-5b1c-7c3a-9d1e-000000000001", "01998f2e-5b1c-7c3a-9d1e-000000000002"
	send := func(n int, role, id string) evidence.Send {
		return evidence.Send{N: n, Role: role, Status: 201, Delivery: "answered", Resource: id, LastWriteUS: 1, FirstByteUS: 2, DoneUS: 3}
	}
	e := evidence.Experiment{Name: "duplicate", Outcome: evidence.Broken, Sends: []evidence.Send{
		send(3, "first", one), send(4, "duplicate", one), send(5, "duplicate", one), send(7, "duplicate", two), send(8, "duplicate", "ord_17"),
	}}
	var out strings.Builder
	if err := Terminal(&out, &evidence.Run{Operations: []evidence.Operation{{Name: "o", Experiments: []evidence.Experiment{e}}}}, TerminalOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n  #3-5  201 " + one + "\n", "\n  #7  201 " + two + "\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the report:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "#8  201 ord_17") {
		t.Error("an answer that is shown whole is told again")
	}
	for _, r := range picture(nil, &e).Rows {
		if strings.Contains(r.Full, "…") {
			t.Error(r.Full)
		}
	}
}

// What is said of a second answer is what was seen of it, and of the two that
// were compared. There is no hint of time where a reader told.
func TestSecondLine(t *testing.T) {
	one := []evidence.Change{{Reader: "rows", Name: "effects", Effects: 1, Expected: 1}}
	for _, c := range []struct {
		what          string
		first, second evidence.Send
		class         evidence.SecondClass
		body          bool
		changes       []evidence.Change
		want          string
	}{
		{"one resource", evidence.Send{Status: 201, Bytes: 4, Resource: "7"}, evidence.Send{Status: 201, Bytes: 5, Resource: "7"}, evidence.SameResult, false, nil, "the same resource, told otherwise, 201 both times, another body, same resource (fast-as-a-replay, a hint only)"},
		{"two resources", evidence.Send{Status: 201, Bytes: 4, Resource: "7"}, evidence.Send{Status: 201, Bytes: 4, Resource: "8"}, evidence.DifferentResult, false, nil, "another result, 201 both times, another body, another resource (fast-as-a-replay, a hint only)"},
		{"the first alone names one", evidence.Send{Status: 201, Bytes: 4, Resource: "7"}, evidence.Send{Status: 412}, evidence.Refused, false, one, "refused, 201, then 412, another body, a resource named by one alone"},
		{"none is named, nothing is there", evidence.Send{Status: 200}, evidence.Send{Status: 200}, evidence.SameResult, true, one, "the same status, and no body, 200 both times"},
		{"no answer", evidence.Send{Status: 200}, evidence.Send{}, evidence.ErrorOrTimeout, false, one, "no answer"},
		{"by a blind reader", evidence.Send{Status: 200}, evidence.Send{Status: 200}, evidence.SameResult, true, []evidence.Change{{Reader: "blind", Name: "effects", Effects: 0, Expected: 1}}, "the same status, and no body, 200 both times (fast-as-a-replay, a hint only)"},
	} {
		c.first.N, c.first.Role, c.second.N, c.second.Role = 4, "first", 2, "duplicate"
		e := evidence.Experiment{
			Sends:   []evidence.Send{{N: 1, Role: "ground", Resource: "1"}, c.second, {N: 3, Role: "duplicate", Status: 500}, c.first, {N: 5, Role: "newer", Resource: "9"}},
			Second:  &evidence.Second{Of: []int{4, 2}, Class: c.class, Status: c.first.Status == c.second.Status, Body: c.body, Resource: c.first.Resource != "" && c.first.Resource == c.second.Resource, Timing: "fast-as-a-replay"},
			Changes: c.changes,
		}
		o := evidence.Operation{Readers: []evidence.Reader{{Name: "rows", Seen: true}, {Name: "blind"}}}
		if got := secondLine(&o, &e); got != c.want {
			t.Errorf("%s: %q; want %q", c.what, got, c.want)
		}
	}
}

// Changes of effects say what was due, where that is known, and nothing of a
// reader that is blind.
func TestChangesSayWhatIsDue(t *testing.T) {
	o := evidence.Operation{Readers: []evidence.Reader{{Name: "rows", Seen: true}, {Name: "blind"}}}
	for _, c := range []struct {
		change  evidence.Change
		outcome evidence.Outcome
		want    string
		wrong   bool
	}{
		{evidence.Change{Reader: "rows", Name: "effects", Effects: 2, Expected: 1}, evidence.Broken, "(2 effects, 1 due)", true},
		{evidence.Change{Reader: "rows", Name: "effects", Effects: 2, Expected: 1}, evidence.Inconclusive, "(2 effects, 1 due)", false},
		{evidence.Change{Reader: "rows", Name: "effects", Effects: 2, Expected: -1}, evidence.Broken, "(2 effects)", false},
		{evidence.Change{Reader: "rows", Name: "effects"}, evidence.Held, "(0 effects, 0 due)", false},
		{evidence.Change{Reader: "rows", Name: "effects: 3/2", Expected: 1}, evidence.Broken, "(1 due)", true},
		{evidence.Change{Reader: "rows", Name: "effects: 3/2", Before: "2", After: "5", Expected: -1}, evidence.Broken, "effects: 3/2: 2 -> 5", false},
		{evidence.Change{Reader: "blind", Name: "effects", Expected: 1}, evidence.Broken, "(it saw the effect of no fresh request, so this says nothing)", false},
		{evidence.Change{Reader: "rows", Name: "status", Before: "a", After: "b"}, evidence.Broken, "a -> b", false},
	} {
		e := evidence.Experiment{Outcome: c.outcome}
		if got := changeLine(&o, c.change); !strings.HasSuffix(got, c.want) || wrong(&o, &e, c.change) != c.wrong {
			t.Errorf("%+v, %s: %q, wrong %t; want %q, %t", c.change, c.outcome, got, wrong(&o, &e, c.change), c.want, c.wrong)
		}
	}
}

// The line of an operation says where the key is, and whose contract it is.
func TestContractLine(t *testing.T) {
	for want, o := range map[string]evidence.Operation{
		"contract stripe":                    {Profile: "stripe"},
		"key in header X-Key, contract ietf": {Profile: "ietf", KeyIn: "header X-Key"},
		"key in query k, contract ietf, which is assumed: the plan names no profile": {Profile: "ietf", KeyIn: "query k", Assumed: true},
		"no key":                  {Profile: "none", KeyIn: evidence.NoKey},
		"no key, contract custom": {Profile: "custom", KeyIn: evidence.NoKey},
	} {
		if got := contract(&o); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Races are among the limits of a run that raced and saw no double, and of no
// other.
func TestLimitsOfRaces(t *testing.T) {
	for _, c := range []struct {
		what string
		race *evidence.Race
		want int
	}{
		{"no race", nil, 2},
		{"a race that doubled", &evidence.Race{Trials: 3, Overlapped: 3, Doubled: 1}, 2},
		{"a race without overlap", &evidence.Race{Trials: 3}, 2},
		{"no double", &evidence.Race{Trials: 3, Overlapped: 3}, 4},
	} {
		r := evidence.Run{Operations: []evidence.Operation{{Name: "o", Experiments: []evidence.Experiment{{Name: "race", Race: c.race}}}}}
		if got := limits(&r); len(got) != c.want {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}
