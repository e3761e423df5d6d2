// Command before takes payments, some of them twice. The tutorial makes it safe.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8088", "address to listen on")
	flag.Parse()
	http.HandleFunc("POST /payments", pay)
	log.Fatal(http.ListenAndServe(*listen, nil))
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
