package plan

import "cmp"

// profiles are the contracts with a name. What they leave nil or empty is left
// open by what they are named after, and is not judged.
var profiles = map[string]Contract{
	// draft-ietf-httpapi-idempotency-key-header-07.
	"ietf": {
		Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{422}, InFlight: []int{409},
		InFlightWaits: new(true), Replay: "original", FreshKey: "creates",
	},
	// Stripe's API v1: the key is optional; a recorded response may be a 500.
	"stripe": {
		Malformed: []int{400}, Mismatch: []int{400, 409}, InFlight: []int{409},
		InFlightWaits: new(false), Replay: "original", ReplayHeader: "Idempotent-Replayed", FreshKey: "creates", RecordsErrors: new(true),
	},
	// OASIS Repeatable Requests 1.0: a first attempt that failed may be
	// executed again.
	"oasis": {
		Malformed: []int{400}, Mismatch: []int{400}, InFlight: []int{409},
		InFlightWaits: new(true), Replay: "original", FreshKey: "creates",
	},
	"custom": {FreshKey: "creates"},
}

// AssumesContract reports whether an operation's contract requires keys only by
// default: neither the operation nor the plan names a contract, or the named
// contract has neither a profile nor the statuses for a request without a key.
func (p *Plan) AssumesContract(op *Operation) bool {
	c := p.named(op)
	return c == nil || c.Profile == "" && c.Missing == nil
}

// AssumesReplay reports whether it is only by default that an operation's contract
// says what a duplicate gets.
func (p *Plan) AssumesReplay(op *Operation) bool {
	c := p.named(op)
	return c == nil || c.Profile == "" && c.Replay == ""
}

// named is the contract that an operation or the plan names, nil if none does.
func (p *Plan) named(op *Operation) *Contract {
	if op.Contract == nil && p.assumed {
		return nil
	}
	return cmp.Or(op.Contract, p.Contract)
}

// ContractFor returns an operation's contract in full: its own or the plan's,
// with what that leaves out taken from its profile.
func (p *Plan) ContractFor(op *Operation) Contract {
	var c Contract
	switch {
	case op.Contract != nil:
		c = *op.Contract
	case p.Contract != nil:
		c = *p.Contract
	}
	c.Profile = cmp.Or(c.Profile, "ietf")
	base := profiles[c.Profile]
	for _, list := range []struct{ own, base *[]int }{
		{&c.Missing, &base.Missing},
		{&c.Malformed, &base.Malformed},
		{&c.Mismatch, &base.Mismatch},
		{&c.InFlight, &base.InFlight},
	} {
		if *list.own == nil { // empty is not unset: none is expected
			*list.own = append([]int(nil), *list.base...)
		}
	}
	c.InFlightWaits = cmp.Or(c.InFlightWaits, base.InFlightWaits)
	c.RecordsErrors = cmp.Or(c.RecordsErrors, base.RecordsErrors)
	c.Replay = cmp.Or(c.Replay, base.Replay)
	c.ReplayHeader = cmp.Or(c.ReplayHeader, base.ReplayHeader)
	c.FreshKey = cmp.Or(c.FreshKey, base.FreshKey)
	return c
}
