package semelhttp_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/semelhq/semel"
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
			return semel.Scope{Actor: "alice", Operation: "orders.create"}, nil
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	orders := 0
	server := httptest.NewServer(protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		orders++
		w.Header().Set("Location", fmt.Sprintf("/orders/%d", orders))
		w.WriteHeader(http.StatusCreated)
	})))
	defer server.Close()

	send := func(key, body string) {
		r, _ := http.NewRequest(http.MethodPost, server.URL+"/orders", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set(semelhttp.HeaderKey, key)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode == http.StatusCreated {
			fmt.Println(resp.StatusCode, resp.Header.Get("Location"), "replayed:", resp.Header.Get(semelhttp.HeaderReplayed) == "true")
			_, _ = io.Copy(io.Discard, resp.Body)
			return
		}
		problem, err := semelhttp.ParseProblem(resp.Body, resp.Header.Get("Content-Type"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(resp.StatusCode, problem.Title)
	}
	send(`"5f1c"`, `{"item": "book", "quantity": 1}`)
	send(`"5f1c"`, `{"quantity":1,"item":"book"}`)
	send(`"5f1c"`, `{"quantity":2,"item":"book"}`)
	send("", `{"item":"book"}`)
	fmt.Println("orders:", orders)
	// Output:
	// 201 /orders/1 replayed: false
	// 201 /orders/1 replayed: true
	// 422 Idempotency-Key is already used
	// 400 Idempotency-Key is missing
	// orders: 1
}
