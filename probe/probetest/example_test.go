package probetest_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/probe/probetest"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// orders is a protected shop.
type orders struct {
	http.Handler
	made  atomic.Int64
	fails atomic.Bool
}

// CountOrders reads the state.
func (s *orders) CountOrders() (int64, error) { return s.made.Load(), nil }

// FailWhile makes the target fail before it has done anything.
func (s *orders) FailWhile(on bool) { s.fails.Store(on) }

func newOrders(t *testing.T) *orders {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard, RequireKey: true,
		Scope: func(r *http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: r.Header.Get("Authorization")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &orders{}
	s.Handler = protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.fails.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":%d}`, s.made.Add(1))
	}))
	return s
}

func TestShop(t *testing.T) {
	shop := newOrders(t)
	probetest.Check(t, probetest.Target{
		Handler: shop, Path: "/orders",
		JSON: `{"item":"tea {{hex 8}}","quantity":1}`, Altered: `{"item":"tea","quantity":2}`,
		State:     shop.CountOrders, // func() (int64, error): one more for each order
		FailFirst: shop.FailWhile,   // func(bool), optional: makes the first attempt fail
	})
}
