package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// TestMain lets the tests start the program as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("CHECKOUT_TEST_RUN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// freeAddress is where a shop can listen again and again.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// place orders with one key until there is an answer. Callers in parallel.
func place(ctx context.Context, url, key string) error {
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/checkout", strings.NewReader(`{"item":"book","amount":500}`))
		if err != nil {
			return err
		}
		r.Header.Set("Idempotency-Key", `"`+key+`"`)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusCreated {
				return nil
			}
			if resp.StatusCode != http.StatusConflict && resp.StatusCode < 500 {
				return fmt.Errorf("answered %d", resp.StatusCode)
			}
		}
		select { // the shop may be starting again
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// settled waits until n orders were shipped and nothing is left to deliver. It then
// checks that nothing has happened twice, and that all mails that may be missing
// are known to be in doubt.
func settled(t *testing.T, w *world, s *shop, n int) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		tallies, log, change := w.look()
		missing := n
		for _, c := range tallies {
			missing -= min(c.Shipments, 1)
		}
		status, err := s.store.Outbox().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range status {
			missing += topic.Pending
		}
		if missing == 0 {
			break
		}
		select {
		case <-change:
		case <-time.After(100 * time.Millisecond): // what is not heard of out there
		case <-deadline:
			t.Fatalf("%d things are left to be done:\n%s", missing, strings.Join(log, "\n"))
		}
	}
	tallies, log, _ := w.look()
	doubt := inDoubt(t, s)
	asked, done := 0, 0
	for id, c := range tallies {
		if c.Charges != 1 || c.Shipments != 1 || c.Mails > 1 || c.Mails == 0 && !doubt[fmt.Sprint(id)] {
			t.Errorf("order %d: %+v", id, c)
		}
		asked, done = asked+c.ChargeAsked+c.ShipAsked, done+c.Charges+c.Shipments
	}
	if len(tallies) != n {
		t.Errorf("%d orders took effect, of %d", len(tallies), n)
	}
	if asked == done {
		t.Error("nothing was asked twice, so nothing was shown")
	}
	if t.Failed() {
		t.Log(strings.Join(log, "\n"))
	}
	t.Logf("%d orders, %d charges and shipments asked for, %d made, %d mails in doubt", n, asked, done, len(doubt))
}

// inDoubt returns the orders whose mail is.
func inDoubt(t *testing.T, s *shop) map[string]bool {
	t.Helper()
	entries, err := s.inDoubt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	orders := map[string]bool{}
	for _, e := range entries {
		orders[e.Key] = true
	}
	return orders
}

func TestEachOrderTakesEffectOnce(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	address := freeAddress(t)
	w, err := newWorld("http://"+address+"/webhooks/payments", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	c := config{
		listen: address, path: filepath.Join(t.TempDir(), "checkout.db"),
		provider: w.provider, mail: w.mail, warehouse: w.warehouse,
	}
	served := make(chan error, 1)
	go func() { served <- serve(ctx, c, log.New(t.Output(), "", 0)) }()

	const orders = 8
	var placing sync.WaitGroup
	for range orders {
		key := semel.NewKey()
		for range 3 { // a double click, and one more
			placing.Go(func() {
				if err := place(ctx, "http://"+address, key); err != nil {
					t.Error(err)
				}
			})
		}
	}
	placing.Wait()
	s, err := openShop(ctx, c) // as another process would
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	settled(t, w, s, orders)

	// Every second mail is in doubt, since its answer was lost.
	if n := len(inDoubt(t, s)); n != orders/2 {
		t.Errorf("%d mails are in doubt, not %d", n, orders/2)
	}
	page, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	if err != nil {
		t.Fatal(err)
	}
	decisions := regexp.MustCompile(`action="(/mails/[^"/]+/sent)"`).FindAllSubmatch(text, -1)
	if len(decisions) != orders/2 {
		t.Errorf("the page asks for %d decisions", len(decisions))
	}
	for _, d := range decisions {
		resp, err := http.Post("http://"+address+string(d[1]), "", nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(err, resp)
		}
		resp.Body.Close()
	}
	if n := len(inDoubt(t, s)); n != 0 {
		t.Errorf("%d mails are in doubt after all are decided", n)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestKilledShop kills the shop at random moments, and starts it again.
func TestKilledShop(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	address := freeAddress(t)
	w, err := newWorld("http://"+address+"/webhooks/payments", 3)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	c := config{path: filepath.Join(t.TempDir(), "checkout.db")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		cmd := exec.Command(self, "--listen", address, "--db", c.path,
			"--provider", w.provider, "--mail", w.mail, "--warehouse", w.warehouse)
		cmd.Env = append(os.Environ(), "CHECKOUT_TEST_RUN=1")
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	end := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
	}

	const orders, kills = 12, 6
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var placing sync.WaitGroup
	for range orders {
		key := semel.NewKey()
		for range 2 {
			placing.Go(func() {
				if err := place(ctx, "http://"+address, key); err != nil {
					t.Error(err)
				}
			})
		}
	}
	cmd := start()
	for range kills {
		for range 1 + rand.N(8) { // so many things happen before the next death
			_, _, change := w.look()
			select {
			case <-change:
			case <-time.After(2 * time.Second): // or nothing is left to happen
			}
		}
		end(cmd)
		cmd = start()
	}
	placing.Wait()
	s, err := openShop(ctx, config{path: c.path, provider: w.provider, mail: w.mail, warehouse: w.warehouse})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	settled(t, w, s, orders)
	end(cmd)
}

func TestArguments(t *testing.T) {
	for _, test := range []struct {
		args string
		exit int
		says string
	}{
		{"--help", 0, "Examples:"},
		{"--lose 1", 2, "every answer"},
		{"extra", 2, "unexpected argument"},
		{"--db /", 1, "database"},
	} {
		var out strings.Builder
		got := run(t.Context(), append([]string{"--listen", "127.0.0.1:0"}, strings.Fields(test.args)...), &out)
		if got != test.exit || !strings.Contains(out.String(), test.says) {
			t.Errorf("%s: exit %d, %s", test.args, got, out.String())
		}
	}
}
