package lab

// Truth is what must be said of an operation that is reached in one of Ways, while
// Before is long enough for requests to cross in it. It is worked out from the switches
// alone. A field has one value, or several that are all true.
type Truth struct {
	Support, Scope, Replay, InProgress, Race, Retry []string
}

// TruthOf is the truth of switches with Failures, and without faults that the probe
// cannot tell from a service that is down. Before is shorter than lockFor.
func TruthOf(way string, s Switches) Truth {
	one := func(v string) []string { return []string{v} }
	// By a clock that is ahead, a key has ended as soon as it is asked for again.
	keyed := s.Key != KeyIgnored && (s.Lease || !s.ClockSkew)
	locked := keyed && s.InProgress
	var t Truth

	switch {
	case keyed && s.Unique:
		// Both are true: the key is known, and the same body under another key is
		// refused.
		t.Support = []string{"header_key", "natural_key"}
	case keyed:
		t.Support = one("header_key")
	case s.Unique:
		t.Support = one("natural_key")
	default:
		t.Support = one("none")
	}

	switch {
	case !keyed && s.Unique:
		// A reference is its caller's: others can use the same.
		t.Scope = []string{"unknown", "partial", "tenant+actor+operation"}
	case !keyed:
		t.Scope = one("unknown")
	case s.Scope && s.Replay:
		t.Scope = []string{"tenant+actor+operation", "partial"}
	case s.Scope:
		// Who never gets a replay cannot show that others get none.
		t.Scope = []string{"tenant+actor+operation", "partial", "unknown"}
	case s.Replay:
		t.Scope = one("weak")
	default:
		t.Scope = []string{"weak", "unknown"}
	}

	switch {
	case keyed && s.Replay:
		t.Replay = one("same_response")
	case keyed:
		t.Replay = one("unknown") // refused, without a reference
	case s.Unique:
		t.Replay = one("conflict_with_reference")
	default:
		t.Replay = one("unknown")
	}

	switch {
	case locked:
		t.InProgress = one("yes")
	case s.Unique:
		// It is refused after the first has committed: told late, or not at all.
		t.InProgress = []string{"yes", "no", "unknown"}
	default:
		t.InProgress = one("no")
	}

	if way == "webhook" {
		// A sender makes one id for each event, so the same event has no other id; and
		// there is one sender.
		if keyed || s.Unique {
			t.Support = one("event_id")
		}
		t.Scope = one("unknown")
	}

	t.Race, t.Retry = one("double_apply"), one("unsafe_retry")
	if locked || s.Unique {
		t.Race, t.Retry = one("safe_converge"), one("safe_stop")
	}
	return t
}

// Unknowable is a field of which nobody can know the truth from outside.
type Unknowable struct {
	Field, Way string
	When       func(Switches) bool
	Why        string
}

// Unknowables are all there are: there "unknown" is a right answer too.
var Unknowables = []Unknowable{
	{
		"in_progress_handling", "webhook", Switches.semels,
		"Senders are told 503 and when to come again, as for any other reason: some never come again after a 409.",
	},
	{
		"race_behavior", "webhook", Switches.semels,
		"All but one of those that come at the same time are answered 503, which does not say that they were worked on.",
	},
	{
		"idempotency_support", "job", func(s Switches) bool { return s.Unique },
		"A second job for the same reference is accepted with 202, and refused by the database when nobody is listening any more.",
	},
}
