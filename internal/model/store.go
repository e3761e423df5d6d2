package model

// The store's methods: the contract of semel.Store, semel.Claim,
// semel.Resolver and semel.Sweeper, and the mutations of it.

// issue gives the record the next fence.
func (m *Model) issue(s *State) {
	s.Fences++
	s.Seen.Grants++
	s.Rec.Fence = s.Fences
	s.Rec.grant = s.Seen.Grants
	s.check(FencesUnique, s.Rec.Fence == s.Rec.grant)
}

func (m *Model) remove(s *State) {
	s.Rec = Record{}
	if m.Mutation == FenceRestarts {
		s.Fences = 0
	}
}

// begin grants the identity to the attempt with token t.
func (m *Model) begin(s *State, t Token, takeover uint8) bool {
	r := &s.Rec
	same := r.Token == t && m.Mutation != NoToken
	if m.Mutation == SharedToken {
		same = true
	}
	switch {
	case r.absent():
		m.grant(s, t)
	case r.State == InProgress && same:
		r.Lapsed = false // the same claim again
	case m.Mutation == BeginRevives && same:
		s.check(CompletedKept, r.State != Completed)
		*r = Record{State: InProgress, Fence: r.Fence, Token: r.Token, grant: r.grant}
	case takeover != 0 && takeover == r.Fence && (r.open() || m.Mutation == TakeoverOfLive && r.State == InProgress),
		m.Mutation == LapsedIsFree && r.State == InProgress && r.Lapsed:
		m.grant(s, t)
	default:
		return false
	}
	return true
}

// grant writes a new claim over whatever is there.
func (m *Model) grant(s *State, t Token) {
	before := s.Rec
	s.check(OneClaim, before.absent() || before.open())
	s.check(CompletedKept, before.State != Completed || before.Expired)
	s.Rec = Record{State: InProgress, Token: t}
	m.issue(s)
	if m.Mutation == TakeoverKeepsFence && !before.absent() {
		s.Rec.Fence = before.Fence
		s.check(FencesUnique, false)
	}
	if m.Mutation == TakeoverKeepsReopened {
		s.Rec.Reopened = before.Reopened
	}
}

// owns: the record carries the claim's fence and token.
func (m *Model) owns(r Record, fence uint8, t Token) bool {
	return !r.absent() && r.Fence == fence && (r.Token == t || m.Mutation == NoToken)
}

// complete, release, hold and renew are a claim's methods. They report whether
// they succeeded; if not, the claim is lost.
func (m *Model) complete(s *State, c claim, res Result) bool {
	r := &s.Rec
	switch {
	case m.Mutation == CompleteWithoutFence && !r.absent():
	case m.Mutation == CompleteAfterResolve && r.State == Completed && r.Fence == c.fence:
	case !m.owns(*r, c.fence, c.token):
		return false
	case r.State == Completed:
		return true // asked for again
	}
	s.check(NoZombie, r.grant == c.grant && r.State != Completed)
	s.check(CompletedKept, r.State != Completed)
	r.complete(res)
	return true
}

func (r *Record) complete(res Result) {
	*r = Record{State: Completed, Fence: r.Fence, Token: r.Token, Result: res, grant: r.grant}
}

func (m *Model) release(s *State, c claim) bool {
	switch {
	case m.Mutation == ReleaseWithoutFence && !s.Rec.absent():
	case !m.owns(s.Rec, c.fence, c.token), s.Rec.State == Completed:
		return false
	}
	s.check(NoZombie, s.Rec.grant == c.grant)
	m.free(s)
	return true
}

// free ends the record because its effect did not happen.
func (m *Model) free(s *State) {
	s.check(ReleasedTrue, s.World.Effects == 0 && !s.underWay())
	m.remove(s)
}

func (m *Model) hold(s *State, c claim) bool {
	r := &s.Rec
	switch {
	case !m.owns(*r, c.fence, c.token):
		return false
	case r.State == Completed && m.Mutation != HoldOverwrites:
		return false
	}
	s.check(NoZombie, r.grant == c.grant)
	s.check(CompletedKept, r.State != Completed)
	r.State, r.Result = Unknown, 0
	return true
}

func (m *Model) renew(s *State, c claim) bool {
	r := &s.Rec
	if r.State != InProgress || !m.owns(*r, c.fence, c.token) && m.Mutation != RenewWithoutFence {
		return false
	}
	s.check(StaleNotKept, r.grant == c.grant)
	r.Lapsed = false
	return true
}

// resolve reports whether the ruling was carried out.
func (m *Model) resolve(s *State, ru Ruling) bool {
	r := &s.Rec
	switch {
	case r.absent(), r.Fence != ru.Fence && m.Mutation != ResolveWithoutFence, !r.open():
		return false
	case m.Mutation != LookFirst && ru.Decision != DecideUnknown && r.State != Unknown:
		return false
	}
	s.check(ResolvesOwn, r.grant == ru.grant)
	if m.Mutation != ResolveKeepsToken && m.Mutation != CompleteAfterResolve && ru.Decision != DecideUnknown {
		r.Token = 0
	}
	switch ru.Decision {
	case DecideUnknown:
		r.State = Unknown
	case DecideResult:
		r.complete(ru.Result)
	case DecideNoEffect:
		m.free(s)
	case DecideExecuteAgain:
		if s.World.Effects > 0 || !m.over(s) {
			s.Seen.Allowed++
		}
		m.issue(s)
		r.State, r.Lapsed, r.Reopened = InProgress, true, true
	}
	return true
}

// sweep removes the record if it may.
func (m *Model) sweep(s *State) bool {
	r := s.Rec
	switch {
	case r.State == Completed && r.Expired:
	case m.Mutation == SweepInProgress && r.open():
	case m.Mutation == SweepEarly && r.State == Completed:
	default:
		return false
	}
	s.check(SweepSpares, r.State == Completed)
	s.check(CompletedKept, r.State != Completed || r.Expired)
	m.remove(s)
	return true
}
