package semeltest_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/semeltest"
	"github.com/semelhq/semel/store/memory"
)

// The test of a service: what it is, how to start it, how to count its effects.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestOrdersTakeEffectOnce(t *testing.T)
		semeltest.Run(t, semeltest.Config{Virtual: true, New: newOrders})
	}
}

func newOrders(t testing.TB) semeltest.Service {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var orders atomic.Int64 // what the service has instead of a database
	return semeltest.Service{
		Start: func(wrap func(semel.Store) semel.Store) (http.Handler, func(), error) {
			guard, err := semel.New(semel.Config{Store: wrap(store)})
			if err != nil {
				return nil, nil, err
			}
			protect, err := semelhttp.New(semelhttp.Config{Guard: guard, RequireKey: true, Scope: func(*http.Request) (semel.Scope, error) {
				return semel.Scope{Actor: "alice", Operation: "orders.create"}, nil
			}})
			if err != nil {
				return nil, nil, err
			}
			return protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				orders.Add(1)
				w.WriteHeader(http.StatusCreated)
			})), nil, nil
		},
		Request: func(key string) (*http.Request, error) {
			r, err := http.NewRequest(http.MethodPost, "http://shop.example/orders", strings.NewReader(`{"item":"book"}`))
			if err == nil {
				r.Header.Set(semelhttp.HeaderKey, key)
			}
			return r, err
		},
		Effects: func() (int, error) { return int(orders.Load()), nil },
	}
}

func TestExample(t *testing.T) {
	semeltest.Run(t, semeltest.Config{Virtual: true, New: newOrders})
}
