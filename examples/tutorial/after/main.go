// Command after takes payments, each of them once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8088", "address to listen on")
	flag.Parse()
	protect, err := protection(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", protect(http.HandlerFunc(pay)))
	log.Fatal(http.ListenAndServe(*listen, nil))
}

func protection(ctx context.Context) (func(http.Handler) http.Handler, error) {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: "payments.db"})
	if err != nil {
		return nil, err
	}
	go func() { log.Print(store.Run(ctx)) }() // forgets records that have expired
	guard, err := semel.New(semel.Config{
		Store:  store,
		Policy: semel.Policy{Lease: 3 * time.Second}, // so that the tutorial need not wait for 15
	})
	if err != nil {
		return nil, err
	}
	return semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: "everybody"}, nil // a real service says who is signed in
		},
		RequireKey: true,
	})
}

// pay charges a card. The bank is a file with a line for each charge, and takes two
// seconds to say so.
func pay(w http.ResponseWriter, r *http.Request) {
	amount := r.FormValue("amount")
	bank, err := os.OpenFile("charges.txt", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(bank, "charged %s\n", amount)
		err = errors.Join(err, bank.Close())
	}
	if err != nil {
		http.Error(w, "the bank did not take it", http.StatusInternalServerError)
		return
	}
	time.Sleep(2 * time.Second)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "paid %s\n", amount)
}
