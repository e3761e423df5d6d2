package semelconnect

import (
	"context"

	"connectrpc.com/connect"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// ClientKeys is an interceptor for clients that gives each unary call without an
// Idempotency-Key a fresh one, except to methods without side effects.
// Interceptors that retry must come behind it, or each of their tries is another
// operation; a caller that calls again, be it after a restart, sets the header
// itself (semelhttp.FormatKey).
func ClientKeys() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			spec := req.Spec()
			if !spec.IsClient || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || len(req.Header()[semelhttp.HeaderKey]) > 0 {
				return next(ctx, req)
			}
			key, err := semelhttp.FormatKey(semel.NewKey())
			if err != nil {
				return nil, err
			}
			req.Header().Set(semelhttp.HeaderKey, key)
			// The request may be used for another call.
			defer req.Header().Del(semelhttp.HeaderKey)
			return next(ctx, req)
		}
	})
}
