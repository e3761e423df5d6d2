package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/examples/internal/shelldoc"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// TestShellLines runs the shell lines of documents, those of each in one shell,
// against the service behind a gateway, and compares what they print, but for the
// white space in a line.
func TestShellLines(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for _, name := range []string{"clients.md", "ja/getting-started.md"} {
		t.Run(name, func(t *testing.T) { shellLinesOf(t, name) })
	}
}

func shellLinesOf(t *testing.T, name string) {
	document, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	const address = "http://127.0.0.1:8080"
	if n := strings.Count(string(document), "gateway="+address+"\n"); n != 1 {
		t.Fatalf("the lines set the gateway's address %d times", n)
	}
	shelldoc.Run(t, strings.Replace(string(document), "gateway="+address, "gateway="+slowGateway(t), 1), t.TempDir())
}

// slowGateway starts what the document says: the service with a delay, and a
// gateway before it that issues keys.
func slowGateway(t *testing.T) string {
	t.Helper()
	shop, err := openShop(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(handler(shop, time.Second))
	upstream, err := url.Parse(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store, Policy: semel.Policy{Heartbeat: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{
		Secrets: [][]byte{bytes.Repeat([]byte("k"), 32)}, Retention: guard.Policy().Retention,
	})
	if err != nil {
		t.Fatal(err)
	}
	gw, err := gateway.New(gateway.Config{Upstream: upstream, Guard: guard, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(gw)
	t.Cleanup(func() {
		proxy.Close()
		if err := gw.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		service.Close()
		shop.close()
	})
	return proxy.URL
}
