package semelgrpc_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelgrpc "github.com/semelhq/semel/adapter/grpc"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/store/memory"
)

// orders is what protoc would generate for a service with one method.
func orders(create func(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error)) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: "example.Orders", Methods: []grpc.MethodDesc{{
		MethodName: "Create",
		Handler: func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := new(wrapperspb.StringValue)
			if err := decode(req); err != nil {
				return nil, err
			}
			return interceptor(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/example.Orders/Create"},
				func(ctx context.Context, req any) (any, error) { return create(ctx, req.(*wrapperspb.StringValue)) })
		},
	}}}
}

func Example() {
	store, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	once, err := semelgrpc.New(semelgrpc.Config{
		Guard: guard,
		Scope: func(ctx context.Context, method string, req proto.Message) (semel.Scope, error) {
			// Whoever the authentication in front found the caller to be.
			return semel.Scope{Actor: "ann", Operation: "orders.create"}, nil
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary), grpc.ChainStreamInterceptor(once.Stream))
	n := 0
	server.RegisterService(orders(func(_ context.Context, item *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
		n++
		return wrapperspb.String(fmt.Sprintf("order %d: %s", n, item.GetValue())), nil
	}), nil)
	listener := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	conn, err := grpc.NewClient("passthrough:///example",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(semelgrpc.UnaryClient), // a key for calls that have none
	)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close() }()

	ctx := semelclient.WithKey(context.Background(), "5f1c")
	for range 2 {
		var header metadata.MD
		order := new(wrapperspb.StringValue)
		if err := conn.Invoke(ctx, "/example.Orders/Create", wrapperspb.String("book"), order, grpc.Header(&header)); err != nil {
			log.Fatal(err)
		}
		fmt.Println(order.GetValue(), "replayed:", header.Get(semelgrpc.MetadataReplayed))
	}
	err = conn.Invoke(ctx, "/example.Orders/Create", wrapperspb.String("car"), new(wrapperspb.StringValue))
	fmt.Println(err)
	// Output:
	// order 1: book replayed: []
	// order 1: book replayed: [true]
	// rpc error: code = InvalidArgument desc = Idempotency-Key is already used. This Idempotency-Key was used for a different request. This request was not executed. A key stands for one request: if this one is meant as a new operation, it needs a key of its own.
}
