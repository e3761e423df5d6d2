//lint:file-ignore U1000,SA4006 the documents leave out what becomes of errors and results

package fragments

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

func receive(mux *http.ServeMux, guard *semel.Guard, current, previous string) error {
	var refused atomic.Int64
	scheme, err := webhook.NewStripe(webhook.StripeConfig{Secrets: []string{current, previous}})
	receive, err := webhook.New(webhook.Config{
		Guard: guard, Scheme: scheme, Name: "stripe.events", Sender: "stripe",
		Refused: func(r *http.Request, err error) { refused.Add(1); log.Print(err) }, // holds no secret
	})
	mux.Handle("POST /stripe", receive(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, _ := webhook.EventOf(r.Context())
		tx, _ := sqlite.Tx(r.Context()) // with sqlite's transactional store; postgres.Tx with PostgreSQL's
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments (event) VALUES (?)", event.ID); err != nil {
			http.Error(w, "later", http.StatusInternalServerError) // rolled back; it comes again
			return
		}
		w.WriteHeader(http.StatusNoContent) // leaves after COMMIT
	})))
	return err
}

func deliver(ctx context.Context, tx *sql.Tx, store *sqlite.Store, body []byte, endpoints []send.Endpoint, table send.Endpoints, observer *send.Observer) (*outbox.Relay, error) {
	tellOwner := observer.Changed
	// In the transaction of the change. Of an endpoint Messages needs ID and Types.
	messages, err := send.Event{Type: "invoice.paid", Payload: body}.Messages("webhooks", endpoints...)
	err = sqlite.EnqueueTx(ctx, tx, messages...)

	// In the service, or in a process of its own.
	sink, err := send.New(send.Config{Endpoints: table, Observer: &send.Observer{Changed: tellOwner}})
	relay, err := outbox.New(outbox.Config{
		Store: store.Outbox(), Routes: []outbox.Route{sink.Route("webhooks")},
		Retention: outbox.Retention{Dead: 30 * 24 * time.Hour},
	})
	return relay, err
}
