package evidence

import "slices"

// Symptom is a finding that follows from another one: it has the same cause, and
// goes away with it.
type Symptom struct {
	ID         FindingID `json:"id"`
	Title      string    `json:"title"`
	Basis      Basis     `json:"basis"`
	Experiment string    `json:"experiment"`
	Sends      []int     `json:"sends,omitempty"`
}

// Untried is something about an operation that a run did not try.
type Untried struct {
	What string `json:"what"`
	How  string `json:"how"` // what would try it
}

// CauseState is what the experiments show about a possible cause.
type CauseState string

const (
	Supported CauseState = "supported" // the experiment that decides it was made, and fits
	Refuted   CauseState = "refuted"   // it was made, and does not fit
	Open      CauseState = "open"      // it was not made, or cannot be from outside
)

// Cause is a possible cause of a finding, and the experiment that decides it.
type Cause struct {
	Name  string     `json:"name"` // such as check-then-act
	Text  string     `json:"text"`
	State CauseState `json:"state"`
	For   string     `json:"for"`   // what was seen for or against it
	Check string     `json:"check"` // what decides it
}

// FindingOn is like Finding, with a basis and a priority. Its words depend on
// the basis.
func (e Entry) FindingOn(basis Basis, priority Priority, experiment string, sends ...int) Finding {
	f := e.Finding(experiment, sends...)
	f.Basis, f.Priority = basis, priority
	if basis == Inferred && e.Inferred.Explanation != "" {
		f.Title, f.Explanation = e.Inferred.Title, e.Inferred.Explanation
	}
	return f
}

// Words are the title and the explanation of an entry.
type Words struct{ Title, Explanation string }

// All returns the ids of the operation's findings and of their symptoms, each once.
func (o *Operation) All() (ids []FindingID) {
	add := func(id FindingID) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, f := range o.Findings {
		add(f.ID)
		for _, s := range f.Symptoms {
			add(s.ID)
		}
	}
	return ids
}
