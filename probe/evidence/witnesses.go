package evidence

import (
	"slices"
	"strings"
)

// Reader is a state reader of an operation.
type Reader struct {
	Name string `json:"name"`
	// Outside reports whether it reads an effect outside the target's own state,
	// such as a mail.
	Outside bool `json:"outside,omitempty"`
	// Seen reports whether it saw the effect of a fresh request, so that its
	// counts are evidence.
	Seen bool `json:"seen,omitempty"`
	// Uncounted reports whether its requests are not counted among those of the
	// run, because it reads by a command or by the program's own means.
	Uncounted bool `json:"uncounted,omitempty"`
}

// Witnesses are what the four witnesses show about one experiment, side by
// side: the ids in the responses, the state, the audit trail and the outside;
// and how the second response compares with the first. Each is judged by
// itself. The field of a witness that saw nothing is empty.
type Witnesses struct {
	Experiment string  `json:"experiment"`
	Outcome    Outcome `json:"outcome"`
	// Resources are the ids that the responses named, each once, those of First
	// and Second before others; for a race, those of the trial with most.
	Resources []string `json:"resources,omitempty"`
	// Trials is how many trials a race had; 0 if the experiment is not a race.
	// Resources are of one trial, State is of all.
	Trials int `json:"-"`
	// Answers is how many responses of that trial named an id.
	Answers int      `json:"answers,omitempty"`
	State   []Effect `json:"state,omitempty"`
	Outside []Effect `json:"outside,omitempty"`
	// AuditLines is how many lines of the audit trail belong to the requests;
	// -1 if no trail was searched.
	AuditLines int `json:"audit_lines"`
	// First and Second are the two responses that are compared.
	First  *Answer `json:"first,omitempty"`
	Second *Answer `json:"second,omitempty"`
}

// Effect is what a reader counted, over all trials. A reader that has not seen
// the effect of any fresh request does not count as a witness.
type Effect struct {
	Reader  string `json:"reader"`
	Effects int64  `json:"effects"`
	// Expected is the number that is right; -1 if that is what the experiment
	// asks.
	Expected int64 `json:"expected"`
	// Tries is the number of separate requests that were counted, if one was not
	// enough to show anything; 0 if it was, and for a race.
	Tries int `json:"-"`
	// Exact is the number of effects if it is not whole.
	Exact string `json:"exact,omitempty"`
}

// Wrong reports whether the right number is known and is another one.
func (e Effect) Wrong() bool { return e.Expected >= 0 && (e.Effects != e.Expected || e.Exact != "") }

// Answer is a response, and how it compares with the one before.
type Answer struct {
	Status int `json:"status,omitempty"` // 0: there was none
	// SaysError reports whether the body names an error although the status is
	// one of success.
	SaysError bool        `json:"says_error,omitempty"`
	Cut       bool        `json:"cut,omitempty"`   // by the probe, before its end
	Class     SecondClass `json:"class,omitempty"` // of the second only
	// Says is Class in words, as far as the two responses can be compared.
	Says string `json:"-"`
	// WaitedUS is the time from the last byte sent to the first one received, in
	// microseconds; -1 if none came, or if the time is not known.
	WaitedUS int64 `json:"waited_us"`
	// Timing of the second is a hint, and is empty if a reader saw the effects.
	Timing string `json:"timing,omitempty"`
}

// most responses of one race whose ids are looked at.
const mostResponses = 10_000

// Witnesses collates the experiments that sent something.
func (o *Operation) Witnesses() []Witnesses {
	outside, blind := map[string]bool{}, map[string]bool{}
	for _, r := range o.Readers {
		outside[r.Name], blind[r.Name] = r.Outside, !r.Seen
	}
	var all []Witnesses
	for _, e := range o.Experiments {
		same := e.sameRequest()
		if len(same) == 0 && len(e.Changes) == 0 {
			continue
		}
		w := Witnesses{Experiment: e.Name, Outcome: e.Outcome, AuditLines: -1}
		if len(e.Audit) > 0 {
			w.AuditLines = len(e.Audit)
		} else if slices.ContainsFunc(o.flat(), func(f Finding) bool { return f.ID == FindingAuditMissing && f.Experiment == e.Name }) {
			w.AuditLines = 0
		}
		for _, c := range e.Changes {
			if blind[c.Reader] {
				continue
			}
			list := &w.State
			if outside[c.Reader] {
				list = &w.Outside
			}
			i := slices.IndexFunc(*list, func(f Effect) bool { return f.Reader == c.Reader })
			if i < 0 {
				i = len(*list)
				*list = append(*list, Effect{Reader: c.Reader})
			}
			f := &(*list)[i]
			f.Tries++
			f.Effects += c.Effects
			if f.Expected += c.Expected; c.Expected < 0 {
				f.Expected = -1
			}
			if exact, ok := strings.CutPrefix(c.Name, "effects: "); ok {
				f.Exact = exact
			}
		}
		// Each attempt begins with a request in the role of the first.
		tries := 0
		for _, s := range e.Sends {
			if s.Role == RoleFirst {
				tries++
			}
		}
		for _, list := range [][]Effect{w.State, w.Outside} {
			for i := range list {
				if list[i].Tries < 2 || list[i].Tries != tries || e.Race != nil {
					list[i].Tries = 0
				}
			}
		}
		first, second := e.compared(same)
		if e.Race != nil {
			w.Trials = e.Race.Trials
		} else if first != nil && second != nil {
			// The two that are compared come first, as their responses do.
			same = append([]Send{*first, *second}, slices.DeleteFunc(slices.Clone(same), func(s Send) bool { return s.N == first.N || s.N == second.N })...)
		}
		w.Resources, w.Answers = resources(same, e.Race)
		if first != nil {
			w.First = &Answer{Status: first.Status, SaysError: first.SaysError, Cut: first.Cut != "", WaitedUS: waited(*first)}
			if second != nil {
				w.Second = &Answer{Status: second.Status, SaysError: second.SaysError, WaitedUS: waited(*second)}
			}
			if s := e.Second; s != nil && second != nil {
				w.Second.Class, w.Second.Says = s.Class, s.says(*first, *second)
				if w.State == nil && w.Outside == nil {
					w.Second.Timing = s.Timing
				}
				// A response cannot come before the last byte of its request; here the two
				// times were too close to tell.
				if s.FirstUS > 0 && first.Timed() {
					w.First.WaitedUS = s.FirstUS
				}
				if s.SecondUS > 0 && second.Timed() {
					w.Second.WaitedUS = s.SecondUS
				}
			}
		}
		all = append(all, w)
	}
	return all
}

