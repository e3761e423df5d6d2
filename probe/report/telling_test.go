package report

import (
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

// What is said of a second answer is what was seen of it.
func TestSecondLine(t *testing.T) {
	for _, c := range []struct {
		what          string
		first, second string // resources
		same          bool
		effects       int64
		want          string
	}{
		{"one resource", "7", "7", true, 1, "same result: same status, another body, same resource (fast-as-a-replay, a hint only)"},
		{"two resources", "7", "8", false, 1, "same result: same status, another body, another resource (fast-as-a-replay, a hint only)"},
		{"the first alone names one", "7", "", false, 1, "same result: same status, another body, a resource named by one alone (fast-as-a-replay, a hint only)"},
		{"none is named", "", "", false, 1, "same result: same status, another body (fast-as-a-replay, a hint only)"},
		{"executed, however fast", "7", "8", false, 2, "same result: same status, another body, another resource"},
	} {
		e := evidence.Experiment{
			Sends:   []evidence.Send{{Role: "read", Resource: "1"}, {Role: "first", Resource: c.first}, {Role: "duplicate", Resource: c.second}, {Role: "newer", Resource: "9"}},
			Second:  &evidence.Second{Class: evidence.SameResult, Status: true, Resource: c.same, Timing: "fast-as-a-replay"},
			Changes: []evidence.Change{{Effects: c.effects, Expected: 1}},
		}
		if got := secondLine(&e); got != c.want {
			t.Errorf("%s: %q; want %q", c.what, got, c.want)
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
