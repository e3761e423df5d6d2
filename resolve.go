package semel

import (
	"context"
	"fmt"
)

const (
	// DecideUnknown marks a lapsed record unknown, and no longer reopened.
	// The fence stays, so the owner may still settle the record, but it can
	// no longer renew its claim.
	DecideUnknown Decision = iota + 1
	// DecideResult completes the record with a result learned elsewhere.
	DecideResult
	// DecideNoEffect removes the record: the effect certainly never happened
	// and the identity is free again.
	DecideNoEffect
	// DecideExecuteAgain gives the record a new fence and lets the next
	// submit of the same request execute. The fingerprint stays: another
	// request under this key is still a mismatch.
	DecideExecuteAgain
)

// Decision is how an unknown outcome is settled.
type Decision uint8

func (d Decision) String() string {
	if int(d) < len(decisionNames) && d > 0 {
		return decisionNames[d]
	}
	return fmt.Sprintf("Decision(%d)", uint8(d))
}

// Resolve settles an unknown outcome by hand. See Resolution.
func (g *Guard) Resolve(ctx context.Context, r Resolution) (Record, error) {
	if g.resolver == nil {
		return Record{}, fmt.Errorf("semel: resolve: %T is no Resolver", g.store)
	}
	ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	return g.resolver.Resolve(ctx, r)
}

var decisionNames = [...]string{
	DecideUnknown: "unknown", DecideResult: "result", DecideNoEffect: "no_effect", DecideExecuteAgain: "execute_again",
}

// Resolution settles the record of Identity, provided that it still has Fence
// and is unknown; DecideUnknown instead needs it in progress with a lapsed
// lease, or finds it done. Otherwise nothing is written and the error is
// ErrStaleFence, or ErrNotFound if there is no record.
//
// So the order is: mark, then look, then settle. The owner of a record that
// has merely lapsed may come back, renew its claim and have its effect after
// somebody looked and saw none. Of one that is marked unknown it cannot.
//
// Every decision but DecideUnknown ends the old claim: the record, if it
// remains, has a new fence, and whatever the owner still tries is ErrLostClaim.
type Resolution struct {
	Identity Identity
	Fence    uint64
	Decision Decision
	// Result goes with DecideResult.
	Result Result
	// Cause says why, for the audit trail and for DecideUnknown's record.
	Cause string
	// Origin is the request or operator that decided.
	Origin Origin
}