// compared returns the two sends that are compared, or the first alone; none
// for a race.
func (e *Experiment) compared(same []Send) (first, second *Send) {
	if e.Second != nil && len(e.Second.Of) == 2 {
		at := func(n int) *Send {
			if i := slices.IndexFunc(e.Sends, func(s Send) bool { return s.N == n }); i >= 0 {
				return &e.Sends[i]
			}
			return nil
		}
		if first, second = at(e.Second.Of[0]), at(e.Second.Of[1]); first != nil && second != nil {
			return first, second
		}
	}
	if e.Race != nil || len(same) == 0 || same[0].Role == RoleRace {
		return nil, nil
	}
	// Of several attempts to cut a request off, the last one that succeeded.
	for i := len(same) - 1; i > 0; i-- {
		if same[i-1].Cut != "" && same[i].Role == RoleDuplicate {
			return &same[i-1], &same[i]
		}
	}
	first = &same[0]
	if len(same) > 1 && (e.Second != nil || same[1].Role == RoleDuplicate) {
		second = &same[1]
	}
	return first, second
}

// says describes what two responses have in common, and only what can be
// concluded from them.
func (s *Second) says(first, second Send) string {
	empty := first.Bytes == 0 && second.Bytes == 0
	switch s.Class {
	case SameResult:
		switch {
		case s.Resource && !s.Body:
			return "the same resource, told otherwise"
		case s.Resource:
			return "the same result"
		case empty:
			return "the same status, and no body"
		}
		return "the same response"
	case RefusedWithReference:
		return "refused, naming the first result"
	case Refused:
		return "refused"
	case DifferentResult:
		switch {
		case first.Resource != "" && second.Resource != "" && first.Resource != second.Resource:
			return "another result"
		case empty:
			return "another status, and no body"
		}
		return "another response"
	case ErrorOrTimeout:
		switch {
		case second.Status >= 500:
			return "a server error"
		case second.Status == 0:
			return "no response"
		}
		return "not to be compared"
	}
	return ""
}

// Compared says in words how the second response relates to the first. It is empty
// if there are no two responses. first and second are the sends.
func (e *Experiment) Compared() (says string, first, second Send) {
	a, b := e.compared(e.sameRequest())
	if e.Second == nil || a == nil || b == nil {
		return "", first, second
	}
	return e.Second.says(*a, *b), *a, *b
}

// sameRequest returns the sends that an experiment is about: all but those that
// read, prepare, control or show its preconditions, and repeats of those. The
// two that are compared are known by their numbers.
func (e *Experiment) sameRequest() (sends []Send) {
	other := false // what was sent last is another request
	for _, s := range e.Sends {
		switch s.Role {
		case "newer":
			other = true
			continue
		case RoleControl:
			// A later one is sent once, beside the request, to compare with.
			other = other || len(sends) == 0
			continue
		case RoleRead, RoleWarmUp, RoleReset, RoleStep, RoleExpired, RoleGround, RoleStale, RoleForged:
			continue
		case RoleDuplicate:
			if other {
				continue
			}
		default:
			other = false
		}
		if len(sends) < mostResponses {
			sends = append(sends, s)
		}
	}
	return sends
}

// resources returns the ids in the responses to a request, and how many
// responses have one; for a race, those of the trial with most of them.
func resources(sends []Send, r *Race) (ids []string, responses int) {
	width := len(sends)
	if r != nil && r.Width > 0 {
		width = r.Width
	}
	for ; len(sends) > 0; sends = sends[min(width, len(sends)):] {
		var of []string
		n := 0
		for _, s := range sends[:min(width, len(sends))] {
			if s.Resource == "" {
				continue
			}
			n++
			if !slices.Contains(of, s.Resource) {
				of = append(of, s.Resource)
			}
		}
		if len(of) > len(ids) || len(of) == len(ids) && n > responses {
			ids, responses = of, n
		}
	}
	return ids, responses
}

func waited(s Send) int64 {
	if s.LastWriteUS < 0 || s.FirstByteUS < 0 || s.Status == 0 || !s.Timed() {
		return -1
	}
	return max(s.FirstByteUS-s.LastWriteUS, 0)
}

// Timed reports whether the time of the response is known. The time of the last
// byte is taken after it has left, and sometimes so late that the response has
// already arrived. So a wait of less than a millisecond that is shorter than what
// came before it does not count.
func (s Send) Timed() bool {
	wait := s.FirstByteUS - s.LastWriteUS
	return wait >= 1000 || wait >= s.LastWriteUS-s.StartUS
}
