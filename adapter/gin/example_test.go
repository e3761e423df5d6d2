package semelgin_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/semelhq/semel"
	semelgin "github.com/semelhq/semel/adapter/gin"
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
			return semel.Scope{
				Actor:     semelgin.Context(r).GetString("user"),
				Operation: semelgin.Route(r), // POST /orders/:id/pay
			}, nil
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}

	payments := 0
	router := gin.New()
	authenticate := func(c *gin.Context) { c.Set("user", "ann") }
	router.Group("/orders", authenticate, semelgin.New(protect)).POST("/:id/pay", func(c *gin.Context) {
		payments++
		c.JSON(http.StatusCreated, gin.H{"order": c.Param("id"), "by": c.GetString("user"), "payment": payments})
	})

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders/7/pay", strings.NewReader(`{"amount":5}`))
		r.Header.Set(semelhttp.HeaderKey, `"5f1c"`)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get(semelhttp.HeaderReplayed) == "true")
	}
	// Output:
	// 201 {"by":"ann","order":"7","payment":1} replayed: false
	// 201 {"by":"ann","order":"7","payment":1} replayed: true
}
