package model

import "slices"

func (s *State) token(o int) Token { return tokenOf(o, s.Owner[o].Attempt) }

func (s *State) claim(o int) claim {
	return claim{s.Owner[o].Fence, s.token(o), s.Owner[o].grant}
}

// Actions lists every step that the model can take.
func (m *Model) Actions() []Action {
	a := slices.Concat(ownerActions, otherActions)
	switch m.Policy {
	case PolicyHold:
		a = append(a, holdActions...)
	case PolicyReconcile:
		a = append(a, reconcileActions...)
	}
	if m.Mutation != NoOneResolves {
		a = append(a, operatorActions...)
	}
	if m.Mutation != LeaseNeverLapses {
		a = append(a, lapse)
	}
	if m.Mutation == AnswerBeforeRecord {
		a = append(a, answerFirst)
	}
	if m.Mutation == CheckThenAct || m.Mutation == ExpiredUnchecked {
		a = append(a, checkThenAct...)
	}
	if m.Restore {
		a = append(a, restore)
	}
	return a
}

// try reports what a call would answer, without calling.
func try(s *State, call func(*State) bool) bool {
	copied := *s
	return call(&copied)
}

// meets is begin's answer, if it is a conflict.
func (m *Model) meets(s *State, o int) bool {
	if s.Owner[o].Phase != Asking || m.looksFirst(s.Rec) {
		return false
	}
	return !try(s, func(s *State) bool { return m.begin(s, s.token(o), s.Owner[o].Saw) })
}

// looksFirst: begin is mutated and would act on what it has seen.
func (m *Model) looksFirst(r Record) bool {
	return m.Mutation == CheckThenAct && r.State == Absent || m.Mutation == ExpiredUnchecked && r.State == Completed && r.Expired
}

func (s *State) granted(o int, p Phase) {
	w := &s.Owner[o]
	*w = Owner{Phase: p, Attempt: w.Attempt, Fence: s.Rec.Fence, Doubt: w.Doubt, grant: s.Rec.grant}
}

// answerFromRecord answers for an owner that has lost its claim.
func (s *State) answerFromRecord(o int) {
	if r := s.Rec; r.State == Completed && !r.Expired {
		s.answer(r.Result)
	}
	s.Owner[o].over()
}

