package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// handler is the API. It knows nothing of keys and records.
func handler(s *shop) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var o order
		if !decode(w, r, &o) {
			return
		}
		if o.Item == "" || len(o.Item) > 200 || o.Price < 1 {
			problem(w, http.StatusBadRequest, "item must be 1 to 200 bytes long and price a positive number of cents")
			return
		}
		if err := s.addOrder(r.Context(), &o); err != nil {
			failed(w, err)
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
		if err := s.addPayment(r.Context(), &p); err != nil {
			failed(w, err)
			return
		}
		answer(w, http.StatusCreated, p)
	})
	mux.HandleFunc("POST /orders/{id}/confirm", func(w http.ResponseWriter, r *http.Request) {
		o, err := s.confirm(r.Context(), id(r))
		if err != nil {
			failed(w, err)
			return
		}
		answer(w, http.StatusOK, o)
	})
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		o, err := s.order(r.Context(), id(r))
		if err != nil {
			failed(w, err)
			return
		}
		answer(w, http.StatusOK, o)
	})
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, r *http.Request) {
		c, err := s.count(r.Context())
		if err != nil {
			failed(w, err)
			return
		}
		answer(w, http.StatusOK, c)
	})
	return mux
}

// id returns the order in the path; there is no order 0.
func id(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	return n
}

func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("there is more than one value")
	}
	if err != nil {
		problem(w, http.StatusBadRequest, "the body is not the JSON this expects: "+err.Error())
		return false
	}
	return true
}

func failed(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errNoOrder):
		problem(w, http.StatusNotFound, "there is no such order")
	case errors.Is(err, errUnpaid):
		problem(w, http.StatusConflict, "the payments do not cover the price yet")
	default:
		problem(w, http.StatusInternalServerError, "the database did not do it")
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
