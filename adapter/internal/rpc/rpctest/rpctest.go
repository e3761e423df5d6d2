// Package rpctest has what the tests of the adapters for RPC share.
package rpctest

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// Advice is a call, what it is answered with, and what the client is advised to
// do.
type Advice struct {
	Name    string
	Fails   bool        // the handler, with the code UNAVAILABLE
	Store   semel.Store // whose lease is 50 ms
	Key     []string
	Code    code.Code
	Reason  string
	Retry   semel.RetryAdvice
	After   bool // the client is told how long to wait
	Effects int64
}

// Advices returns a call for each answer of a guard, where a key is required.
func Advices(t testing.TB) []Advice {
	t.Helper()
	base, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	none := &scripted{Store: base}
	begin := func(begin func(semel.Attempt) error) semel.Store { return &scripted{Store: base, begin: begin} }
	claim := func(claim func(semel.Claim) semel.Claim) semel.Store { return &scripted{Store: base, claim: claim} }
	found := func(change func(*semel.Record)) semel.Store {
		return begin(func(a semel.Attempt) error {
			r := semel.Record{ID: semel.NewRecordID(), Identity: a.Identity, Fingerprint: a.Fingerprint, State: semel.StateInProgress, Lease: time.Minute}
			change(&r)
			return &semel.ConflictError{Record: r}
		})
	}
	down := begin(func(semel.Attempt) error { return errors.New("down") })
	return []Advice{
		{"executed", false, none, []string{"k1"}, code.Code_OK, "", "", false, 1},
		{"released", false, claim(func(c semel.Claim) semel.Claim { return rolledBack{c} }), []string{"k2"}, code.Code_UNAVAILABLE, "ROLLED_BACK", semel.RetrySameKey, true, 1},
		{"in progress", false, found(func(*semel.Record) {}), []string{"k3"}, code.Code_ABORTED, "IN_PROGRESS", semel.RetrySameKey, true, 0},
		{"mismatch", false, found(func(r *semel.Record) { r.Fingerprint.Sum[0]++ }), []string{"k4"}, code.Code_INVALID_ARGUMENT, "KEY_MISMATCH", semel.RetryNo, false, 0},
		{"unknown, found", false, found(func(r *semel.Record) { r.State = semel.StateUnknown }), []string{"k5"}, code.Code_FAILED_PRECONDITION, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false, 0},
		{"unknown, its own", true, none, []string{"k6"}, code.Code_UNKNOWN, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false, 1},
		{"replayed, but not retained", false, found(func(r *semel.Record) { r.State, r.Result.Tombstone = semel.StateCompleted, true }), []string{"k7"}, code.Code_FAILED_PRECONDITION, "RESULT_NOT_RETAINED", semel.RetryNo, false, 0},
		{"rejected, no key", false, none, nil, code.Code_INVALID_ARGUMENT, "KEY_MISSING", semel.RetryNewKey, false, 0},
		{"rejected, malformed", false, none, []string{"a,b"}, code.Code_INVALID_ARGUMENT, "KEY_MALFORMED", semel.RetryNewKey, false, 0},
		{"unavailable", false, down, []string{"k8"}, code.Code_UNAVAILABLE, "STORE_UNAVAILABLE", semel.RetrySameKey, true, 0},
		{"unavailable for its own hold", true, claim(func(c semel.Claim) semel.Claim { return unheld{c} }), []string{"k9"}, code.Code_UNAVAILABLE, "STORE_UNAVAILABLE", semel.RetrySameKey, true, 1},
	}
}

// scripted is a store that says of a claim what the test wants.
type scripted struct {
	*memory.Store
	begin func(semel.Attempt) error     // nil grants
	claim func(semel.Claim) semel.Claim // of a claim that was granted
}

func (s *scripted) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if s.begin != nil {
		return nil, s.begin(a)
	}
	c, err := s.Store.Begin(ctx, a)
	if err == nil && s.claim != nil {
		c = s.claim(c)
	}
	return c, err
}

type rolledBack struct{ semel.Claim }

func (rolledBack) Complete(context.Context, semel.Result) (time.Time, error) {
	return time.Time{}, semel.ErrRolledBack
}

type unheld struct{ semel.Claim }

func (unheld) Hold(context.Context, string) error { return errors.New("down") }
