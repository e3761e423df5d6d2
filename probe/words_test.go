package probe

import (
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// tried is an attempt with so many effects in all, and of its own, by the reader
// db.
func tried(s *sent, total, own int64) *attempt {
	d := func(n int64) delta {
		r := big.NewRat(n, 1)
		return delta{state: true, looked: true, most: r, least: r, by: "db", all: []rise{{reader: "db", n: r}}}
	}
	return &attempt{sent: s, total: d(total), own: d(own), settled: true}
}

func judging(name plan.Experiment) *judgement {
	o := &operation{
		op: &plan.Operation{Key: &plan.Key{Header: "Idempotency-Key"}}, readers: []*reader{{name: "db", seen: true}},
		r: &runner{p: &plan.Plan{Timing: plan.Timing{SettleLimit: time.Second}}},
	}
	o.facts.outcomes = map[plan.Experiment]evidence.Outcome{}
	return &judgement{o: o, e: &evidence.Experiment{Name: string(name)}}
}

// numbered gives responses the numbers of their sends.
func numbered(all ...*sent) []*sent {
	for i, s := range all {
		s.n = i + 1
	}
	return all
}

// Sentences say what was sent and seen, and no more than that.
func TestWords(t *testing.T) {
	made := `{"id":"ord_1"}`
	for name, c := range map[string]struct {
		judge func() *judgement
		want  string
		sends []int // of the first finding
	}{
		"the newer request fails": {func() *judgement {
			j := judging(plan.Reordered)
			s := numbered(given(201, made), given(422, ""), given(422, ""))
			(&again{opening: opening{first: tried(s[0], 1, 1)}, newer: &opening{first: tried(s[1], 0, 0), retry: tried(s[2], 0, 0)}}).judge(j)
			return j
		}, "the newer request did not succeed, nor did the same request again: 422, then 422; db: no effect", nil},
		"the first request fails": {func() *judgement {
			j := judging(plan.Reordered)
			s := numbered(given(422, ""), given(422, ""))
			(&again{opening: opening{first: tried(s[0], 0, 0), retry: tried(s[1], 0, 0)}}).judge(j)
			return j
		}, "the first request did not succeed, nor did the same request again: 422, then 422; db: no effect", nil},
		"further duplicates double too": {func() *judgement {
			j := judging(plan.LateRetry)
			s := numbered(given(201, made), given(201, made), given(201, made), given(201, made))
			(&again{
				opening: opening{first: tried(s[0], 1, 1)}, expect: 1, late: true, second: tried(s[1], 2, 1),
				more: []*attempt{tried(s[2], 3, 1), tried(s[3], 4, 1)},
			}).judge(j)
			return j
		}, "2 effects by reader db instead of 1, after the first duplicate; 4 effects after 3", []int{1, 2, 3, 4}},
		"further duplicates do not": {func() *judgement {
			j := judging(plan.LateRetry)
			s := numbered(given(201, made), given(201, made), given(201, made))
			(&again{
				opening: opening{first: tried(s[0], 1, 1)}, expect: 1, late: true, second: tried(s[1], 2, 1),
				more: []*attempt{tried(s[2], 2, 0)},
			}).judge(j)
			return j
		}, "2 effects by reader db instead of 1; a further duplicate, answered with 201, had no effect of its own", []int{1, 2}},
		"an older request again": {func() *judgement {
			j := judging(plan.Reordered)
			s := numbered(given(201, made), given(201, made))
			j.repeated(s[0], tried(s[1], 0, 0), 0, evidence.FindingDoubleEffectSequential)
			return j
		}, "no effect of its own; the second response is the first result", nil},
		"an older request again, a server error": {func() *judgement {
			j := judging(plan.Reordered)
			s := numbered(given(201, made), given(500, ""))
			j.repeated(s[0], tried(s[1], 0, 0), 0, evidence.FindingDoubleEffectSequential)
			return j
		}, "no effect of its own, and the duplicate is answered with 500", []int{1, 2}},
		"cut off before the last byte, then an error": {func() *judgement {
			j := judging(plan.FailedFirst)
			s := numbered(&sent{}, given(500, ""))
			(&failed{off: &lostTry{first: s[0], second: tried(s[1], 0, 0)}}).judge(j)
			return j
		}, "the first attempt was cut off before its last byte, so it did not run: the retry was answered with 500, with no effect", []int{1, 2}},
		"cut off before the last byte, then no response": {func() *judgement {
			j := judging(plan.FailedFirst)
			s := numbered(&sent{}, given(429, ""))
			(&failed{off: &lostTry{first: s[0], second: tried(s[1], 0, 0)}}).judge(j)
			return j
		}, "the first attempt was cut off before its last byte, so it did not run: the retry was not processed: 429", nil},
		"cut off before the last byte, then two": {func() *judgement {
			j := judging(plan.FailedFirst)
			s := numbered(&sent{}, given(201, made))
			(&failed{off: &lostTry{first: s[0], second: tried(s[1], 2, 1)}}).judge(j)
			return j
		}, "the first attempt was cut off before its last byte: 2 effects by reader db instead of 1", []int{1, 2}},
		"lost, and refused the third time": {func() *judgement {
			j := judging(plan.LostUnread)
			s := numbered(&sent{}, given(503, ""), given(503, ""), given(422, ""))
			for _, x := range s[1:] {
				j.e.Sends = append(j.e.Sends, evidence.Send{N: x.n, Role: "duplicate", Status: x.status()})
			}
			j.lost(&lostTry{first: s[0], second: tried(s[3], 0, 0)}, true)
			return j
		}, "the retry was refused with 422 the last of the 3 times it was sent again, and there is no effect", []int{1, 4}},
		"other bytes, a duplicate's resource": {func() *judgement {
			return inOtherBytes(1, false, "ord_1")
		}, "1 effect; white space and the order of members do not matter: the request in other bytes was answered with 200, and names the first's resource", nil},
		"other bytes, and nothing tells": {func() *judgement {
			return inOtherBytes(1, false, "")
		}, "1 effect; white space and the order of members do not matter: the request in other bytes was answered with 200", nil},
		"other bytes where all doubles": {func() *judgement {
			return inOtherBytes(2, true, "")
		}, "the request in other bytes took effect, as the same bytes do when they are sent again: this shows nothing about how they are written", nil},
	} {
		j := c.judge()
		if _, got := j.outcome(); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		var sends []int
		if len(j.o.ev.Findings) > 0 {
			sends = j.o.ev.Findings[0].Sends
		}
		if !slices.Equal(sends, c.sends) {
			t.Errorf("%s: found by %v, want %v", name, sends, c.sends)
		}
	}
}

func inOtherBytes(effects int64, doubles bool, resource string) *judgement {
	j := judging(plan.SameMeaning)
	j.o.facts.doubled = doubles
	s := numbered(given(200, "{}"), given(200, "{}"))
	s[0].resource, s[1].resource = resource, resource
	(&rewritten{opening: opening{first: tried(s[0], 1, 1)}, second: tried(s[1], effects, effects-1)}).judge(j)
	return j
}

// A number that was read before the state was stable is not reported as a
// count.
func TestUnsettledIsNoCount(t *testing.T) {
	for name, c := range map[string]struct {
		settled bool
		why     string
		after   int64
		due     int64
		want    string
	}{
		"settled":              {true, "", 1, 1, "effects"},
		"as many as are due":   {false, "it moved", 1, 1, "effects: not settled, 1 so far"},
		"none so far":          {false, "it moved", 0, 1, "effects: not settled, 0 so far"},
		"too many already":     {false, "it moved", 2, 1, "effects"},
		"nothing was sent":     {false, "", 0, 1, "effects"},
		"the run ended":        {false, "", 1, 1, "effects: not settled, 1 so far"},
		"what is due is asked": {false, "it moved", 1, undue, "effects"},
	} {
		j := judging(plan.Duplicate)
		j.o.readers[0].effect = big.NewRat(1, 1)
		j.o.r.o.Send = true
		w := &watch{x: &exp{o: j.o}, settled: c.settled, why: c.why, promised: true}
		w.before, w.after = snapshot{{number: new(big.Rat)}}, snapshot{{number: big.NewRat(c.after, 1)}}
		w.conclude(c.due)
		if got := w.x.e.Changes[0]; got.Name != c.want || got.Effects != c.after || got.Expected != c.due {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A hypothesis names what was seen.
func TestSuppositions(t *testing.T) {
	for name, c := range map[string]struct {
		id    evidence.FindingID
		facts facts
		sends []evidence.Send
		cause string
		state evidence.CauseState
		words string
	}{
		"nothing came at once": {evidence.FindingDoubleEffectSequential, facts{doubled: true}, nil, "forgotten", evidence.Open, "none of them came before the state had settled"},
		"some came at once": {
			evidence.FindingDoubleEffectSequential,
			facts{doubled: true, race: &evidence.Race{Doubled: 1}},
			nil,
			"forgotten", evidence.Refuted, "even those that came at once",
		},
		"of those at once some had none": {
			evidence.FindingDoubleEffectSequential,
			facts{doubled: true, race: &evidence.Race{Doubled: 1}, raceSome: true},
			nil,
			"forgotten", evidence.Open, "that succeeded had no effect of their own",
		},
		"at the same time they hold": {
			evidence.FindingDoubleEffectSequential,
			facts{doubled: true, race: &evidence.Race{Overlapped: 1}},
			nil,
			"forgotten", evidence.Open, "Simultaneous requests had one effect",
		},
		"refused once":  {"failure-blocks-key", facts{}, []evidence.Send{{Role: "duplicate", Status: 422}}, "tied-to-client", evidence.Open, "was refused the one time it was sent again."},
		"refused twice": {"failure-blocks-key", facts{}, []evidence.Send{{Role: "duplicate", Status: 409}, {Role: "duplicate", Status: 409}}, "tied-to-client", evidence.Open, "refused, or still in progress, each of the 2 times it was sent again"},
		"never done":    {"failure-blocks-key", facts{}, []evidence.Send{{Role: "duplicate", Status: 202}}, "tied-to-client", evidence.Open, "not done for as long as the probe waited"},
		"without a key": {"keyless-requests-confused", facts{keylessAsOne: &sent{}}, nil, "keyless-as-one", evidence.Supported, "was answered with success"},
	} {
		j := judging(plan.LostUnread)
		o := j.o
		o.facts = c.facts
		e, _ := evidence.Lookup(c.id)
		o.ev.Findings = []evidence.Finding{e.Finding("lost_unread")}
		o.ev.Experiments = []evidence.Experiment{{Name: "lost_unread", Sends: c.sends}}
		o.suppose()
		all := o.ev.Findings[0].Causes
		i := slices.IndexFunc(all, func(x evidence.Cause) bool { return x.Name == c.cause })
		if i < 0 || all[i].State != c.state || !strings.Contains(all[i].For, c.words) {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

func TestEach(t *testing.T) {
	if one, two := each(1, "trial"), each(2, "trial"); one != "the one trial" || two != "each of 2 trials" {
		t.Error(one, two)
	}
}
