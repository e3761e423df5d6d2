package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
)

// stripeServer speaks Stripe's dialect of idempotency, for the one thing that
// this example asks of it: POST /v1/payment_intents.
type stripeServer struct {
	mu      sync.Mutex
	records map[string]*record
	charges int
	seen    []exchange
	plan    []fault
}

// record is what the server knows of a key.
type record struct {
	request string // encoded parameters
	status  int    // zero while the request runs
	body    []byte
}

// exchange is one request as the server saw it, with its answer.
type exchange struct {
	key    string
	status int // zero if the answer was lost
}

// fault is what goes wrong with the next request. Each is used once.
type fault int

const (
	none       fault = iota
	answerLost       // it is executed, and the connection breaks before the answer
	overload         // 429, before anything is looked up
	lockHeld         // 409: another request holds the key
	declined         // 402, and a retry would be of no use
)

func newStripeServer(plan ...fault) *stripeServer {
	return &stripeServer{records: make(map[string]*record), plan: plan}
}

// ServeHTTP implements http.Handler.
func (s *stripeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/payment_intents" {
		http.NotFound(w, r)
		return
	}
	status, header, answer, lost := s.handle(r.Header.Get("Idempotency-Key"), form)
	if lost {
		panic(http.ErrAbortHandler)
	}
	for name, value := range header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

func (s *stripeServer) handle(key string, form url.Values) (status int, header map[string]string, answer []byte, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := len(s.seen)
	s.seen = append(s.seen, exchange{key: key})
	defer func() {
		if !lost {
			s.seen[at].status = status
		}
	}()
	var wrong fault
	if len(s.plan) > 0 {
		wrong, s.plan = s.plan[0], s.plan[1:]
	}
	header = map[string]string{"Idempotency-Key": key}
	switch wrong {
	case overload:
		return http.StatusTooManyRequests, map[string]string{"Retry-After": "0"}, failure("invalid_request_error", "rate_limit"), false
	case lockHeld:
		header["Stripe-Should-Retry"] = "true"
		return http.StatusConflict, header, failure("idempotency_error", "idempotency_key_in_use"), false
	}
	old, ok := s.records[key]
	switch {
	case ok && old.request != form.Encode():
		header["Stripe-Should-Retry"] = "false"
		return http.StatusBadRequest, header, failure("idempotency_error", ""), false
	case ok:
		header["Idempotent-Replayed"] = "true"
		return old.status, header, old.body, wrong == answerLost
	}
	if wrong == declined {
		header["Stripe-Should-Retry"] = "false"
		status, answer = http.StatusPaymentRequired, failure("card_error", "card_declined")
	} else {
		s.charges++
		status = http.StatusOK
		answer = fmt.Appendf(nil, `{"id":"pi_%d","object":"payment_intent","amount":%s,"currency":%q}`, s.charges, form.Get("amount"), form.Get("currency"))
	}
	s.records[key] = &record{request: form.Encode(), status: status, body: answer}
	return status, header, answer, wrong == answerLost
}

// failure is an error as Stripe answers it.
func failure(kind, code string) []byte {
	body, err := json.Marshal(map[string]any{"error": map[string]string{"type": kind, "code": code, "message": "see the code"}})
	if err != nil {
		panic(err) // strings always marshal
	}
	return body
}

// state returns what the server has seen and done.
func (s *stripeServer) state() (seen []exchange, charges int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]exchange(nil), s.seen...), s.charges
}
