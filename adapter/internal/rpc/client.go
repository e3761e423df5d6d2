package rpc

import (
	"context"
	"fmt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
)

// ClientKey returns the key, as it goes over the wire, of a call that a client
// makes without one: that of the operation in ctx, else a fresh one. In an
// execution there is no fresh one. The error is a *NotSent.
func ClientKey(ctx context.Context, procedure string) (string, error) {
	op, named := semelclient.CurrentOperation(ctx)
	if !named {
		if _, ok := semel.CurrentExecution(ctx); ok {
			return "", &NotSent{procedure, semelclient.ErrNoStep}
		}
		op.Key = semel.NewKey()
	}
	key, err := semelhttp.FormatKey(op.Key)
	if err != nil {
		return "", &NotSent{procedure, err}
	}
	return key, nil
}

// NotSent is the error of a call that could not be given a key. It matches
// semel.ErrNoEffect.
type NotSent struct {
	Procedure string
	Err       error
}

func (e *NotSent) Error() string {
	return fmt.Sprintf("semel: the call of %s was not sent: %v", e.Procedure, e.Err)
}

func (e *NotSent) Unwrap() error { return e.Err }

// Is matches semel.ErrNoEffect.
func (e *NotSent) Is(target error) bool { return target == semel.ErrNoEffect }
