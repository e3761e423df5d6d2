// Command service is what a user of semel writes: orders that are accepted once,
// with gin, and records in SQLite or PostgreSQL.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	semelgin "github.com/semelhq/semel/adapter/gin"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

func open(ctx context.Context, where string) (semel.Store, error) {
	if !strings.HasPrefix(where, "postgres://") {
		return sqlite.Open(ctx, sqlite.Config{Path: where})
	}
	pool, err := pgxpool.New(ctx, where)
	if err != nil {
		return nil, err
	}
	return postgres.New(ctx, pool, postgres.Config{})
}

func main() {
	store, err := open(context.Background(), os.Args[1])
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
			return semel.Scope{Actor: "ann", Operation: semelgin.Route(r)}, nil
		},
		RequireKey: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	orders := 0
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.POST("/orders", semelgin.New(protect), func(c *gin.Context) {
		orders++
		c.JSON(http.StatusCreated, gin.H{"order": orders})
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.Serve(listener, router))
}
