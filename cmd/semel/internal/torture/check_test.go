package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// story builds a history by hand. A step is a second.
type story struct {
	evidence
	attempts uint64
}

func newStory() *story {
	return &story{evidence: evidence{hold: true, over: true, lease: time.Second, start: time.Unix(1_000_000, 0)}}
}

func (s *story) add(e event) {
	e.at = time.Duration(len(s.events)) * time.Second
	s.events = append(s.events, e)
}

func (s *story) attempt(key string, got *response) {
	s.attempts++
	id := s.attempts
	s.add(event{kind: kindAttempt, who: "client", key: key, attempt: id})
	if got == nil {
		s.add(event{kind: kindBroken, who: "client", key: key, attempt: id, text: "connection ended"})
		return
	}
	s.add(event{kind: kindResponse, who: "client", key: key, attempt: id, response: got, text: got.String()})
}

func (s *story) effect(key, id, fence string) {
	s.effects = append(s.effects, Effect{ID: id, Key: key, Fence: fence, At: s.start.Add(time.Duration(len(s.events)) * time.Second)})
}

func (s *story) end(key, text string) {
	s.add(event{kind: kindEnd, who: "client", key: key, text: text})
}

func ack(effect string) *response {
	return &response{class: acknowledged, status: 201, effect: effect, digest: "digest of " + effect}
}

func told(c class) *response { return &response{class: c, status: 409} }

// brokeOff adds a response that ends after its header, which names the effect.
func (s *story) brokeOff(key, effect string) {
	s.attempts++
	s.add(event{kind: kindAttempt, who: "client", key: key, attempt: s.attempts})
	s.add(event{kind: kindBroken, who: "client", key: key, attempt: s.attempts, begun: true, effect: effect})
}

