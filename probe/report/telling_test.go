package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

func TestTelling(t *testing.T) {
	send := func(n int, role evidence.Role) evidence.Send { return evidence.Send{N: n, Role: role} }
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

// A timeline shows the sends that a finding names, else the first trial.
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

// A response that is cut in the picture is told in full below it, with whose it is.
func TestResponsesInFull(t *testing.T) {
	const one, two = "01998f2e-5b1c-7c3a-9d1e-000000000001", "01998f2e-5b1c-7c3a-9d1e-000000000002"
	send := func(n int, role evidence.Role, id string) evidence.Send {
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
		t.Error("a response that is shown whole is told again")
	}
	for _, r := range picture(nil, &e).Rows {
		if strings.Contains(r.Full, "…") {
			t.Error(r.Full)
		}
	}
}

// What is said of a second response is what was seen of it, and of the two that
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
		{"the first alone names one", evidence.Send{Status: 201, Bytes: 4, Resource: "7"}, evidence.Send{Status: 412}, evidence.Refused, false, one, "refused, 201, then 412, another body, a resource named by the first alone"},
		{"the second alone names one", evidence.Send{Status: 202}, evidence.Send{Status: 200, Bytes: 4, Resource: "7"}, evidence.DifferentResult, false, one, "another response, 202, then 200, another body, a resource named by the second alone"},
		{"none is named, nothing is there", evidence.Send{Status: 200}, evidence.Send{Status: 200}, evidence.SameResult, true, one, "the same status, and no body, 200 both times"},
		{"no response", evidence.Send{Status: 200}, evidence.Send{}, evidence.ErrorOrTimeout, false, one, "no response"},
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
		{evidence.Change{Reader: "blind", Name: "effects", Expected: 1}, evidence.Broken, "(it saw no effect of any fresh request, so this shows nothing)", false},
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

// Readings of the state are shown in the order of time, each by itself: of
// several before, the last belongs to no other reading after. What was kept is
// not called all that was read.
func TestReadingsAreNotPaired(t *testing.T) {
	r := cleanRun()
	e := &r.Operations[0].Experiments[0]
	at := func(s int, n int64) evidence.Reading {
		return evidence.Reading{Reader: "rows", At: began.Add(time.Duration(s) * time.Second), Count: &n}
	}
	e.Before, e.After = []evidence.Reading{at(0, 48), at(2, 50)}, []evidence.Reading{at(1, 49), at(3, 51)}
	e.Sends = append([]evidence.Send{{N: 1, Role: "read"}}, e.Sends...)
	var page strings.Builder
	if err := HTML(&page, r, Extra{}); err != nil {
		t.Fatal(err)
	}
	rows := ""
	for i, when := range []string{"before", "after", "before", "after"} {
		rows += fmt.Sprintf("<tr><th scope=\"row\">rows</th><td>%s</td><td>%d</td></tr>\n", when, 48+i)
	}
	for _, want := range []string{rows, "Readings in between are not kept", "<summary>Requests, with the readings that were kept ("} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("there is no %s", want)
		}
	}
}

// The mark of a duplicate that names another resource is there, however long the
// name is.
func TestMarkOfAnotherIsNotCut(t *testing.T) {
	bs, _, _ := bars([]evidence.Send{{Role: "first", Status: 200, Resource: "3030256272684737804"}, {Role: "duplicate", Status: 200, Resource: "3030256272684737806"}})
	if got := short(bs[1].response(), 24); !strings.HasPrefix(got, "≠ 200 30302") {
		t.Error(got)
	}
}

// A refusal in the body of a 2xx is told from a success, wherever its status
// stands.
func TestErrorsInTheBodyAreTold(t *testing.T) {
	s := evidence.Send{Status: 200, SaysError: true, Delivery: "answered"}
	if got := response(s); got != "200 (error)" {
		t.Error(got)
	}
	if got := kind(s); got == "good" {
		t.Error("it looks like a success")
	}
	if got := answered(&evidence.Answer{Status: 200, SaysError: true, WaitedUS: 2000}); got != "200 (error) in 2.00 ms" {
		t.Error(got)
	}
	o := evidence.Operation{Experiments: []evidence.Experiment{{Sends: []evidence.Send{s, {Role: "read", Status: 200}}}}}
	if !refused(&o) {
		t.Error("no request succeeded")
	}
}

// Of requests that were under way at once it is not said that they were not,
// only because none of them had an effect.
func TestRaceLine(t *testing.T) {
	r := evidence.Race{Width: 3, Protocol: "HTTP/1.1", Trials: 1, Delivered: 3, SpreadUS: 12, Bound: 1}
	want := "1 trial of 3 requests each over HTTP/1.1: 3 requests delivered, released within 12 µs; in 0 trials they overlapped and an effect was seen. 0 doubled, 0 lost."
	if got := raceLine(&r); got != want+" That leaves open a rate of double effects of up to 100 % (95 % confidence)." {
		t.Error(got)
	}
}

// Effects of several tries are not taken for those of one.
func TestTriesAreTold(t *testing.T) {
	said, _ := effects([]evidence.Effect{{Reader: "rows", Effects: 3, Expected: 3, Tries: 3}, {Reader: "mails", Effects: 1, Expected: 1}}, evidence.Inconclusive)
	if said != "rows: 3 of 3 due in 3 attempts, mails: 1 of 1 due" {
		t.Error(said)
	}
}

// Ids of several tries are not marked as those of one request that has two.
func TestIDsOfTries(t *testing.T) {
	change := evidence.Change{Reader: "rows", Name: "effects", Effects: 1, Expected: 1}
	twice := change
	twice.Effects = 2
	o := evidence.Operation{
		Readers: []evidence.Reader{{Name: "rows", Seen: true}},
		Experiments: []evidence.Experiment{{
			Name: "lost_unread", Outcome: evidence.Broken, Changes: []evidence.Change{change, twice},
			Sends: []evidence.Send{
				{N: 1, Role: "first", Status: 200, Resource: "a"}, {N: 2, Role: "first", Cut: "after the last byte of the request"}, {N: 3, Role: "duplicate", Status: 200, Resource: "b"},
			},
		}},
	}
	if r := witnesses(&o)[0]; r.WrongIDs || !r.WrongState || !strings.HasSuffix(r.IDs, " (2 responses in 2 attempts)") || r.State != "rows: 3 of 2 due in 2 attempts" {
		t.Errorf("%+v", r)
	}
}
