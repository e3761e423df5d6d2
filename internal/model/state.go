package model

import (
	"fmt"
	"strings"
)

// owners is how many processes there are, attempts how often a client asks
// each of them.
const (
	owners   = 2
	attempts = 2
)

// State is everything there is at one moment. It is comparable: two states
// that are equal have the same future.
type State struct {
	Rec    Record
	Fences uint8 // the store's counter
	Owner  [owners]Owner
	Net    Message
	Op     Ruling
	World  World
	Seen   Seen
}

// RecordState is the state of the identity's record.
type RecordState uint8

// The states of a record. A completed record whose retention is over is
// absent to all but the sweep.
const (
	Absent RecordState = iota
	InProgress
	Completed
	Unknown
)

var recordStates = [...]string{Absent: "absent", InProgress: "in_progress", Completed: "completed", Unknown: "unknown"}

// Record is what the store holds for the identity.
type Record struct {
	State    RecordState
	Fence    uint8
	Token    Token // none once a resolution has ended the claim
	Lapsed   bool
	Reopened bool
	Expired  bool
	Result   Result
	grant    uint8 // which grant of Seen.Grants the claim is: what fence and token stand for
}

func (r Record) absent() bool { return r.State == Absent || r.State == Completed && r.Expired }

// open: whoever may settle it, may.
func (r Record) open() bool { return r.State == Unknown || r.State == InProgress && r.Lapsed }

// Token names an attempt. Zero is none.
type Token uint8

func tokenOf(owner int, attempt uint8) Token { return Token(owner*attempts) + Token(attempt) }

func (t Token) String() string {
	if t == 0 {
		return "none"
	}
	return fmt.Sprintf("%d%c", (t-1)/attempts+1, 'a'+(t-1)%attempts)
}

// Result numbers the effect that it tells of. What an operator or
// a reconciliation learned of that effect is another result than its owner's.
type Result uint8

const learned Result = 1 << 7

func (r Result) String() string {
	s := fmt.Sprintf("of effect %d", r&^learned)
	if r&learned != 0 {
		s += "(learned)"
	}
	return s
}

// Phase is how far an owner has come with its attempt.
type Phase uint8

// The phases of an attempt.
const (
	Idle       Phase = iota
	Asking           // wants the claim: begin, again if its answer was lost
	Looked           // mutations only: saw the identity free, has written nothing
	Abandoning       // its caller was told "unavailable"; a claim granted meanwhile must go
	Marking          // hold: saw a lapsed lease, wants the record marked unknown
	Looking          // reconcile: saw an open outcome, wants to know what became of the effect
	Settling         // reconcile: knows that the effect happened
	Claimed          // was granted the claim, has not sent anything
	Sent             // has sent the request for the effect
	Done             // knows the effect's result
	Refused          // knows that it had no effect
	Unclear          // will not learn what came of its request
)

var phases = [...]string{
	"idle", "asking", "looked", "abandoning", "marking", "looking", "settling",
	"claimed", "sent", "done", "refused", "unclear",
}

// Owner is a process, with what it knows of its current attempt.
type Owner struct {
	Phase    Phase
	Attempt  uint8 // 0 before the first
	Saw      uint8 // the fence of the record that it met and may take over or settle
	Fence    uint8
	Doubt    bool // the claim follows, or may follow, one whose effect is not known
	UnderWay bool // its request is travelling
	Result   Result
	grant    uint8
}

// over drops everything but the count of attempts.
func (o *Owner) over() { *o = Owner{Attempt: o.Attempt} }

// Call is a call of the store.
type Call uint8

// The calls that can be delayed.
const (
	NoCall Call = iota
	Begin
	Complete
	Release
	Hold
	Renew
)

var calls = [...]string{"none", "begin", "complete", "release", "hold", "renew"}

// Message is a call that has not reached the store: its caller has had no
// answer and may have gone on.
type Message struct {
	Call     Call
	Token    Token
	Takeover uint8
	Fence    uint8
	Result   Result
	grant    uint8
}

// Decision is an operator's.
type Decision uint8

// The decisions. DecideUnknown is the guard's.
const (
	NoDecision Decision = iota
	DecideUnknown
	DecideResult
	DecideNoEffect
	DecideExecuteAgain
)

var decisions = [...]string{"none", "unknown", "result", "no effect", "execute again"}

// Ruling is what an operator made of the record with Fence, and may carry out
// any time later.
type Ruling struct {
	Decision Decision
	Fence    uint8
	Result   Result
	grant    uint8
}

// World is where the effect is, beyond the store's reach.
type World struct {
	Orphans uint8  // requests under way whose answers nobody will hear
	Effects uint8  // how many took effect since the identity last expired
	Result  Result // of the latest
}

// Seen is what an observer of everything notes down for the invariants. No
// step depends on it, except that Faults and Restores bound the model.
type Seen struct {
	Grants   uint8  // fences issued, ever
	Effects  uint8  // ever
	Allowed  uint8  // effects allowed: one, and one for each deliberate repetition
	Told     Result // the first that a client was told
	Faults   uint8
	Restores uint8
	broken   brokenSet
}

func (s State) String() string {
	var b strings.Builder
	r := s.Rec
	b.WriteString("record " + recordStates[r.State])
	if r.State != Absent {
		fmt.Fprintf(&b, " fence %d token %v", r.Fence, r.Token)
	}
	if r.Result != 0 {
		fmt.Fprintf(&b, " result %v", r.Result)
	}
	for _, f := range []struct {
		is   bool
		name string
	}{{r.Lapsed, " lapsed"}, {r.Reopened, " reopened"}, {r.Expired, " expired"}} {
		if f.is {
			b.WriteString(f.name)
		}
	}
	for i, o := range s.Owner {
		fmt.Fprintf(&b, " | owner %d ", i+1)
		if o.Phase == Idle {
			b.WriteString("idle")
			continue
		}
		fmt.Fprintf(&b, "%v %s", tokenOf(i, o.Attempt), phases[o.Phase])
		if o.Fence != 0 {
			fmt.Fprintf(&b, " fence %d", o.Fence)
		}
		if o.Saw != 0 {
			fmt.Fprintf(&b, " saw fence %d", o.Saw)
		}
		if o.Doubt {
			b.WriteString(" in doubt")
		}
	}
	if s.Net.Call != NoCall {
		fmt.Fprintf(&b, " | delayed %s of %v", calls[s.Net.Call], s.Net.Token)
	}
	if s.Op.Decision != NoDecision {
		fmt.Fprintf(&b, " | operator: fence %d is %q", s.Op.Fence, decisions[s.Op.Decision])
	}
	fmt.Fprintf(&b, " | effects %d", s.World.Effects)
	if s.underWay() {
		b.WriteString(", one under way")
	}
	return b.String()
}

// underWay: an effect has been asked for and may yet happen.
func (s *State) underWay() bool {
	for _, o := range s.Owner {
		if o.UnderWay {
			return true
		}
	}
	return s.World.Orphans > 0
}
