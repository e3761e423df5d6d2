package main

import (
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/semelhq/semel/clients/js"
)

// web is a page to order from. It uses once.js, which keeps one key for each action
// of the user; without a gateway before the service, that helps nobody.
//
//go:embed web
var web embed.FS

// handler is the whole API. Nothing in it knows that a request can come twice.
func handler(s *shop, delay time.Duration) http.Handler {
	mux := http.NewServeMux()
	for pattern, file := range map[string]struct {
		fs   fs.FS
		name string
	}{
		"GET /{$}": {web, "web/index.html"}, "GET /order.js": {web, "web/order.js"}, "GET /once.js": {js.FS, "once.js"},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src data:")
			http.ServeFileFS(w, r, file.fs, file.name)
		})
	}
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var o order
		if !decode(w, r, &o) {
			return
		}
		if o.Item == "" || len(o.Item) > 200 || o.Quantity < 1 || o.Quantity > 1_000_000 {
			problem(w, http.StatusBadRequest, "item must be 1 to 200 bytes long and quantity 1 to 1000000")
			return
		}
		time.Sleep(delay)
		if err := s.addOrder(r.Context(), &o); err != nil {
			problem(w, http.StatusInternalServerError, "the order could not be stored")
			return
		}
		w.Header().Set("Location", fmt.Sprint("/orders/", o.ID))
		answer(w, http.StatusCreated, o)
	})
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		var p payment
		if !decode(w, r, &p) {
			return
		}
		if p.Amount < 1 {
			problem(w, http.StatusBadRequest, "amount must be a positive number of cents")
			return
		}
		time.Sleep(delay)
		switch err := s.addPayment(r.Context(), &p); {
		case errors.Is(err, sql.ErrNoRows):
			problem(w, http.StatusUnprocessableEntity, "there is no such order")
		case err != nil:
			problem(w, http.StatusInternalServerError, "the payment could not be stored")
		default:
			w.Header().Set("Location", fmt.Sprint("/payments/", p.ID))
			answer(w, http.StatusCreated, p)
		}
	})
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			problem(w, http.StatusNotFound, "there is no such order")
			return
		}
		o, err := s.order(r.Context(), id)
		read(w, o, err)
	})
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		orders, err := s.orders(r.Context())
		read(w, orders, err)
	})
	mux.HandleFunc("GET /payments", func(w http.ResponseWriter, r *http.Request) {
		payments, err := s.payments(r.Context())
		read(w, payments, err)
	})
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, r *http.Request) {
		c, err := s.count(r.Context())
		read(w, c, err)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		_, err := s.count(r.Context())
		read(w, map[string]bool{"ok": true}, err)
	})
	return mux
}

func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("there is more than one value")
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		problem(w, http.StatusRequestEntityTooLarge, "the body is larger than 64 KiB")
		return false
	}
	if err != nil {
		problem(w, http.StatusBadRequest, "the body is not the JSON this expects: "+err.Error())
		return false
	}
	return true
}

func read(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, sql.ErrNoRows):
		problem(w, http.StatusNotFound, "there is no such thing")
	case err != nil:
		problem(w, http.StatusInternalServerError, "the database did not answer")
	default:
		answer(w, http.StatusOK, v)
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// problem answers as RFC 9457 says.
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "title": http.StatusText(status), "detail": detail})
}