var ownerActions = []Action{
	{"submit", "owner", func(_ *Model, s *State, o int) bool {
		w := &s.Owner[o]
		// Owners are alike: the first submit is owner 1's.
		if w.Phase != Idle || w.Attempt == attempts || o > 0 && s.Owner[0].Attempt == 0 {
			return false
		}
		*w = Owner{Phase: Asking, Attempt: w.Attempt + 1}
		return true
	}},
	{"crash", "owner", func(_ *Model, s *State, o int) bool {
		if s.Owner[o].Phase == Idle {
			return false
		}
		s.orphan(o)
		s.Owner[o].over()
		return true
	}},

	{"begin: granted", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Asking || m.looksFirst(s.Rec) || !m.begin(s, s.token(o), w.Saw) {
			return false
		}
		s.granted(o, Claimed)
		return true
	}},
	{"begin: in progress", "owner", func(m *Model, s *State, o int) bool {
		if !m.meets(s, o) || s.Rec.State != InProgress || s.Rec.Lapsed {
			return false
		}
		s.check(Repeatable, s.Rec.Token != s.token(o))
		s.Owner[o].over()
		return true
	}},
	{"begin: completed, replay", "owner", func(m *Model, s *State, o int) bool {
		if !m.meets(s, o) || s.Rec.State != Completed {
			return false
		}
		s.answer(s.Rec.Result)
		s.Owner[o].over()
		return true
	}},
	{"begin: may take over", "owner", func(m *Model, s *State, o int) bool {
		r := s.Rec
		if !m.meets(s, o) || !r.open() || !r.Reopened && m.Policy != PolicyRetry {
			return false
		}
		s.Owner[o].Saw, s.Owner[o].Doubt = r.Fence, true
		return true
	}},
	{"give begin up, answer unavailable", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Asking {
			return false
		}
		if m.Mutation == UnavailableIsNoEffect {
			s.answerNoEffect()
		}
		if (w.Saw != 0 || w.Doubt) && m.Mutation != AbandonByTakeover {
			w.over() // left to lapse: a release would forget the claim before
			return true
		}
		w.Phase = Abandoning
		return true
	}},
	{"abandon: granted", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Abandoning || m.looksFirst(s.Rec) || !m.begin(s, s.token(o), w.Saw) {
			return false
		}
		s.granted(o, Refused)
		if m.Mutation == AbandonByTakeover {
			w.Doubt = false
		}
		return true
	}},
	{"abandon: taken", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Abandoning || m.looksFirst(s.Rec) || !try(s, func(s *State) bool { return !m.begin(s, s.token(o), w.Saw) }) {
			return false
		}
		w.over()
		return true
	}},

	{"send the request for the effect", "owner", func(_ *Model, s *State, o int) bool {
		if s.Owner[o].Phase != Claimed {
			return false
		}
		s.Owner[o].Phase, s.Owner[o].UnderWay = Sent, true
		return true
	}},
	{"effect happens and is answered", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if !w.UnderWay {
			return false
		}
		m.takeEffect(s)
		w.Phase, w.UnderWay, w.Result = Done, false, s.World.Result
		return true
	}},
	{"effect is refused", "owner", func(_ *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if !w.UnderWay {
			return false
		}
		w.Phase, w.UnderWay = Refused, false
		return true
	}},
	{"connection breaks before the answer", "owner", func(_ *Model, s *State, o int) bool {
		if s.Owner[o].Phase != Sent {
			return false
		}
		s.orphan(o)
		s.Owner[o].Phase = Unclear
		return true
	}},
	{"hold at the deadline and go on", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		return (w.Phase == Claimed || w.Phase == Sent) && s.Rec.State != Unknown && m.hold(s, s.claim(o))
	}},

	{"complete", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if m.Mutation == MarkBeforeEffect {
			if w.Phase != Claimed || !m.complete(s, s.claim(o), learned) {
				return false
			}
			w.Phase, w.UnderWay = Sent, true
			return true
		}
		if w.Phase != Done || !m.complete(s, s.claim(o), w.Result) {
			return false
		}
		s.answer(w.Result)
		w.over()
		return true
	}},
	{"complete: claim lost", "owner", func(m *Model, s *State, o int) bool {
		w := s.Owner[o]
		if w.Phase != Done || try(s, func(s *State) bool { return m.complete(s, s.claim(o), w.Result) }) {
			return false
		}
		s.answerFromRecord(o)
		return true
	}},
	{"release", "owner", func(m *Model, s *State, o int) bool {
		if !m.releases(s.Owner[o]) || !m.release(s, s.claim(o)) {
			return false
		}
		if s.Owner[o].Phase == Refused {
			s.answerNoEffect()
		}
		s.Owner[o].over()
		return true
	}},
	{"release: claim lost", "owner", func(m *Model, s *State, o int) bool {
		if !m.releases(s.Owner[o]) || try(s, func(s *State) bool { return m.release(s, s.claim(o)) }) {
			return false
		}
		if m.Mutation == LostReleaseIsNoEffect || s.Rec.absent() {
			s.answerNoEffect()
		}
		s.answerFromRecord(o)
		return true
	}},
	{"hold", "owner", func(m *Model, s *State, o int) bool {
		if !m.holds(s.Owner[o]) || !m.hold(s, s.claim(o)) {
			return false
		}
		s.Owner[o].over()
		return true
	}},
	{"hold: claim lost", "owner", func(m *Model, s *State, o int) bool {
		if !m.holds(s.Owner[o]) || try(s, func(s *State) bool { return m.hold(s, s.claim(o)) }) {
			return false
		}
		s.answerFromRecord(o)
		return true
	}},
	{"renew", "owner", func(m *Model, s *State, o int) bool {
		return renews(s.Owner[o]) && s.Rec.Lapsed && m.renew(s, s.claim(o))
	}},
	{"renew: claim lost, cancel", "owner", func(m *Model, s *State, o int) bool {
		if s.Owner[o].Phase != Claimed || try(s, func(s *State) bool { return m.renew(s, s.claim(o)) }) {
			return false
		}
		s.Owner[o].Phase = Refused // nothing was sent
		return true
	}},

	delay("begin", Begin, func(_ *Model, w Owner) bool { return w.Phase == Asking }),
	delay("complete", Complete, func(_ *Model, w Owner) bool { return w.Phase == Done }),
	delay("release", Release, (*Model).releases),
	delay("hold", Hold, func(m *Model, w Owner) bool { return m.holds(w) || w.Phase == Sent }),
	delay("renew", Renew, func(_ *Model, w Owner) bool { return renews(w) }),
}

