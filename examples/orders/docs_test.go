package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/examples/internal/shelldoc"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/testenv"
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

// TestReadme does what the READMEs show with curl, and gets the same responses, but
// for the time in Idempotency-Expires, what stands for an ellipsis, and the headers that
// they leave out.
func TestReadme(t *testing.T) {
	curl := testenv.Program(t, "curl")
	for _, name := range []string{"README.md", "README.ja.md"} {
		document, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		_, block, _ := strings.Cut(string(document), "```console\n")
		block, _, _ = strings.Cut(block, "```")
		commands := strings.Split("\n"+block, "\n$ ")[1:]
		if len(commands) != 3 {
			t.Fatalf("%s has %d commands", name, len(commands))
		}
		gateway, last := newGateway(t, 0), ""
		for _, c := range commands {
			command, shown, _ := strings.Cut(c, "\n")
			if !strings.HasPrefix(command, "!!") {
				last = strings.NewReplacer("curl ", "'"+curl+"' ", "localhost:8080", gateway).Replace(command)
			}
			cmd := exec.CommandContext(t.Context(), testenv.Program(t, "bash"), "-c", last)
			cmd.Env = append(os.Environ(), "no_proxy=*")
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s: %s: %v", name, last, err)
			}
			got := strings.ReplaceAll(string(out), "\r\n", "\n")
			for line := range strings.Lines(shown) {
				line = strings.TrimSuffix(line, "\n")
				if strings.HasPrefix(line, "Idempotency-Expires: ") {
					line = "Idempotency-Expires: …"
				}
				rest := got
				for _, part := range strings.Split(line, "…") {
					_, after, found := strings.Cut(rest, part)
					if !found {
						t.Errorf("%s: %s\nshows %q, which is not in\n%s", name, command, line, got)
						break
					}
					rest = after
				}
			}
			if strings.Contains(got, semelhttp.HeaderReplayed) != strings.Contains(shown, semelhttp.HeaderReplayed) {
				t.Errorf("%s: %s: replayed or not:\n%s", name, command, got)
			}
		}
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
	shelldoc.Run(t, strings.Replace(string(document), "gateway="+address, "gateway="+newGateway(t, time.Second), 1), t.TempDir())
}

// newGateway starts what the documents say: the service, with a delay, and a
// gateway before it that issues keys.
func newGateway(t *testing.T, delay time.Duration) string {
	t.Helper()
	shop, err := openShop(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(handler(shop, delay))
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
