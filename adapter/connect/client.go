package semelconnect

import (
	"context"

	"connectrpc.com/connect"

	"github.com/semelhq/semel/adapter/internal/rpc"
	"github.com/semelhq/semel/semelhttp"
)

// ClientKeys is an interceptor for clients that gives a key to each unary call
// without an Idempotency-Key: that of the operation in its context, which
// semelclient.WithKey and semelclient.WithStep put there, else a fresh one.
// Interceptors that retry must come after it, or use semelclient.NewOperation; a
// caller that calls again, be it after a restart, keeps the key itself.
//
// In an execution (semel.CurrentExecution) a fresh key would be another one if
// the operation is executed again, and the call would take effect twice. So it
// must be named: the key of semelclient.WithStep is derived from the operation and
// the step. A call that is not named is not sent, and its error, of code
// internal, matches semelclient.ErrNoStep and semel.ErrNoEffect. The request's own
// header counts wherever it comes from.
//
// Calls to methods without side effects get no key and need no step.
func ClientKeys() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			spec := req.Spec()
			if !spec.IsClient || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || len(req.Header()[semelhttp.HeaderKey]) > 0 {
				return next(ctx, req)
			}
			key, err := rpc.ClientKey(ctx, spec.Procedure)
			if err != nil {
				return nil, connect.NewError(connect.CodeInternal, err)
			}
			req.Header().Set(semelhttp.HeaderKey, key)
			// The request may be used for another call.
			defer req.Header().Del(semelhttp.HeaderKey)
			return next(ctx, req)
		}
	})
}