// releases and holds say which way the owner settles a claim without result.
func (m *Model) releases(w Owner) bool {
	return w.Phase == Refused && (!w.Doubt || m.Mutation == ReleaseAfterTakeover) ||
		w.Phase == Unclear && m.Mutation == ReleaseUnclear
}

// An owner that cannot get its result recorded may hold as well.
func (m *Model) holds(w Owner) bool {
	return w.Phase == Unclear || w.Phase == Done || w.Phase == Refused && !m.releases(w)
}

func renews(w Owner) bool { return w.Phase == Claimed || w.Phase == Sent || w.Phase == Done }

// delay sends a call that has no answer for now. The owner may go on as it
// likes, for instance call again.
func delay(name string, c Call, may func(*Model, Owner) bool) Action {
	return Action{name + " is delayed", "owner", func(m *Model, s *State, o int) bool {
		w := s.Owner[o]
		if s.Seen.Faults == m.Faults || s.Net.Call != NoCall || !may(m, w) {
			return false
		}
		s.Seen.Faults++
		s.Net = Message{Call: c, Token: s.token(o), Fence: w.Fence, grant: w.grant}
		switch c {
		case Begin:
			s.Net.Takeover = w.Saw
		case Complete:
			s.Net.Result = w.Result
		}
		return true
	}}
}

// takeEffect is a request reaching the effect's owner.
func (m *Model) takeEffect(s *State) {
	if m.Policy == PolicyRetry && m.Mutation != RetryNotIdempotent && s.World.Effects > 0 {
		return // an idempotent owner answers with the effect there was
	}
	s.World.Effects++
	s.Seen.Effects++
	s.World.Result = Result(s.Seen.Effects)
}

// orphan: the owner will not hear the answer to its request.
func (s *State) orphan(o int) {
	if w := &s.Owner[o]; w.UnderWay {
		w.UnderWay = false
		s.World.Orphans++
	}
}

