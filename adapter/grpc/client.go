package semelgrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// UnaryClient is a grpc.UnaryClientInterceptor that gives each call without a
// key a fresh one. All tries of the retries that gRPC does by itself carry the
// same key. Interceptors that retry must come behind it, or each of their tries
// is another operation; a caller that calls again, be it after a restart, sets
// the key itself with WithKey.
func UnaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	if len(md.Get(MetadataKey)) == 0 {
		var err error
		if ctx, err = WithKey(ctx, semel.NewKey()); err != nil {
			return err
		}
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

// WithKey returns a context whose calls carry key. The error is that of
// semelhttp.FormatKey.
func WithKey(ctx context.Context, key string) (context.Context, error) {
	value, err := semelhttp.FormatKey(key)
	if err != nil {
		return nil, err
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(MetadataKey, value)
	return metadata.NewOutgoingContext(ctx, md), nil
}
