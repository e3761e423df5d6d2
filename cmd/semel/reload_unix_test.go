//go:build !windows

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
)

// TestReloadUnderLoad: while the configuration is replaced, again and again, no
// request fails, and none is executed twice. What is wrong does not replace what is
// at work.
func TestReloadUnderLoad(t *testing.T) {
	quick.LeaveOut(t)
	var mu sync.Mutex
	effects := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		effects[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "gateway.yaml")
	config := func(change string) string {
		return fmt.Sprintf(`version: 1
listen: 127.0.0.1:0
log_format: json
store: {url: "sqlite:%s"}
principal: {shared: {}}
upstreams: [{name: a, url: %q}]
routes:
  - match: POST /orders
    operation: orders
    in_flight: wait
%s
  - match: /
    protect: false
`, filepath.Join(dir, "semel.db"), service.URL, change)
	}
	write := func(text string) {
		t.Helper()
		noError(t, os.WriteFile(file+".new", []byte(text), 0o600))
		noError(t, os.Rename(file+".new", file))
	}
	write(config("    retention: 24h"))

	ctx, stop := context.WithCancel(t.Context())
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	said := &lines{}
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"gateway", "--config", file}, nil, nil, io.Discard, said) }()
	said.await(limit, t, `"listening"`, 1)
	_, rest, _ := strings.Cut(said.String(), `"addr":"`)
	addr, _, _ := strings.Cut(rest, `"`)
	url := "http://" + addr

	// Each key is sent twice, by two clients.
	var sent, failed atomic.Int64
	var clients sync.WaitGroup
	done := make(chan struct{})
	for c := range 4 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprintf("key-%d-%d", c/2, i)
				a, err := try(url, key, `{"n":1}`)
				sent.Add(1)
				if err != nil || a.status != http.StatusCreated || a.body != `{"n":1}` {
					failed.Add(1)
					t.Errorf("%s: %v, %d %s", key, err, a.status, a.body)
					return
				}
			}
		})
	}
	hup := func() { noError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP)) }
	const rounds = 30
	good, bad := 0, 0
	for i := range rounds {
		switch i % 6 {
		case 3:
			write(config("    retention: soon"))
			bad++
			hup()
			said.await(limit, t, "was not reloaded", bad)
		case 5:
			write(strings.Replace(config(""), "listen: 127.0.0.1:0", "listen: 127.0.0.1:1", 1))
			bad++
			hup()
			said.await(limit, t, "was not reloaded", bad)
		default:
			write(config(fmt.Sprintf("    retention: %dh", 24+i)))
			good++
			hup()
			said.await(limit, t, "was reloaded", good)
		}
		before := sent.Load()
		for sent.Load() < before+20 && failed.Load() == 0 {
			noError(t, limit.Err())
			_, _ = try(url, fmt.Sprintf("own-%d", i), `{"n":1}`)
		}
	}
	close(done)
	clients.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed", n, sent.Load())
	}
	mu.Lock()
	for key, n := range effects {
		if n != 1 {
			t.Errorf("%s took effect %d times", key, n)
		}
	}
	mu.Unlock()
	t.Logf("%d requests over %d reloads and %d refused ones", sent.Load(), good, bad)
	if out := said.String(); !strings.Contains(out, "retention: must be a duration") || !strings.Contains(out, "listen cannot be changed while the gateway runs") {
		t.Errorf("the refusals do not say why:\n%s", out)
	}
	if strings.Contains(said.String(), "cut off") {
		t.Errorf("a change of the retention cuts no keys off:\n%s", said.String())
	}

	// A request that has begun stays with what it began with; a key that is cut off
	// is told of.
	c, err := net.Dial("tcp", addr)
	noError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "POST /orders HTTP/1.1\r\nHost: h\r\nIdempotency-Key: slow\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{")
	noError(t, err)
	write(strings.Replace(config(""), "operation: orders", "operation: orders.create\n    fingerprint: {exclude: [/n]}", 1))
	good++
	hup()
	said.await(limit, t, "was reloaded", good)
	said.await(limit, t, "keys from before the reload are cut off", 2)
	_, err = io.WriteString(c, "}")
	noError(t, err)
	answer, err := io.ReadAll(c)
	noError(t, err)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
		t.Errorf("a request that had begun was answered with %s", answer)
	}
	out := said.String()
	for _, want := range []string{
		`"route":"POST /orders","change":"the operation was \"orders\" and is \"orders.create\"","means":"a request that is repeated with its key executes again"`,
		`"change":"the fingerprint is made otherwise"`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %s:\n%s", want, out)
		}
	}
	stop()
	want(t, "exit code", <-ended, exitOK)
}
