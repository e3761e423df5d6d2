package semel

import (
	"context"
	"errors"
	"fmt"
)

// Decision is how an unknown outcome is settled.
type Decision uint8

const (
	// DecideUnknown marks a lapsed record as unknown, and as no longer reopened.
	// The record keeps its fence, so that its owner can still settle it, but the
	// owner can no longer renew its claim.
	DecideUnknown Decision = iota + 1
	// DecideResult completes the record with a result learned elsewhere.
	DecideResult
	// DecideNoEffect removes the record. The effect certainly never happened, and
	// the identity is free again.
	DecideNoEffect
	// DecideExecuteAgain gives the record a new fence and allows the next submit
	// of the same request to execute. The record keeps its fingerprint, so another
	// request under the key is still a mismatch.
	DecideExecuteAgain
)

var decisionNames = [...]string{
	DecideUnknown: "unknown", DecideResult: "result", DecideNoEffect: "no_effect", DecideExecuteAgain: "execute_again",
}

func (d Decision) String() string {
	if int(d) < len(decisionNames) && d > 0 {
		return decisionNames[d]
	}
	return fmt.Sprintf("Decision(%d)", uint8(d))
}

// Resolution settles the record of Identity if it has Fence and is unknown.
// DecideUnknown also settles it if it is in progress with a lapsed lease.
// Otherwise nothing is written, and the error is ErrStaleFence, or ErrNotFound if
// there is no record.
//
// So the order is: mark, then look, then settle. The owner of a record that has
// only lapsed may come back, renew its claim, and have its effect after somebody
// looked and saw none. The owner of one that is marked unknown cannot renew.
//
// Every decision except DecideUnknown ends the old claim: the record, if it
// remains, has a new fence, and the methods of the claim return ErrLostClaim.
type Resolution struct {
	Identity Identity
	Fence    uint64
	Decision Decision
	// Result is the result for DecideResult.
	Result Result
	// Cause says why, for the audit trail and, with DecideUnknown, for the record.
	Cause string
	// Origin is the request or the operator that made the decision.
	Origin Origin
}

// Resolve settles an unknown outcome, and returns the record as Resolver does. See
// Resolution for its errors. If the error is another one, such as that of ctx, or
// if the policy's StoreTimeout has passed, it is not known whether the record was
// settled, and calling Resolve again is safe: it settles nothing twice. The error
// wraps errors.ErrUnsupported unless the store implements Resolver.
func (g *Guard) Resolve(ctx context.Context, r Resolution) (Record, error) {
	if g.resolver == nil {
		return Record{}, fmt.Errorf("semel: resolve: %T does not implement Resolver: %w", g.store, errors.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	return g.resolved(ctx, r)
}

// resolved has the store apply r, whose result is encrypted on its way.
func (g *Guard) resolved(ctx context.Context, r Resolution) (Record, error) {
	if r.Decision == DecideResult {
		r.Result = g.cipher.encrypt(r.Identity, r.Result)
	}
	rec, err := g.resolver.Resolve(ctx, r)
	if err == nil && r.Decision == DecideResult {
		rec, _ = g.opened(ctx, r.Identity, rec) // it is settled, whatever can be read
	}
	return rec, err
}
