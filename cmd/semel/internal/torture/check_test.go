package torture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// story builds a history by hand. A step is a second.
type story struct {
	evidence
	asks uint64
}

func newStory() *story {
	return &story{evidence: evidence{hold: true, over: true, lease: time.Second, start: time.Unix(1_000_000, 0)}}
}

func (s *story) add(e event) {
	e.at = time.Duration(len(s.events)) * time.Second
	s.events = append(s.events, e)
}

func (s *story) ask(key string, a *answer) {
	s.asks++
	id := s.asks
	s.add(event{kind: kindAsk, who: "client", key: key, ask: id})
	if a == nil {
		s.add(event{kind: kindBroken, who: "client", key: key, ask: id, text: "connection ended"})
		return
	}
	s.add(event{kind: kindAnswer, who: "client", key: key, ask: id, answer: a, text: a.String()})
}

func (s *story) effect(key, id, fence string) {
	s.effects = append(s.effects, Effect{ID: id, Key: key, Fence: fence, At: s.start.Add(time.Duration(len(s.events)) * time.Second)})
}

func (s *story) end(key, text string) {
	s.add(event{kind: kindEnd, who: "client", key: key, text: text})
}

func ack(effect string) *answer {
	return &answer{class: acknowledged, status: 201, effect: effect, digest: "digest of " + effect}
}

