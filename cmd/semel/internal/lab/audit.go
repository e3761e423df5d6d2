package lab

import (
	"cmp"
	"net/http"
	"slices"
	"time"
)

// Audit is what the trail has of an operation.
type Audit struct {
	Operation  string `json:"operation"`
	Attempts   int    `json:"attempts"`
	Duplicates int    `json:"duplicates"`        // told that it was asked for before, and done nothing
	InProgress int    `json:"in_progress"`       // of these, while the first was being worked on
	Collisions int    `json:"unique_collisions"` // refused by the database
	Jobs       int    `json:"jobs"`              // accepted
	Died       int    `json:"died"`              // with the process
	// Decisions are all of them, by name.
	Decisions map[string]int `json:"decisions"`
}

// auditOf counts attempts.
func auditOf(operation string, attempts []Attempt) Audit {
	n := Audit{Operation: operation, Decisions: map[string]int{}}
	for _, a := range attempts {
		if a.Operation != operation {
			continue
		}
		n.Attempts++
		if a.Decision != "" {
			n.Decisions[a.Decision]++
		}
		switch a.Decision {
		case decidedReplayed, decidedUsedUp, decidedMismatch, decidedUnknown:
			n.Duplicates++
		case decidedInProgress:
			n.Duplicates++
			n.InProgress++
		case decidedCollision:
			n.Collisions++
		}
		if a.Path == "job" && a.Status == http.StatusAccepted && !a.Replayed {
			n.Jobs++
		}
		if a.Died {
			n.Died++
		}
	}
	return n
}

// audit answers what the trail has of each operation.
func (l *Lab) audit(w http.ResponseWriter, _ *http.Request) {
	attempts, _ := l.trail.list("", mostAttempts)
	list := []Audit{}
	for _, o := range Operations {
		list = append(list, auditOf(o.Name, attempts))
	}
	writeJSON(w, http.StatusOK, map[string]any{"items": list})
}

// Event is something that happened because of a request.
type Event struct {
	At        time.Time `json:"at"`
	What      string    `json:"what"` // request, worker, effect, mail or hook
	Name      string    `json:"name"` // of the request, the effect or the message
	Operation string    `json:"operation"`
	Reference string    `json:"reference"`
	Told      string    `json:"told"`
}

// trace answers what happened under one trace id: the request, the job, the effect and
// what was sent, in the order in which it began.
func (l *Lab) trace(w http.ResponseWriter, r *http.Request) {
	id, list := r.PathValue("id"), []Event{}
	attempts, _ := l.trail.find(func(a *Attempt) bool { return a.Trace == id }, mostAttempts)
	for _, a := range attempts {
		what, told := "request", a.Decision
		if a.Path == "worker" {
			what = "worker"
		}
		if len(a.Steps) > 0 {
			told = a.Steps[len(a.Steps)-1].What
		}
		list = append(list, Event{a.Begun, what, cmp.Or(a.Job, a.Request), a.Operation, a.Reference, told})
	}
	for _, o := range Operations {
		made, err := l.query(r.Context(), o, "trace = $1 AND operation = $2 AND done = 1 LIMIT 100", id, o.Name)
		if err != nil {
			problem(w, http.StatusInternalServerError, err.Error())
			return
		}
		for _, e := range made {
			list = append(list, Event{e.At, "effect", e.ID, e.Operation, e.Reference, "done"})
		}
	}
	for _, m := range l.world.because(id) {
		list = append(list, Event{m.At, m.Topic, m.ID, m.Operation, m.Reference, m.To})
	}
	slices.SortStableFunc(list, func(a, b Event) int { return a.At.Compare(b.At) })
	writeJSON(w, http.StatusOK, map[string]any{"trace_id": id, "items": list})
}
