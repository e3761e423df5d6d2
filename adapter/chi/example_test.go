package semelchi_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/semelhq/semel"
	semelchi "github.com/semelhq/semel/adapter/chi"
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
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			// Whoever the authentication in front found the caller to be.
			return semel.Scope{Actor: "ann", Operation: semelchi.Route(r)}, nil // POST /orders/{id}/pay
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	router := chi.NewRouter()
	router.With(semelchi.New(protect)).Post("/orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "order %s, payment %d", chi.URLParam(r, "id"), payments)
	})
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders/7/pay", strings.NewReader(`{"amount":5}`))
		r.Header.Set(semelhttp.HeaderKey, `"5f1c"`)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get(semelhttp.HeaderReplayed) == "true")
	}
	// Output:
	// 201 order 7, payment 1 replayed: false
	// 201 order 7, payment 1 replayed: true
}
