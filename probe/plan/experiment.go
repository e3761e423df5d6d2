package plan

// Experiment names an experiment.
type Experiment string

// The experiments.
const (
	Specification Experiment = "specification" // what the target's own document says
	Duplicate     Experiment = "duplicate"     // the same request again, once the first was answered
	RaceSame      Experiment = "race"          // the same request several times at once
	Altered       Experiment = "altered"       // the same key, another request
	MissingKey    Experiment = "missing_key"
	MalformedKey  Experiment = "malformed_key"
	OtherActor    Experiment = "other_actor"    // the same key, sent by actor B
	OtherTenant   Experiment = "other_tenant"   // the same key, sent by tenant B
	FreshKey      Experiment = "fresh_key"      // the same body, another key
	LostUnread    Experiment = "lost_unread"    // cut off after the last byte of the request, then again
	LostBegun     Experiment = "lost_begun"     // cut off after the first byte of the response, then again
	InFlight      Experiment = "in_flight"      // again while the first is running
	Reordered     Experiment = "reordered"      // two requests, the second of which arrives first
	LateRetry     Experiment = "late_retry"     // again after a while
	FailedFirst   Experiment = "failed_first"   // the first attempt is made to fail
	Redelivery    Experiment = "redelivery"     // one event: same, signed anew, stale, altered
	RetentionEdge Experiment = "retention_edge" // again just before keys are forgotten

	PreviewFirst    Experiment = "preview"          // the target's own dry run, before anything has effects
	SameMeaning     Experiment = "same_meaning"     // the same JSON in other bytes, under the same key
	Corrected       Experiment = "corrected"        // a request that was refused as invalid, corrected under the same key
	OtherInstance   Experiment = "other_instance"   // the same request again, to another instance
	OtherOperation  Experiment = "other_operation"  // another operation under the same key
	RaceAltered     Experiment = "race_altered"     // a request and its alteration under one key at once
	RetentionSearch Experiment = "retention_search" // again after longer and longer, until the key is forgotten
)

// Experiments lists all experiments, in the order they are run.
func Experiments() []Experiment {
	return []Experiment{
		Specification, PreviewFirst, Duplicate, FreshKey, LateRetry, OtherInstance, SameMeaning, Altered, Corrected, MissingKey, MalformedKey,
		OtherActor, OtherTenant, OtherOperation, InFlight, RaceSame, RaceAltered, LostUnread, LostBegun, FailedFirst, Reordered, Redelivery,
		RetentionEdge, RetentionSearch,
	}
}

// NeverInProduction reports whether an experiment is refused in production
// because it races, cuts off or provokes failures. There is deliberately no way
// to allow it.
func (e Experiment) NeverInProduction() bool {
	switch e {
	case RaceSame, RaceAltered, LostUnread, LostBegun, InFlight, Reordered, FailedFirst:
		return true
	}
	return false
}

// ExperimentsFor returns what to run for an operation, in the order of
// [Experiments]: its own, else the plan's, else the default.
func (p *Plan) ExperimentsFor(op *Operation) []Experiment {
	chosen := op.Experiments
	if len(chosen) == 0 {
		chosen = p.Experiments
	}
	if len(chosen) == 0 {
		chosen = op.usual()
	}
	var list []Experiment
	for _, e := range Experiments() {
		for _, c := range chosen {
			if c == e {
				list = append(list, e)
				break
			}
		}
	}
	return list
}

// usual are the experiments on an operation for which none are named. A preview
// goes before anything that has effects.
func (op *Operation) usual() []Experiment {
	if op.Preview != nil {
		return []Experiment{Specification, PreviewFirst, Duplicate}
	}
	return []Experiment{Specification, Duplicate}
}
