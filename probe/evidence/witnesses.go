package evidence

import "slices"

// Reader is a state reader of an operation.
type Reader struct {
	Name string `json:"name"`
	// Outside: it reads an effect outside of the target's own state, such as a
	// mail.
	Outside bool `json:"outside,omitempty"`
	// Seen: it saw the effect of a fresh request, so that it can tell.
	Seen bool `json:"seen,omitempty"`
}

// Witnesses are what the four witnesses say of one experiment, side by side:
// the ids in the answers, the state, the audit trail and the outside; and how
// the second answer compares with the first. Each is judged by itself; what a
// witness could not tell is empty.
type Witnesses struct {
	Experiment string  `json:"experiment"`
	Outcome    Outcome `json:"outcome"`
	// Resources are the ids that answers to the same request named, each once,
	// in the order of the answers; of a race those of the trial with most.
	Resources []string `json:"resources,omitempty"`
	// Answers is how many answers named one, of that trial.
	Answers int      `json:"answers,omitempty"`
	State   []Effect `json:"state,omitempty"`
	Outside []Effect `json:"outside,omitempty"`
	// AuditLines is how many lines of the audit trail belong to the requests;
	// -1 if none was searched for them.
	AuditLines int `json:"audit_lines"`
	// First and Second are the two answers that are compared.
	First  *Answer `json:"first,omitempty"`
	Second *Answer `json:"second,omitempty"`
}

// Effect is what a reader counted, of all trials.
type Effect struct {
	Reader   string `json:"reader"`
	Effects  int64  `json:"effects"`
	Expected int64  `json:"expected"`
}

// Answer is an answer, and how it compares with the one before.
type Answer struct {
	Status int         `json:"status,omitempty"` // 0: there was none
	Class  SecondClass `json:"class,omitempty"`  // of the second only
	// WaitedUS is how long it took from the last byte sent to the first one
	// back, in microseconds; -1 if none came.
	WaitedUS int64  `json:"waited_us"`
	Timing   string `json:"timing,omitempty"` // a hint only; of the second
}

// most answers of one race that are looked at for their ids.
const mostAnswers = 10_000

// Witnesses collates the experiments that sent something.
func (o *Operation) Witnesses() []Witnesses {
	outside := map[string]bool{}
	for _, r := range o.Readers {
		outside[r.Name] = r.Outside
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
		} else if slices.ContainsFunc(o.flat(), func(f Finding) bool { return f.ID == "audit-missing" && f.Experiment == e.Name }) {
			w.AuditLines = 0
		}
		for _, c := range e.Changes {
			list := &w.State
			if outside[c.Reader] {
				list = &w.Outside
			}
			i := slices.IndexFunc(*list, func(f Effect) bool { return f.Reader == c.Reader })
			if i < 0 {
				i = len(*list)
				*list = append(*list, Effect{Reader: c.Reader})
			}
			(*list)[i].Effects += c.Effects
			(*list)[i].Expected += c.Expected
		}
		w.Resources, w.Answers = resources(same, e.Race)
		if e.Race == nil && len(same) > 1 {
			first, second := same[0], same[1]
			w.First = &Answer{Status: first.Status, WaitedUS: waited(first)}
			w.Second = &Answer{Status: second.Status, WaitedUS: waited(second)}
			if s := e.Second; s != nil {
				w.Second.Class, w.Second.Timing = s.Class, s.Timing
				// Before its last byte an answer can only seem to come: the two
				// moments were so close.
				if s.FirstUS > 0 {
					w.First.WaitedUS = s.FirstUS
				}
				if s.SecondUS > 0 {
					w.Second.WaitedUS = s.SecondUS
				}
			}
		}
		all = append(all, w)
	}
	return all
}

// sameRequest returns the sends of an experiment that are compared with each
// other: all but what reads, prepares or controls.
func (e *Experiment) sameRequest() (sends []Send) {
	for _, s := range e.Sends {
		switch s.Role {
		case "read", "warm-up", "control", "reset", "newer", "step":
		default:
			if len(sends) < mostAnswers {
				sends = append(sends, s)
			}
		}
	}
	return sends
}

// resources returns the ids in the answers to a request, and how many answers
// have one; of a race those of the trial with most of them.
func resources(sends []Send, r *Race) (ids []string, answers int) {
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
		if len(of) > len(ids) || len(of) == len(ids) && n > answers {
			ids, answers = of, n
		}
	}
	return ids, answers
}

func waited(s Send) int64 {
	if s.LastWriteUS < 0 || s.FirstByteUS < 0 || s.Status == 0 {
		return -1
	}
	return max(s.FirstByteUS-s.LastWriteUS, 0)
}
