package webhook_test

import (
	"crypto/subtle"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
)

// An endpoint for Stripe's events. With sqlite's or postgres' transactional store
// instead of the one in memory, what the handler changes through sqlite.Tx or
// postgres.Tx is committed together with the record of the event.
func Example() {
	store, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	scheme, err := webhook.NewStripe(webhook.StripeConfig{
		Secrets: []string{"whsec_new", "whsec_old"}, // while it is rotated
	})
	if err != nil {
		log.Fatal(err)
	}
	receive, err := webhook.New(webhook.Config{
		Guard: guard, Scheme: scheme, Name: "stripe.events", Sender: "stripe",
		Refused: func(_ *http.Request, err error) { fmt.Println("refused:", err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	endpoint := receive(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, _ := webhook.EventOf(r.Context())
		fmt.Println("processing", event.ID)
		w.WriteHeader(http.StatusNoContent)
	}))

	// What Stripe does. It has not heard of the new secret yet, and did not see
	// the first answer.
	stripe, err := webhook.NewStripe(webhook.StripeConfig{Secrets: []string{"whsec_old"}})
	if err != nil {
		log.Fatal(err)
	}
	body := `{"id":"evt_1","type":"charge.succeeded"}`
	for range 2 {
		fmt.Println(post(endpoint, stripe, body, body))
	}
	fmt.Println(post(endpoint, stripe, body, strings.Replace(body, "succeeded", "refunded", 1)))
	// Output:
	// processing evt_1
	// 204
	// 204
	// refused: webhook: no signature in the Stripe-Signature header matches: it was made with another secret, or what was signed is not what arrived
	// 403
}

// post delivers body with the signature of another.
func post(endpoint http.Handler, s webhook.Signer, signed, body string) int {
	header, err := s.Sign("", []byte(signed))
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/stripe", strings.NewReader(body))
	r.Header = header
	w := httptest.NewRecorder()
	endpoint.ServeHTTP(w, r)
	return w.Code
}

// A sender signs each delivery anew: the id stays, the time does not.
func ExampleStandard_Sign() {
	private, public := webhook.NewKeyPair()
	sender, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{private, webhook.NewSecret()}})
	if err != nil {
		log.Fatal(err)
	}
	body := []byte(`{"type":"invoice.paid"}`)
	header, err := sender.Sign("msg_1", body)
	if err != nil {
		log.Fatal(err)
	}

	// Who receives it needs the public key alone.
	receiver, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{public}})
	if err != nil {
		log.Fatal(err)
	}
	event, err := receiver.Verify(header, body)
	fmt.Println(event.ID, err)
	// Output: msg_1 <nil>
}

// Token is the scheme of a sender that has no signatures, only a token in a
// field, and counts its events.
type Token struct{ token string }

// Verify implements webhook.Scheme. What is not signed marks an event only
// together with the body.
func (s Token) Verify(header http.Header, _ []byte) (webhook.Event, error) {
	if !equal(header.Get("X-Token"), s.token) {
		return webhook.Event{}, &webhook.Error{Reason: webhook.ReasonNoMatch, Part: "X-Token header"}
	}
	return webhook.Event{ID: header.Get("X-Event-Number"), Unsigned: true}, nil
}

// RetrySpan implements webhook.Scheme.
func (Token) RetrySpan() time.Duration { return 24 * time.Hour }

// equal takes the same time whatever the texts are.
func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Other senders' schemes have two methods.
func ExampleScheme() {
	var scheme webhook.Scheme = Token{"t0ps3cret"}
	_, err := scheme.Verify(http.Header{"X-Token": {"guess"}}, nil)
	fmt.Println(err)
	event, err := scheme.Verify(http.Header{"X-Token": {"t0ps3cret"}, "X-Event-Number": {"7"}}, nil)
	fmt.Println(event.ID, err)
	// Output:
	// webhook: no signature in the X-Token header matches: it was made with another secret, or what was signed is not what arrived
	// 7 <nil>
}