// failsToStart adds a failed start of a process.
func (s *story) failsToStart(who string) {
	s.add(event{kind: kindLog, who: who, text: didNotStart + who + " ended before it listened"})
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		happen func(s *story)
		want   string // the checks that find something
	}{
		{"executed, lost, replayed", func(s *story) {
			s.attempt("k", nil)
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e1"))
			s.attempt("k", ack("e1"))
			s.end("k", endAcknowledged)
		}, ""},
		{"two effects under hold", func(s *story) {
			s.attempt("k", nil)
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "2")
			s.attempt("k", ack("e2"))
		}, checkSecondEffect},
		{"two effects of two claims under retry", func(s *story) {
			s.hold = false
			s.attempt("k", nil)
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "2")
			s.attempt("k", ack("e2"))
		}, ""},
		{"two effects of one claim under retry", func(s *story) {
			s.hold = false
			s.attempt("k", nil)
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "1")
			s.attempt("k", ack("e2"))
		}, checkSecondOfClaim},
		{"responses differ", func(s *story) {
			s.hold = false
			s.effect("k", "e1", "1")
			s.effect("k", "e2", "2")
			s.attempt("k", ack("e1"))
			s.attempt("k", ack("e2"))
		}, checkDiffer},
		{"the same effect in other bytes", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e1"))
			other := ack("e1")
			other.digest = "another"
			s.attempt("k", other)
		}, checkDiffer},
		{"acknowledged and not there", func(s *story) {
			s.attempt("k", ack("e1"))
		}, checkMissing},
		{"acknowledged with another key's effect", func(s *story) {
			s.attempt("other", ack("e1"))
			s.effect("other", "e1", "1")
			s.attempt("k", ack("e1"))
		}, checkMissing},
		{"acknowledged with an effect that is not the one there is", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e2"))
		}, checkMissing},
		{"acknowledged, then in progress", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e1"))
			s.attempt("k", told(inProgress))
		}, checkLost},
		{"in progress, then acknowledged", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", told(inProgress))
			s.attempt("k", ack("e1"))
		}, ""},
		{"sent before the acknowledgement, response after it", func(s *story) {
			s.effect("k", "e1", "1")
			s.add(event{kind: kindAttempt, who: "slow", key: "k", attempt: 100})
			s.attempt("k", ack("e1"))
			s.add(event{kind: kindResponse, who: "slow", key: "k", attempt: 100, response: told(inProgress)})
		}, ""},
		{"acknowledged, then the store is down", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e1"))
			s.attempt("k", told(unavailable))
		}, ""},
		{"refused, but there is an effect", func(s *story) {
			s.attempt("k", told(noEffect))
			s.end("k", endRefused)
			s.effect("k", "e1", "1")
		}, checkAfterRefusal},
		{"refused once, cut off once", func(s *story) {
			s.attempt("k", told(noEffect))
			s.attempt("k", nil)
			s.effect("k", "e1", "1")
		}, ""},
		{"unknown, only its client cut off", func(s *story) {
			s.add(event{kind: kindCut, side: front, key: "k", text: string(cutAfter)})
			s.attempt("k", nil)
			s.attempt("k", told(unknown))
		}, checkWithoutCause},
		{"unknown, cut off from the ledger", func(s *story) {
			s.attempt("k", nil)
			s.add(event{kind: kindCut, side: back, key: "k", text: string(cutAfter)})
			s.attempt("k", told(unknown))
		}, ""},
		{"unknown, another key cut off from the ledger", func(s *story) {
			s.attempt("other", nil)
			s.attempt("k", nil)
			s.add(event{kind: kindCut, side: back, key: "other", text: string(cutAfter)})
			s.attempt("k", told(unknown))
		}, checkWithoutCause},
		{"unknown, a process paused meanwhile", func(s *story) {
			s.add(event{kind: kindPause, who: "gateway 1"})
			s.attempt("k", nil)
			s.add(event{kind: kindResume, who: "gateway 1"})
			s.attempt("k", told(unknown))
		}, ""},
		{"unknown, a process paused long before", func(s *story) {
			s.add(event{kind: kindPause, who: "gateway 1"})
			s.add(event{kind: kindResume, who: "gateway 1"})
			s.add(event{kind: kindPhase})
			s.attempt("k", nil)
			s.attempt("k", told(unknown))
		}, checkWithoutCause},
		{"unknown, a process killed later", func(s *story) {
			s.attempt("k", nil)
			s.attempt("k", told(unknown))
			s.add(event{kind: kindKill, who: "gateway 1"})
		}, checkWithoutCause},
		{"unknown, the machine stood still", func(s *story) {
			s.attempt("k", nil)
			s.attempt("k", told(unknown))
			s.add(event{kind: kindStall, who: "machine", took: 3 * time.Second})
		}, ""},
		{"unknown just now: a stall may yet be noted", func(s *story) {
			s.over = false
			s.attempt("k", nil)
			s.attempt("k", told(unknown))
		}, ""},
		{"a live lease in the end", func(s *story) {
			s.attempt("k", nil)
			s.stuck = []string{"k"}
		}, checkStuck},
		{"no response at the end", func(s *story) {
			s.attempt("k", told(inProgress))
			s.attempt("k", nil)
			s.end("k", endGaveUp)
		}, checkStuck},
		{"a large response that is not what the ledger sent", func(s *story) {
			s.effect("k", "e1", "1")
			s.effects[0].Digest = "another"
			s.attempt("k", ack("e1"))
		}, checkDiffer},
		{"a large response as the ledger sent it", func(s *story) {
			s.effect("k", "e1", "1")
			s.effects[0].Digest = ack("e1").digest
			s.attempt("k", ack("e1"))
			s.attempt("k", ack("e1"))
		}, ""},
		{"acknowledged, then not retained although it could be", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e1"))
			s.attempt("k", told(notRetained))
		}, checkLost},
		{"half of a response, ended as if whole", func(s *story) {
			s.effect("k", "e1", "1")
			s.add(event{kind: kindKill, who: "ledger"})
			s.attempt("k", &response{class: torn, status: 201})
			s.attempt("k", told(unknown))
		}, checkTorn},
		{"turned away, but there is an effect", func(s *story) {
			s.attempt("k", told(turnedAway))
			s.attempt("k", told(noEffect))
			s.effect("k", "e1", "1")
		}, checkAfterRefusal},
		{"executed, but it could not be recorded", func(s *story) {
			s.attempt("k", told(unavailable))
			s.effect("k", "e1", "1")
		}, ""},
		{"acknowledged, then turned away", func(s *story) {
			s.effect("k", "e1", "1")
			s.attempt("k", ack("e1"))
			s.attempt("k", told(turnedAway))
		}, ""},
		{"an unexpected response", func(s *story) {
			s.attempt("k", told(unexpected))
		}, checkUnexpected},
		{"an effect of a key that was not sent", func(s *story) {
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
				if v.Key != "k" || strings.Contains(v.Detail, "nil") {
					t.Errorf("the violation is of key %q: %s", v.Key, v.Detail)
				}
				if len(s.attemptsOf("k")) > 0 && !strings.Contains(strings.Join(v.Timeline, "\n"), " attempt ") {
					t.Errorf("the timeline of %s has no attempt:\n%s", v.Check, strings.Join(v.Timeline, "\n"))
				}
			}
			if got := strings.Join(found, " "); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// TestCheckOfStreams checks responses that are sent once: the end of one acknowledges
// the key, and no part of it is replayed.
func TestCheckOfStreams(t *testing.T) {
	const k = "k-1-stream"
	tests := []struct {
		name   string
		happen func(s *story)
		want   string
	}{
		{"whole, then not retained", func(s *story) {
			s.effect(k, "e1", "1")
			s.attempt(k, ack("e1"))
			s.attempt(k, told(notRetained))
		}, ""},
		{"broken off, then not retained", func(s *story) {
			s.attempt(k, nil)
			s.effect(k, "e1", "1")
			s.attempt(k, told(notRetained))
		}, ""},
		{"broken off without an effect, then in progress, then refused", func(s *story) {
			s.attempt(k, nil)
			s.attempt(k, told(inProgress))
			s.attempt(k, told(noEffect))
		}, ""},
		{"broken off, then not retained, and no effect", func(s *story) {
			s.attempt(k, nil)
			s.attempt(k, told(notRetained))
		}, checkMissing},
		{"not retained, and the effect comes later", func(s *story) {
			s.attempt(k, nil)
			s.attempt(k, told(notRetained))
			s.effect(k, "e1", "1")
		}, checkMissing},
		{"broken off before its effect, which never came", func(s *story) {
			s.brokeOff(k, "e1")
			s.attempt(k, told(noEffect))
		}, ""},
		{"broken off before its transaction was committed", func(s *story) {
			s.atomic = true
			s.brokeOff(k, "e1")
			s.effect(k, "e2", "2")
			s.attempt(k, ack("e2"))
		}, checkMissing},
		{"broken off after its transaction was committed", func(s *story) {
			s.atomic = true
			s.effect(k, "e1", "1")
			s.brokeOff(k, "e1")
			s.attempt(k, told(notRetained))
		}, ""},
		{"whole, then unknown", func(s *story) {
			s.add(event{kind: kindKill, who: "gateway 1"})
			s.effect(k, "e1", "1")
			s.attempt(k, ack("e1"))
			s.attempt(k, told(unknown))
		}, checkLost},
		{"whole, and no effect", func(s *story) {
			s.attempt(k, ack("e1"))
			s.attempt(k, told(notRetained))
		}, checkMissing},
		{"not retained, then whole", func(s *story) {
			s.effect(k, "e1", "1")
			s.attempt(k, told(notRetained))
			s.attempt(k, ack("e1"))
		}, checkLost},
		{"whole twice at the same time", func(s *story) {
			s.effect(k, "e1", "1")
			s.add(event{kind: kindAttempt, who: "other", key: k, attempt: 100})
			s.attempt(k, ack("e1"))
			s.add(event{kind: kindResponse, who: "other", key: k, attempt: 100, response: ack("e1")})
		}, checkUnexpected},
		{"not retained, then unavailable", func(s *story) {
			s.effect(k, "e1", "1")
			s.attempt(k, told(notRetained))
			s.attempt(k, told(unavailable))
		}, ""},
		{"unknown, because only its client was cut off", func(s *story) {
			s.add(event{kind: kindCut, side: front, key: k, text: string(cutResponse)})
			s.attempt(k, nil)
			s.effect(k, "e1", "1")
			s.attempt(k, told(unknown))
		}, checkWithoutCause},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			tt.happen(s)
			var found []string
			for _, v := range s.check() {
				found = append(found, v.Check)
			}
			if got := strings.Join(found, " "); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// TestFailedStart checks that a gateway starts even if its store is down.
func TestFailedStart(t *testing.T) {
	s := newStory()
	s.add(event{kind: kindKill, who: "database"})
	s.failsToStart("payments 1") // which needs it
	if found := s.check(); len(found) > 0 {
		t.Errorf("found %v of a service that needs its database", found)
	}
	s.failsToStart("gateway 2")
	found := s.check()
	if len(found) != 1 || found[0].Check != checkFailedStart || !slices.Equal(found[0].Faults, []string{"kill database"}) {
		t.Errorf("found %v, want one failed start, by the kill of the database", found)
	}
}

func (s *story) attemptsOf(key string) (some []event) {
	for _, e := range s.events {
		if e.kind == kindAttempt && e.key == key {
			some = append(some, e)
		}
	}
	return some
}

// TestFaultsBefore checks that faults after a violation are not reported with it.
func TestFaultsBefore(t *testing.T) {
	s := newStory()
	s.add(event{kind: kindCut, side: front, key: "k", text: string(cutAfter)})
	s.attempt("k", nil)
	s.effect("k", "e1", "1")
	s.effect("k", "e2", "2")
	s.add(event{kind: kindPause, who: "gateway 1"})
	s.add(event{kind: kindCut, side: back, key: "k", text: string(cutBefore)})
	s.attempt("k", ack("e2"))
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

// TestEnough checks that a run that saw too little is inconclusive.
func TestEnough(t *testing.T) {
	n := DefaultNemesis()
	c := Config{Duration: time.Minute, Nemesis: &n}.withDefaults()
	full := Figures{
		Acknowledged: 1000, Retries: 1000, Replays: 1000,
		GatewayKills: 20, GatewayPauses: 20, LedgerKills: 20, Cuts: map[string]int{},
		Forms: map[string]*FormFigures{},
	}
	for _, f := range forms {
		full.Forms[string(f)] = &FormFigures{Whole: 100, NotRetained: 100, Replays: 100, Broken: 100}
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
		func(f *Figures) { f.Forms = without(f.Forms, formLarge, FormFigures{Whole: 100, Broken: 100}) },
		func(f *Figures) {
			f.Forms = without(f.Forms, formStream, FormFigures{NotRetained: 100, Broken: 100})
		},
		func(f *Figures) {
			f.Forms = without(f.Forms, formChunked, FormFigures{Whole: 100, Broken: 100})
		},
		func(f *Figures) {
			f.Forms = without(f.Forms, formAnnounced, FormFigures{Whole: 100, NotRetained: 100})
		},
	} {
		f := full
		none(&f)
		if len(enough(c, f)) == 0 {
			t.Errorf("a run with %+v passes for enough", f)
		}
	}
}

// without returns figures with others for a form.
func without(figures map[string]*FormFigures, f form, less FormFigures) map[string]*FormFigures {
	figures = maps.Clone(figures)
	figures[string(f)] = &less
	return figures
}