var otherActions = []Action{
	{"the effect happens, unheard", "outside", func(m *Model, s *State, _ int) bool {
		if s.World.Orphans == 0 {
			return false
		}
		s.World.Orphans--
		m.takeEffect(s)
		return true
	}},
	{"the request is lost", "outside", func(_ *Model, s *State, _ int) bool {
		if s.World.Orphans == 0 {
			return false
		}
		s.World.Orphans--
		return true
	}},

	arrive("begin", Begin, func(m *Model, s *State, n Message) bool { return m.begin(s, n.Token, n.Takeover) }),
	arrive("complete", Complete, func(m *Model, s *State, n Message) bool { return m.complete(s, n.claim(), n.Result) }),
	arrive("release", Release, func(m *Model, s *State, n Message) bool { return m.release(s, n.claim()) }),
	arrive("hold", Hold, func(m *Model, s *State, n Message) bool { return m.hold(s, n.claim()) }),
	arrive("renew", Renew, func(m *Model, s *State, n Message) bool { return m.renew(s, n.claim()) }),
	{"the delayed call comes to nothing", "network", func(_ *Model, s *State, _ int) bool {
		if s.Net.Call == NoCall {
			return false
		}
		s.Net = Message{}
		return true
	}},

	{"retention is over", "clock", func(m *Model, s *State, _ int) bool {
		if s.Rec.State != Completed || s.Rec.Expired || s.Seen.Faults == m.Faults || !m.over(s) && m.Mutation != RetentionTooShort {
			return false
		}
		// The next submit is new to everyone, and may have its effect.
		s.Rec.Expired = true
		s.Seen.Faults++
		s.World.Effects, s.World.Result = 0, 0
		s.Seen.Allowed, s.Seen.Told = 1, 0
		return true
	}},
	{"sweep", "store", func(m *Model, s *State, _ int) bool { return m.sweep(s) }},
}

func (n Message) claim() claim { return claim{n.Fence, n.Token, n.grant} }

// arrive is a delayed call that takes effect. Nobody learns of its success.
func arrive(name string, c Call, call func(*Model, *State, Message) bool) Action {
	return Action{"the delayed " + name + " arrives", "network", func(m *Model, s *State, _ int) bool {
		if s.Net.Call != c || !call(m, s, s.Net) {
			return false
		}
		s.Net = Message{}
		return true
	}}
}

var lapse = Action{"the lease lapses", "clock", func(_ *Model, s *State, _ int) bool {
	if s.Rec.State != InProgress || s.Rec.Lapsed {
		return false
	}
	s.Rec.Lapsed = true
	return true
}}

var holdActions = []Action{
	{"begin: unknown", "owner", func(m *Model, s *State, o int) bool {
		if !m.meets(s, o) || s.Rec.State != Unknown || s.Rec.Reopened {
			return false
		}
		s.Owner[o].over()
		return true
	}},
	{"begin: lease lapsed", "owner", func(m *Model, s *State, o int) bool {
		if !m.meets(s, o) || s.Rec.State != InProgress || !s.Rec.Lapsed || s.Rec.Reopened {
			return false
		}
		s.Owner[o].Phase, s.Owner[o].Saw = Marking, s.Rec.Fence
		return true
	}},
	{"mark unknown", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Marking || w.Saw != s.Rec.Fence || !m.mark(s) {
			return false
		}
		w.over()
		return true
	}},
	{"mark unknown: moved on", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Marking || w.Saw == s.Rec.Fence && try(s, m.mark) {
			return false
		}
		w.Phase, w.Saw = Asking, 0
		return true
	}},
}

var reconcileActions = []Action{
	{"begin: outcome open", "owner", func(m *Model, s *State, o int) bool {
		if !m.meets(s, o) || !s.Rec.open() || s.Rec.Reopened {
			return false
		}
		w := &s.Owner[o]
		w.Phase, w.Saw, w.grant = Looking, s.Rec.Fence, s.Rec.grant
		if m.Mutation != LookFirst {
			m.mark(s)
		}
		return true
	}},
	{"look-up: present", "owner", func(_ *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Looking || s.World.Effects == 0 {
			return false
		}
		w.Phase, w.Result = Settling, s.World.Result|learned
		return true
	}},
	{"look-up: absent and settled", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Looking || s.World.Effects > 0 || !m.over(s) {
			return false
		}
		w.Phase, w.grant, w.Doubt = Asking, 0, false // and may take over
		return true
	}},
	{"look-up: undecided", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Looking {
			return false
		}
		if w.Saw == s.Rec.Fence {
			m.mark(s)
		}
		w.over()
		return true
	}},
	{"resolve with the result found", "owner", func(m *Model, s *State, o int) bool {
		w := &s.Owner[o]
		if w.Phase != Settling {
			return false
		}
		m.resolve(s, Ruling{DecideResult, w.Saw, w.Result, w.grant})
		*w = Owner{Phase: Asking, Attempt: w.Attempt}
		return true
	}},
}

