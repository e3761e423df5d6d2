// Command client shows semelclient.Transport under an SDK that knows nothing of
// it: stripe-go, which has keys and retries of its own, against a server in this
// process that speaks Stripe's dialect and loses its first answer.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/stripe/stripe-go/v83"

	"github.com/semelhq/semel/semelclient"
)

// newStripe returns a client of stripe-go that sends through a
// semelclient.Transport on base.
func newStripe(url string, base http.RoundTripper) (*stripe.Client, error) {
	transport, err := semelclient.New(semelclient.Config{
		Base: base,
		// stripe-go sets a key for each of its calls, and that one is kept. Keys
		// of ours, should there be none, are to look like its own.
		BareKeys: true,
	})
	if err != nil {
		return nil, err
	}
	return stripe.NewClient("sk_test_local", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: stripe.String(url),
		// No Timeout here: http.Client's own may hide the transport's errors.
		HTTPClient: &http.Client{Transport: transport},
		// Or each of its retries would be retried: tries would multiply.
		MaxNetworkRetries: stripe.Int64(0),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		EnableTelemetry:   stripe.Bool(false),
	}))), nil
}

// charge asks for a payment under the key of ctx's operation. stripe-go would
// make another key for each call, which is right until the call is made again:
// by a person, after a crash, by an execution of this operation that follows.
func charge(ctx context.Context, client *stripe.Client, amount int64) (*stripe.PaymentIntent, error) {
	params := &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(amount), Currency: stripe.String("eur")}
	if op, ok := semelclient.CurrentOperation(ctx); ok {
		params.SetIdempotencyKey(op.Key)
	}
	return client.V1PaymentIntents.Create(ctx, params)
}

func main() {
	server := newStripeServer(answerLost, lockHeld, overload)
	s := httptest.NewUnstartedServer(server)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of the answer that it loses
	s.Start()
	defer s.Close()
	client, err := newStripe(s.URL, http.DefaultTransport)
	if err != nil {
		log.Fatal(err)
	}
	intent, err := charge(semelclient.NewOperation(context.Background()), client, 1999)
	if err != nil {
		log.Fatal(err)
	}
	seen, charges := server.state()
	for i, e := range seen {
		status := "answer lost"
		if e.status != 0 {
			status = fmt.Sprint(e.status)
		}
		fmt.Printf("try %d: same key: %v, %s\n", i+1, e.key == seen[0].key, status)
	}
	fmt.Printf("%s, charges: %d\n", intent.ID, charges)
}
