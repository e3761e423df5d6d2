package plan

import (
	"errors"

	"github.com/semelhq/semel/internal/strict"
)

func (p *Plan) checkExperiments(ps *problems, op *Operation, list []Experiment, at string) {
	seen := map[Experiment]bool{}
	for i, e := range list {
		at := strict.Index(at, i)
		switch {
		case seen[e]:
			ps.Add(at, "is given twice")
		case e.NeverInProduction() && p.inProduction():
			ps.Add(at, "is refused in production: it races, cuts off or provokes failures")
		case op != nil:
			if err := p.Applies(op, e); err != nil {
				ps.Add(at, "%v", err)
			}
		}
		seen[e] = true
	}
}

// Applies returns an error that says what an operation lacks for an experiment
// to mean anything, or nil if it can be run. If the experiment is in the
// operation's own list, that is a problem of the plan; if it is in the plan's
// list, it is left out for the operation.
func (p *Plan) Applies(op *Operation, e Experiment) error {
	d := p.WithDefaults()
	lacks := ""
	switch e {
	case Specification:
		if p.Target.Specification == "" {
			lacks = "target.specification"
		}
	case Altered:
		if op.Altered == nil {
			lacks = "altered"
		}
	case RaceAltered:
		switch {
		case op.Key == nil:
			lacks = "key"
		case op.Altered == nil:
			lacks = "altered"
		case d.Race.Width > d.Budget.MaxSends:
			return errors.New("race.width is more than budget.max_sends")
		}
	case Corrected:
		switch {
		case op.Key == nil:
			lacks = "key"
		case op.Invalid == nil:
			lacks = "invalid"
		}
	case SameMeaning:
		if op.Request.Body.json() == nil {
			return errors.New("the request has no json or graphql body that could be written in another form")
		}
	case PreviewFirst:
		if op.Preview == nil {
			lacks = "preview"
		}
	case OtherInstance:
		if p.Target.Instance == "" {
			lacks = "target.instance"
		}
	case OtherOperation:
		other, err := p.Operation(op.OtherOperation)
		switch {
		case op.OtherOperation == "" || err != nil:
			lacks = "other_operation"
		case op.Key == nil || other.Key == nil:
			return errors.New("both operations need a key")
		case op.Signature != nil || other.Signature != nil:
			return errors.New("events are not sent under the key of another operation")
		}
	case RetentionSearch:
		if p.Target.RetentionSearch == 0 {
			lacks = "target.retention_search"
		} else if p.Target.RetentionSearch >= d.Budget.MaxTime {
			return errors.New("target.retention_search is not shorter than budget.max_time")
		}
	case MissingKey, MalformedKey, FreshKey:
		if op.Key == nil {
			lacks = "key"
		}
	case OtherActor:
		if p.Principals.ActorB == nil {
			lacks = "principals.actor_b"
		}
	case OtherTenant:
		if p.Principals.TenantB == nil {
			lacks = "principals.tenant_b"
		}
	case Redelivery:
		if op.Signature == nil {
			lacks = "signature"
		}
	case RetentionEdge:
		if p.Target.Retention == 0 {
			lacks = "target.retention"
		} else if p.Target.Retention >= d.Budget.MaxTime {
			return errors.New("target.retention is not shorter than budget.max_time")
		}
	case RaceSame:
		if d.Race.Width > d.Budget.MaxSends {
			return errors.New("race.width is more than budget.max_sends")
		}
	}
	if lacks != "" {
		return errors.New("the plan says nothing under " + lacks)
	}
	return nil
}
