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
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// lines are a block of shell lines of a document, and what they print.
type lines struct{ shell, want string }

// shellLines returns the document's blocks of type sh, each with the block of
// type text after it.
func shellLines(t *testing.T, document string) (all []lines) {
	t.Helper()
	kind, text := "", ""
	for line := range strings.Lines(document) {
		fence, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "```")
		switch {
		case !ok:
			text += line
		case kind == "":
			kind, text = fence, ""
		default:
			switch {
			case kind == "sh":
				all = append(all, lines{shell: text})
			case kind == "text" && len(all) > 0 && all[len(all)-1].want == "":
				all[len(all)-1].want = text
			}
			kind = ""
		}
	}
	if kind != "" {
		t.Fatalf("a block of type %s does not end", kind)
	}
	for _, l := range all {
		if l.want == "" {
			t.Fatalf("nothing says what these lines print:\n%s", l.shell)
		}
	}
	return all
}

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
	bash := testenv.Program(t, "bash")
	testenv.Program(t, "curl")
	document, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	const address = "http://127.0.0.1:8080"
	if n := strings.Count(string(document), "gateway="+address+"\n"); n != 1 {
		t.Fatalf("the lines set the gateway's address %d times", n)
	}
	all := shellLines(t, strings.Replace(string(document), "gateway="+address, "gateway="+slowGateway(t), 1))

	const end = "-- end of the block --"
	script := "set -eu -o pipefail\n"
	for _, l := range all {
		script += l.shell + "echo '" + end + "'\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "LC_ALL=C", "no_proxy=*")
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("the shell ends with %v: %s", err, &stderr)
	}
	printed := strings.Split(string(out), end+"\n")
	for i, l := range all {
		if i == len(printed) {
			t.Fatalf("these lines were not run:\n%s", l.shell)
		}
		if got, want := words(printed[i]), words(l.want); got != want {
			t.Errorf("%s\nprints\n%s\nthe document says\n%s", l.shell, got, want)
		}
	}
}

// words is the text with single spaces.
func words(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(out, "\n")
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