// mark marks the record unknown, if it has lapsed.
func (m *Model) mark(s *State) bool {
	return m.resolve(s, Ruling{DecideUnknown, s.Rec.Fence, 0, s.Rec.grant})
}

// rule is an operator looking at an open record and ruling on it: at once, or
// to be carried out later.
func rule(name string, d Decision, may func(m *Model, s *State) bool) []Action {
	look := func(m *Model, s *State) (Ruling, bool) {
		ok := s.Rec.State == Unknown || s.Rec.open() && m.Mutation == LookFirst
		ru := Ruling{Decision: d, Fence: s.Rec.Fence, grant: s.Rec.grant}
		if d == DecideResult {
			ru.Result = s.World.Result | learned
		}
		return ru, ok && may(m, s)
	}
	return []Action{
		{"resolve: " + name, "operator", func(m *Model, s *State, _ int) bool {
			ru, ok := look(m, s)
			again := d == DecideExecuteAgain
			if !ok || again && s.Seen.Faults == m.Faults || !m.resolve(s, ru) {
				return false
			}
			if again {
				s.Seen.Faults++
			}
			return true
		}},
		{"decide: " + name, "operator", func(m *Model, s *State, _ int) bool {
			ru, ok := look(m, s)
			if !ok || s.Seen.Faults == m.Faults || s.Op.Decision != NoDecision {
				return false
			}
			s.Op = ru
			s.Seen.Faults++
			return true
		}},
	}
}

var operatorActions = slices.Concat(
	[]Action{{"mark unknown", "operator", func(m *Model, s *State, _ int) bool {
		return s.Rec.State == InProgress && m.mark(s)
	}}},
	rule("result", DecideResult, func(_ *Model, s *State) bool { return s.World.Effects > 0 }),
	rule("no effect", DecideNoEffect, func(m *Model, s *State) bool { return s.World.Effects == 0 && m.over(s) }),
	rule("execute again", DecideExecuteAgain, func(*Model, *State) bool { return true }),
	[]Action{
		{"carry out", "operator", func(m *Model, s *State, _ int) bool {
			if s.Op.Decision == NoDecision || !m.resolve(s, s.Op) {
				return false
			}
			s.Op = Ruling{}
			return true
		}},
		{"carry out: moved on", "operator", func(m *Model, s *State, _ int) bool {
			if s.Op.Decision == NoDecision || try(s, func(s *State) bool { return m.resolve(s, s.Op) }) {
				return false
			}
			s.Op = Ruling{}
			return true
		}},
	},
)

var restore = Action{"restore from a backup", "operator", func(_ *Model, s *State, _ int) bool {
	if s.Seen.Restores > 0 || s.Seen.Grants == 0 {
		return false
	}
	s.Rec, s.Fences = Record{}, 0
	s.Seen.Restores = 1
	return true
}}

// The steps that only mutations have.
var (
	answerFirst = Action{"answer, record later", "owner", func(_ *Model, s *State, o int) bool {
		w := s.Owner[o]
		if w.Phase != Done || s.Seen.Told != 0 {
			return false
		}
		s.Seen.Told = w.Result
		return true
	}}
	checkThenAct = []Action{
		{"begin: looks, sees it free", "owner", func(m *Model, s *State, o int) bool {
			if s.Owner[o].Phase != Asking || !m.looksFirst(s.Rec) {
				return false
			}
			s.Owner[o].Phase = Looked
			return true
		}},
		{"begin: writes", "owner", func(m *Model, s *State, o int) bool {
			if s.Owner[o].Phase != Looked {
				return false
			}
			m.grant(s, s.token(o))
			s.granted(o, Claimed)
			return true
		}},
	}
)
