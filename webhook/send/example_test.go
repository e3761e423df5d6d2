package send_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// A service tells a customer of a payment. With the outbox of sqlite or postgres,
// the messages are enqueued in the transaction of the payment, and the endpoints
// are a table of the service's.
func Example() {
	// The customer's side. Its first answer is an error.
	secret := webhook.NewSecret()
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}})
	if err != nil {
		log.Fatal(err)
	}
	status := http.StatusInternalServerError
	customer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		event, err := scheme.Verify(r.Header, body)
		fmt.Printf("%s: %s, %v\n", event.ID, body, err)
		w.WriteHeader(status)
		status = http.StatusNoContent
	}))
	defer customer.Close()

	var endpoints send.Memory
	shop := send.Endpoint{ID: "ep_7", URL: customer.URL, Secrets: []string{secret}, Types: []string{"invoice.*"}}
	endpoints.Put(shop)
	sink, err := send.New(send.Config{
		Endpoints:    &endpoints,
		AllowPrivate: true, TLS: customer.Client().Transport.(*http.Transport).TLSClientConfig, // for this example alone
		Observer: &send.Observer{Changed: func(_ context.Context, e send.Endpoint, _ send.State) {
			fmt.Println(e, "is failing:", !e.FailingSince.IsZero())
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sink.Close()

	box := memory.NewOutbox()
	messages, err := send.Event{ID: "evt_1", Type: "invoice.paid", Payload: []byte(`{"invoice": 17}`)}.Messages("webhooks", shop)
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Enqueue(context.Background(), messages...); err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	route := sink.Route("webhooks")
	route.Schedule = []time.Duration{time.Millisecond} // nobody waits for an example
	relay, err := outbox.New(outbox.Config{
		Store: box, Routes: []outbox.Route{route},
		Observer: &outbox.Observer{
			Retried:   func(_ context.Context, a outbox.Attempted) { fmt.Println(a.Err) },
			Delivered: func(context.Context, outbox.Attempted) { stop() },
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// evt_1: {"invoice": 17}, <nil>
	// endpoint ep_7 is failing: true
	// webhook: endpoint ep_7: answered 500
	// evt_1: {"invoice": 17}, <nil>
	// endpoint ep_7 is failing: false
}