func told(c class) *answer { return &answer{class: c, status: 409} }

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		happen func(s *story)
		want   string // the checks that find something
	}{
		{"executed, lost, replayed", func(s *story) {
			s.ask("k", nil)
			s.effect("k", "e1", "1")
			s.ask("k", ack("e1"))
			s.ask("k", ack("e1"))
			s.end("k", endAcknowledged)
		}, ""},
		{"two effects under hold", func(s *story) {
			s.ask("k", nil)
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "2")
			s.ask("k", ack("e2"))
		}, checkSecondEffect},
		{"two effects of two claims under retry", func(s *story) {
			s.hold = false
			s.ask("k", nil)
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "2")
			s.ask("k", ack("e2"))
		}, ""},
		{"two effects of one claim under retry", func(s *story) {
			s.hold = false
			s.ask("k", nil)
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "1")
			s.ask("k", ack("e2"))
		}, checkSecondOfClaim},
		{"answers differ", func(s *story) {
			s.hold = false
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "2")
			s.ask("k", ack("e1"))
			s.ask("k", ack("e2"))
		}, checkDiffer},
		{"the same effect in other bytes", func(s *story) {
			s.effect("k", "e1", "1")
			s.ask("k", ack("e1"))
			other := ack("e1")
			other.digest = "another"
			s.ask("k", other)
		}, checkDiffer},
		{"acknowledged and not there", func(s *story) {
			s.ask("k", ack("e1"))
		}, checkMissing},
		{"acknowledged with another key's effect", func(s *story) {
			s.ask("other", ack("e1"))
			s.effect("other", "e1", "1")
			s.ask("k", ack("e1"))
		}, checkMissing},
		{"acknowledged with an effect that is not the one there is", func(s *story) {
			s.effect("k", "e1", "1")
			s.ask("k", ack("e2"))
		}, checkMissing},
		{"acknowledged, then in progress", func(s *story) {
			s.effect("k", "e1", "1")
			s.ask("k", ack("e1"))
			s.ask("k", told(inProgress))
		}, checkLost},
		{"in progress, then acknowledged", func(s *story) {
			s.effect("k", "e1", "1")
			s.ask("k", told(inProgress))
			s.ask("k", ack("e1"))
		}, ""},
		{"asked before the acknowledgement, answered after it", func(s *story) {
			s.effect("k", "e1", "1")
			s.add(event{kind: kindAsk, who: "slow", key: "k", ask: 100})
			s.ask("k", ack("e1"))
			s.add(event{kind: kindAnswer, who: "slow", key: "k", ask: 100, answer: told(inProgress)})
		}, ""},
		{"acknowledged, then the store is down", func(s *story) {
			s.effect("k", "e1", "1")
			s.ask("k", ack("e1"))
			s.ask("k", told(unavailable))
		}, ""},
		{"refused, and yet", func(s *story) {
			s.ask("k", told(noEffect))
			s.end("k", endRefused)
			s.effect("k", "e1", "1")
		}, checkAfterRefusal},
		{"refused once, cut off once", func(s *story) {
			s.ask("k", told(noEffect))
			s.ask("k", nil)
			s.effect("k", "e1", "1")
		}, ""},
		{"unknown, only its client cut off", func(s *story) {
			s.add(event{kind: kindCut, side: front, key: "k", text: string(cutAfter)})
			s.ask("k", nil)
			s.ask("k", told(unknown))
		}, checkWithoutCause},
		{"unknown, cut off from the ledger", func(s *story) {
			s.ask("k", nil)
			s.add(event{kind: kindCut, side: back, key: "k", text: string(cutAfter)})
			s.ask("k", told(unknown))
		}, ""},
		{"unknown, another key cut off from the ledger", func(s *story) {
			s.ask("other", nil)
			s.ask("k", nil)
			s.add(event{kind: kindCut, side: back, key: "other", text: string(cutAfter)})
			s.ask("k", told(unknown))
		}, checkWithoutCause},
		{"unknown, a process paused meanwhile", func(s *story) {
			s.add(event{kind: kindPause, who: "gateway 1"})
			s.ask("k", nil)
			s.add(event{kind: kindResume, who: "gateway 1"})
			s.ask("k", told(unknown))
		}, ""},
		{"unknown, a process paused long before", func(s *story) {
			s.add(event{kind: kindPause, who: "gateway 1"})
			s.add(event{kind: kindResume, who: "gateway 1"})
			s.add(event{kind: kindPhase})
			s.ask("k", nil)
			s.ask("k", told(unknown))
		}, checkWithoutCause},
		{"unknown, a process killed later", func(s *story) {
			s.ask("k", nil)
			s.ask("k", told(unknown))
			s.add(event{kind: kindKill, who: "gateway 1"})
		}, checkWithoutCause},
		{"unknown, the machine stood still", func(s *story) {
			s.ask("k", nil)
			s.ask("k", told(unknown))
			s.add(event{kind: kindStall, who: "machine", took: 3 * time.Second})
		}, ""},
		{"unknown just now: a stall may yet be noted", func(s *story) {
			s.over = false
			s.ask("k", nil)
			s.ask("k", told(unknown))
		}, ""},
		{"a live lease in the end", func(s *story) {
			s.ask("k", nil)
			s.stuck = []string{"k"}
		}, checkStuck},
		{"no answer in the end", func(s *story) {
			s.ask("k", told(inProgress))
			s.end("k", endGaveUp)
		}, checkStuck},
		{"an odd answer", func(s *story) {
			s.ask("k", told(unexpected))
		}, checkUnexpected},
		{"an effect nobody asked for", func(s *story) {
			s.effect("k", "e1", "1")
		}, checkUnexpected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			tt.happen(s)
			var found []string
			for _, v := range s.check() {
				found = append(found, v.Check)
				if v.Key != "k" {
					t.Errorf("the violation is of key %q", v.Key)
				}
				if len(s.asksOf("k")) > 0 && !strings.Contains(strings.Join(v.Timeline, "\n"), " ask ") {
					t.Errorf("the timeline of %s has no ask:\n%s", v.Check, strings.Join(v.Timeline, "\n"))
				}
			}
			if got := strings.Join(found, " "); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

func (s *story) asksOf(key string) (some []event) {
	for _, e := range s.events {
		if e.kind == kindAsk && e.key == key {
			some = append(some, e)
		}
	}
	return some
}

// TestFaultsBefore: what struck after a violation did not expose it.
func TestFaultsBefore(t *testing.T) {
	s := newStory()
	s.add(event{kind: kindCut, side: front, key: "k", text: string(cutAfter)})
	s.ask("k", nil)
	s.effect("k", "e1", "1")
	s.effect("k", "e2", "2")
	s.add(event{kind: kindPause, who: "gateway 1"})
	s.add(event{kind: kindCut, side: back, key: "k", text: string(cutBefore)})
	s.ask("k", ack("e2"))
	found := s.check()
	if len(found) != 1 {
		t.Fatalf("found %d violations, want 1", len(found))
	}
	if want := []string{"cut front after the request", "pause gateway 1"}; !slices.Equal(found[0].Faults, want) {
		t.Errorf("faults are %q, want %q", found[0].Faults, want)
	}
	for _, want := range []string{"effect e1 under fence 1", "effect e2 under fence 2", "pause", "#1 connection ended", "within the request"} {
		if got := strings.Join(found[0].Timeline, "\n"); strings.Contains(got, want) != (want != "within the request") {
			t.Errorf("the timeline and %q:\n%s", want, got)
		}
	}
}

// TestEnough: a run that saw nothing is not a good one.
func TestEnough(t *testing.T) {
	n := DefaultNemesis()
	c := Config{Duration: time.Minute, Nemesis: &n}.withDefaults()
	full := Figures{
		Acknowledged: 1000, Retries: 1000, Replays: 1000,
		GatewayKills: 20, GatewayPauses: 20, LedgerKills: 20, Cuts: map[string]int{},
	}
	for _, s := range []side{front, back} {
		for _, at := range cuts {
			full.Cuts[fmt.Sprintf("%s %s", s, at)] = 10
		}
	}
	if lacks := enough(c, full); len(lacks) > 0 {
		t.Errorf("a full run lacks %q", lacks)
	}
	for _, none := range []func(*Figures){
		func(f *Figures) { f.Acknowledged = 0 },
		func(f *Figures) { f.Retries = 0 },
		func(f *Figures) { f.Replays = 0 },
		func(f *Figures) { f.GatewayKills = 0 },
		func(f *Figures) { f.GatewayPauses = 0 },
		func(f *Figures) { f.LedgerKills = 0 },
		func(f *Figures) { f.Cuts = map[string]int{} },
	} {
		f := full
		none(&f)
		if len(enough(c, f)) == 0 {
			t.Errorf("a run with %+v passes for enough", f)
		}
	}
}
