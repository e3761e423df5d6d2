package probe

import (
	"os"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/har"
	"github.com/semelhq/semel/probe/plan"
)

// collate records the readers, by which reports distinguish the state from the
// outside.
func (o *operation) collate() {
	o.ev.Readers = nil
	for _, rd := range o.readers {
		o.ev.Readers = append(o.ev.Readers, evidence.Reader{Name: rd.name, Outside: rd.outside, Seen: rd.seen, Uncounted: rd.uncounted})
	}
}

// maxDrawn limits the drawn values of an experiment that are recorded: those of
// its first requests, which are the ones a person sends again.
const maxDrawn = 64

// drew records the values that were drawn for a request.
func (x *exp) drew(v *plan.Values) {
	for _, s := range v.Fresh() {
		if len(x.e.Drawn) < maxDrawn && !slices.Contains(x.e.Drawn, s) {
			x.e.Drawn = append(x.e.Drawn, s)
		}
	}
}

// nameSecrets records the source of each secret whose placeholder is in the
// evidence: the name of a variable or a file, never its content.
func (r *runner) nameSecrets(red *har.Redactor) {
	env := r.o.Source.Env
	if env == nil {
		env = os.LookupEnv
	}
	for _, s := range r.r.Secrets() {
		// A secret has several forms. What a person gives is the plain one.
		if name, ok := strings.CutPrefix(s.From, "env "); ok {
			if value, ok := env(name); !ok || value != s.Value {
				continue
			}
		}
		n := evidence.SecretName{Placeholder: red.String(s.Value), From: s.From}
		if !slices.Contains(r.ev.Secrets, n) {
			r.ev.Secrets = append(r.ev.Secrets, n)
		}
	}
}

// How often each reader reads at least: before a request, and until the state is
// stable after it.
const (
	readsBefore = 2
	readsAfter  = 3
)

// planReadsOf counts, in a dry run, what is read for n requests of a role: those
// of a race are read together, trial by trial.
func (x *exp) planReadsOf(role evidence.Role, n int) {
	switch role {
	case evidence.RoleRead, evidence.RoleReset, evidence.RoleStep:
	case evidence.RoleRace:
		x.planReads((readsBefore + readsAfter) * max(n/x.o.r.p.Race.Width, 1))
	default:
		x.planReads(readsAfter * n)
	}
}

// planReads counts, in a dry run, what each reader by http would read.
func (x *exp) planReads(times int) {
	if !x.o.r.dry() {
		return
	}
	for i := range x.o.op.Readers {
		if x.o.op.Readers[i].HTTP != nil {
			x.o.r.plannedReads += times
		}
	}
	if x.o.op.Poll.URL != "" {
		x.o.r.plannedReads += times
	}
}
