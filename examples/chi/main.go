// Command chi is a small account service in a chi router. Its side effects take
// effect once: send the same request with the same Idempotency-Key again and the
// first answer is replayed.
//
//	go run ./chi
//	curl -i localhost:9003/accounts/7/deposits -u ann: -H 'Idempotency-Key: "k1"' -d '{"amount":5}'
//	curl -i localhost:9003/accounts/7 -u ann:
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/semelhq/semel"
	semelchi "github.com/semelhq/semel/adapter/chi"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9003", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen); err != nil {
		log.Fatal("chi: ", err)
	}
}

func serve(ctx context.Context, listen string) error {
	// A service that must not forget uses store/sqlite or store/postgres.
	store, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		return err
	}
	handler, err := newHandler(guard)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	log.Printf("chi: listening on http://%s", listen)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// Clients first; then the executions that outlive them.
	return errors.Join(server.Shutdown(drain), guard.Drain(drain))
}

// newHandler returns the service. Reading needs no key; what changes something
// is protected behind the authentication.
func newHandler(guard *semel.Guard) (http.Handler, error) {
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			user, _, _ := r.BasicAuth()
			return semel.Scope{Actor: user, Operation: semelchi.Route(r)}, nil
		},
		RequireKey: true,
	})
	if err != nil {
		return nil, err
	}
	bank := &bank{balance: map[string]int{}}
	router := chi.NewRouter()
	router.Use(middleware.Recoverer, authenticate)
	router.Get("/accounts/{account}", bank.read)
	router.Group(func(r chi.Router) {
		// In a Group the route is known already, so it can name the operation.
		r.Use(semelchi.New(protect))
		r.Post("/accounts/{account}/deposits", bank.deposit)
		r.Post("/accounts/{account}/transfers/{to}", bank.transfer)
	})
	return router, nil
}

// authenticate takes any user at their word, which is enough for an example.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, ok := r.BasicAuth(); !ok || user == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="accounts"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type bank struct {
	mu      sync.Mutex
	balance map[string]int
}

func (b *bank) read(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answer(w, http.StatusOK, b.balance[chi.URLParam(r, "account")])
}

func (b *bank) deposit(w http.ResponseWriter, r *http.Request) {
	amount, ok := amount(w, r)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	account := chi.URLParam(r, "account")
	b.balance[account] += amount
	answer(w, http.StatusCreated, b.balance[account])
}

func (b *bank) transfer(w http.ResponseWriter, r *http.Request) {
	amount, ok := amount(w, r)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	from, to := chi.URLParam(r, "account"), chi.URLParam(r, "to")
	if b.balance[from] < amount {
		http.Error(w, "not enough on account "+strconv.Quote(from), http.StatusConflict)
		return
	}
	b.balance[from] -= amount
	b.balance[to] += amount
	answer(w, http.StatusCreated, b.balance[from])
}

func amount(w http.ResponseWriter, r *http.Request) (int, bool) {
	var order struct {
		Amount int `json:"amount"`
	}
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Amount <= 0 {
		http.Error(w, "amount must be a positive number", http.StatusBadRequest)
		return 0, false
	}
	return order.Amount, true
}

func answer(w http.ResponseWriter, status, balance int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]int{"balance": balance})
}
