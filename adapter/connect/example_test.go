package semelconnect_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelconnect "github.com/semelhq/semel/adapter/connect"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func Example() {
	store, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	once, err := semelconnect.New(semelconnect.Config{
		Guard: guard,
		Scope: func(ctx context.Context, req connect.AnyRequest) (semel.Scope, error) {
			// Whoever the authentication in front found the caller to be.
			return semel.Scope{Actor: "ann", Operation: "orders.create"}, nil
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	const create = "/example.Orders/Create"
	n := 0
	server := httptest.NewServer(connect.NewUnaryHandler(create,
		func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
			n++
			return connect.NewResponse(wrapperspb.String(fmt.Sprintf("order %d: %s", n, req.Msg.GetValue()))), nil
		}, connect.WithInterceptors(once)))
	defer server.Close()

	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](server.Client(), server.URL+create)
	send := func(key, item string) {
		req := connect.NewRequest(wrapperspb.String(item))
		if key != "" {
			req.Header().Set(semelhttp.HeaderKey, key)
		}
		resp, err := client.CallUnary(context.Background(), req)
		if err != nil {
			fmt.Println(connect.CodeOf(err))
			return
		}
		fmt.Println(resp.Msg.GetValue(), "replayed:", resp.Header().Get(semelhttp.HeaderReplayed) == "true")
	}
	send(`"5f1c"`, "book")
	send(`"5f1c"`, "book")
	send(`"5f1c"`, "car")
	send("", "book")
	// Output:
	// order 1: book replayed: false
	// order 1: book replayed: true
	// invalid_argument
	// invalid_argument
}
