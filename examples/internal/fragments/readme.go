//lint:file-ignore U1000,SA4006 the documents leave out what becomes of errors and results

// Package fragments holds what the documents show in part, so that it compiles.

package fragments

import (
	"context"
	"errors"
	"net/http"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
)

type account struct{ Account, ID string }

type sessions struct{}

// User returns who is signed in.
func (sessions) User(context.Context) (account, bool) { return account{}, false }

func service(ctx context.Context, auth sessions, requireUser func(http.Handler) http.Handler, payments http.Handler) error {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: "semel.db"}) // records survive restarts
	guard, err := semel.New(semel.Config{Store: store})
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) { // whose key is it?
			user, ok := auth.User(r.Context())
			if !ok {
				return semel.Scope{}, errors.New("not signed in")
			}
			return semel.Scope{Tenant: user.Account, Actor: user.ID}, nil
		},
		RequireKey: true,
	})
	http.Handle("POST /payments", requireUser(protect(payments)))
	go store.Run(ctx) // sweeps what has expired
	return err
}

func client(ctx context.Context, transport http.RoundTripper) (context.Context, *http.Client) {
	client := &http.Client{Transport: transport} // semelclient.New; also in any SDK that takes a client
	ctx = semelclient.NewOperation(ctx)          // one operation, however often it is sent
	return ctx, client
}

// Receipt is what a bank gives.
type Receipt string

type teller struct{}

// Charge charges.
func (teller) Charge(context.Context, int) (Receipt, error) { return "", nil }

func function(ctx context.Context, guard *semel.Guard, submit semel.Submit, bank teller, amount int) (Receipt, semel.Answer) {
	receipt, answer, err := semel.Call(ctx, guard, submit, func(ctx context.Context) (Receipt, error) {
		return bank.Charge(ctx, amount)
	})
	switch {
	case err == nil: // answer is executed or replayed; the record is durable
	case errors.Is(err, semel.ErrNoEffect): // certainly nothing happened
	case errors.Is(err, semel.ErrMaybeEffect): // it may have: keep the key
	case errors.Is(err, semel.ErrRecorded): // it failed for good, and a retry is told so
	}
	return receipt, answer
}
