package semelecho_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/semelhq/semel"
	semelecho "github.com/semelhq/semel/adapter/echo"
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
			user, _ := semelecho.Context(r).Get("user").(string)
			return semel.Scope{Actor: user, Operation: semelecho.Route(r)}, nil // POST /orders/:id/pay
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}

	payments := 0
	router := echo.New()
	authenticate := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", "ann")
			return next(c)
		}
	}
	router.POST("/orders/:id/pay", func(c echo.Context) error {
		payments++
		return c.String(http.StatusCreated, fmt.Sprintf("order %s paid by %s, payment %d", c.Param("id"), c.Get("user"), payments))
	}, authenticate, semelecho.New(protect))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders/7/pay", strings.NewReader(`{"amount":5}`))
		r.Header.Set(semelhttp.HeaderKey, `"5f1c"`)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get(semelhttp.HeaderReplayed) == "true")
	}
	// Output:
	// 201 order 7 paid by ann, payment 1 replayed: false
	// 201 order 7 paid by ann, payment 1 replayed: true
}
