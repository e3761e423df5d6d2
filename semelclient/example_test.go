package semelclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// protectedOrders returns a protected handler that executes a request whose
// answer is lost, lost times.
func protectedOrders(orders http.Handler, lost int) http.Handler {
	store, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil }, RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	return lossy(protect(orders), int64(lost))
}

// A client whose first answer is lost gets it with the second try. Nothing has to
// be changed in the code that sends.
func ExampleTransport() {
	var made orders
	server := httptest.NewUnstartedServer(protectedOrders(&made, 1))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()

	transport, err := semelclient.New(semelclient.Config{
		Observer: semelclient.Observer{Tried: func(_ context.Context, t semelclient.Tried) {
			fmt.Println("try", t.Try, "status", t.Status, "again:", t.Retry)
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	resp, err := client.Post(server.URL+"/orders", "application/json", strings.NewReader(`{"item":"book"}`))
	if err != nil {
		log.Fatal(err)
	}
	_ = resp.Body.Close()
	fmt.Println(resp.Header.Get("Location"), "replayed:", resp.Header.Get(semelhttp.HeaderReplayed))
	fmt.Println("orders:", made.count())
	// Output:
	// try 1 status 0 again: true
	// try 2 status 201 again: false
	// /orders/1 replayed: true
	// orders: 1
}

// Whoever may come back later keeps the key: here a person who presses the
// button again after an error.
func ExampleError() {
	var made orders
	server := httptest.NewUnstartedServer(protectedOrders(&made, 2))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()

	transport, err := semelclient.New(semelclient.Config{MaxTries: 2})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	order := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/orders", strings.NewReader(`{"item":"book"}`))
		if err != nil {
			return nil, err
		}
		return client.Do(r)
	}

	_, err = order(context.Background())
	failure, ok := errors.AsType[*semelclient.Error](err)
	if !ok {
		log.Fatal(err)
	}
	fmt.Println("may have taken effect:", errors.Is(err, semel.ErrMaybeEffect))

	again := semelclient.WithOperation(context.Background(), failure.Operation())
	resp, err := order(again)
	if err != nil {
		log.Fatal(err)
	}
	_ = resp.Body.Close()
	fmt.Println(resp.Header.Get("Location"), "orders:", made.count())
	// Output:
	// may have taken effect: true
	// /orders/1 orders: 1
}
