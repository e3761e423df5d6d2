package semelgrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/semelhq/semel/adapter/internal/rpc"
)

// UnaryClient is a grpc.UnaryClientInterceptor that gives a key to each call
// whose metadata has none: that of the operation in its context, which
// semelclient.WithKey and semelclient.WithStep put there, else a fresh one. All tries
// of the retries that gRPC does by itself carry the same key. Interceptors that
// retry must come after it, or use semelclient.NewOperation; a caller that calls
// again, be it after a restart, keeps the key itself.
//
// In an execution (semel.CurrentExecution) a fresh key would be another one if
// the operation is executed again, and the call would take effect twice. So it
// must be named: the key of semelclient.WithStep is derived from the operation and
// the step. A call that is not named is not sent, and its error, of code
// INTERNAL, matches semelclient.ErrNoStep and semel.ErrNoEffect. A key in the
// metadata itself counts wherever it comes from.
//
// Calls to methods that are declared, in a file that the program knows, with
// idempotency_level NO_SIDE_EFFECTS get no key and need no step. Calls that need
// none for another reason are made without the interceptor.
func UnaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	if len(md.Get(MetadataKey)) == 0 && !rpc.NoSideEffects(method) {
		key, err := rpc.ClientKey(ctx, method)
		if err != nil {
			return notSent{err}
		}
		ctx = metadata.AppendToOutgoingContext(ctx, MetadataKey, key)
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

// notSent is the error of a call that could not be given a key.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// GRPCStatus is for package status.
func (e notSent) GRPCStatus() *status.Status { return status.New(codes.Internal, e.Error()) }
