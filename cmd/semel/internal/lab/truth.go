package lab

// Truth is what must be said of an operation that is reached by REST with an
// Idempotency-Key, while Before is long enough for requests to cross in it. It is
// worked out from the switches alone. A field has one value, or several where
// nobody could tell them apart from outside.
type Truth struct {
	Support, Scope, Replay, InProgress, Race, Retry []string
}

// TruthOf is the truth of switches without faults, and with an outbox.
func TruthOf(s Switches) Truth {
	one := func(v string) []string { return []string{v} }
	keyed := s.Key != KeyIgnored
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

	t.Race, t.Retry = one("double_apply"), one("unsafe_retry")
	if locked || s.Unique {
		t.Race, t.Retry = one("safe_converge"), one("safe_stop")
	}
	return t
}
