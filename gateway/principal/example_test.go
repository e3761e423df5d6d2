package principal_test

import (
	"log"
	"net/http"
	"net/url"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/gateway/principal"
	"github.com/semelhq/semel/store/memory"
)

// A gateway that takes the tokens of one issuer.
func Example() {
	tokens, err := principal.NewJWT(principal.JWTConfig{
		Issuer: "https://login.example.com", Audiences: []string{"orders"}, Algorithms: []string{"RS256"},
		KeysURL: "https://login.example.com/.well-known/jwks.json",
		Tenant:  "org_id",
	})
	if err != nil {
		log.Fatal(err)
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	upstream := &url.URL{Scheme: "http", Host: "127.0.0.1:9000"}
	gw, err := gateway.New(gateway.Config{Upstream: upstream, Guard: guard, Scope: principal.Scope(tokens)})
	if err != nil {
		log.Fatal(err)
	}
	_ = &http.Server{Addr: ":8080", Handler: principal.Clean(tokens, gw)}
}
