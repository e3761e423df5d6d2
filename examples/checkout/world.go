package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// Secrets that both sides know. Real ones come from configuration.
const (
	providerSecret  = "whsec_Y2hlY2tvdXQtcHJvdmlkZXItc2VjcmV0LTE="
	warehouseSecret = "whsec_Y2hlY2tvdXQtd2FyZWhvdXNlLXNlY3JldC0x"
)

// world is what the shop does not own: a payment provider, a mail server and a
// warehouse. It counts what it is asked, and what it does.
type world struct {
	provider, mail, warehouse string // where they are
	lose                      int    // they lose every so many-th answer

	mu     sync.Mutex
	tally  map[int64]*tally // by order
	log    []string
	change chan struct{} // closed when there is something new

	stop func()
}

// tally is what has happened to one order out there: how often they were asked,
// and how often it took effect.
type tally struct{ ChargeAsked, Charges, Mails, ShipAsked, Shipments int }

// note counts for an order, and writes it into the log.
func (w *world) note(order int64, count func(*tally), format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tally[order]
	if t == nil {
		t = &tally{}
		w.tally[order] = t
	}
	count(t)
	w.write(fmt.Sprintf("order %d: ", order) + fmt.Sprintf(format, args...))
}

// say writes what is of no order that it knows.
func (w *world) say(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write(text)
}

// write writes into the log. Under w.mu.
func (w *world) write(text string) {
	const most = 200
	w.log = append(w.log[max(len(w.log)-most, 0):], text)
	close(w.change)
	w.change = make(chan struct{})
}

// look returns what has happened so far, and a channel that is closed when there
// is more.
func (w *world) look() (map[int64]tally, []string, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tallies := make(map[int64]tally, len(w.tally))
	for order, t := range w.tally {
		tallies[order] = *t
	}
	return tallies, append([]string(nil), w.log...), w.change
}

// newWorld starts the three. The provider sends its webhooks to hook.
func newWorld(hook string, lose int) (w *world, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	w = &world{lose: lose, tally: map[int64]*tally{}, change: make(chan struct{})}
	var servers sync.WaitGroup
	var listeners []net.Listener
	w.stop = func() {
		cancel()
		for _, l := range listeners {
			l.Close()
		}
		servers.Wait()
	}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	serve := func(run func(net.Listener)) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		listeners = append(listeners, l)
		servers.Go(func() { run(l) })
		return l.Addr().String(), nil
	}
	web := func(h http.Handler) (string, error) {
		address, err := serve(func(l net.Listener) { _ = http.Serve(l, w.losing("the shop", h)) })
		return "http://" + address + "/", err
	}

	provider, relay, err := w.newProvider(hook)
	if err != nil {
		return nil, err
	}
	servers.Go(func() { _ = relay.Run(ctx) })
	if w.provider, err = web(provider); err != nil {
		return nil, err
	}
	warehouse, err := w.newWarehouse()
	if err != nil {
		return nil, err
	}
	if w.warehouse, err = web(warehouse); err != nil {
		return nil, err
	}
	w.mail, err = serve(w.serveMail)
	return w, err
}

func (w *world) close() { w.stop() }

// losing loses answers: the handler has done its work, and nobody hears of it.
func (w *world) losing(who string, h http.Handler) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.lose > 0 && n.Add(1)%int64(w.lose) == 0 {
			h.ServeHTTP(unheard{rw}, r)
			w.say("the answer to " + who + " is lost")
			panic(http.ErrAbortHandler) // cuts the connection
		}
		h.ServeHTTP(rw, r)
	})
}

// asked counts the requests for an order, whatever is behind it makes of them.
func (w *world) asked(h http.Handler, count func(*tally), what string) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, 1<<20))
		var o order
		if err == nil {
			err = json.Unmarshal(body, &o)
		}
		if err != nil {
			http.Error(rw, "no order", http.StatusBadRequest)
			return
		}
		w.note(o.ID, count, "%s", what)
		r.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(rw, r)
	})
}

// unheard is the answer that gets lost.
type unheard struct{ w http.ResponseWriter }

func (u unheard) Header() http.Header         { return u.w.Header() }
func (u unheard) Write(p []byte) (int, error) { return len(p), nil }
func (u unheard) WriteHeader(int)             {}

func newGuard() (*semel.Guard, error) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	return semel.New(semel.Config{Store: store})
}

// newProvider makes the payment provider. It charges once for each key, as all
// that deserve the name do, and sends a webhook of it.
func (w *world) newProvider(hook string) (http.Handler, *outbox.Relay, error) {
	guard, err := newGuard()
	if err != nil {
		return nil, nil, err
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard, RequireKey: true,
		Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "shop"}, nil },
	})
	if err != nil {
		return nil, nil, err
	}
	shop := send.Endpoint{ID: "shop", URL: hook, Secrets: []string{providerSecret}}
	sink, err := webhooks(shop)
	if err != nil {
		return nil, nil, err
	}
	events := memory.NewOutbox()
	relay, err := outbox.New(outbox.Config{Store: events, Routes: []outbox.Route{{Topic: "events", Sink: twice(sink), Backoff: quick}}})
	if err != nil {
		return nil, nil, err
	}
	charge := protect(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(rw, "no order", http.StatusBadRequest)
			return
		}
		w.note(o.ID, func(t *tally) { t.Charges++ }, "the provider charges %d", o.Amount)
		messages, err := send.Event{
			Type: "charge.succeeded", Payload: fmt.Appendf(nil, `{"type":"charge.succeeded","order":%d,"amount":%d}`, o.ID, o.Amount),
		}.Messages("events", shop)
		if err == nil {
			err = events.Enqueue(r.Context(), messages...)
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		rw.WriteHeader(http.StatusCreated)
	}))
	return w.asked(charge, func(t *tally) { t.ChargeAsked++ }, "the provider is asked to charge"), relay, nil
}

// twice delivers everything twice, as providers do at times.
func twice(s outbox.Sink) outbox.Sink {
	return outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) error {
		if err := s.Deliver(ctx, d); err != nil {
			return err
		}
		return s.Deliver(ctx, d)
	})
}

// newWarehouse makes the receiver of the shop's webhooks.
func (w *world) newWarehouse() (http.Handler, error) {
	guard, err := newGuard()
	if err != nil {
		return nil, err
	}
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{warehouseSecret}})
	if err != nil {
		return nil, err
	}
	once, err := webhook.New(webhook.Config{Guard: guard, Scheme: scheme, Name: "orders", Sender: "shop"})
	if err != nil {
		return nil, err
	}
	ship := once(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(rw, "no order", http.StatusBadRequest)
			return
		}
		w.note(o.ID, func(t *tally) { t.Shipments++ }, "the warehouse ships %s", o.Item)
		rw.WriteHeader(http.StatusNoContent)
	}))
	return w.asked(ship, func(t *tally) { t.ShipAsked++ }, "the warehouse is told"), nil
}

var subject = regexp.MustCompile(`(?m)^Subject: Your order (\d+)`)

// serveMail is a mail server with as much SMTP as it takes. It knows no repetition.
func (w *world) serveMail(l net.Listener) {
	var n atomic.Int64
	// taken reports whether the sender is to hear of it.
	taken := func(mail []byte) bool {
		var id int64
		if found := subject.FindSubmatch(mail); found != nil {
			id, _ = strconv.ParseInt(string(found[1]), 10, 64)
		}
		w.note(id, func(t *tally) { t.Mails++ }, "a mail is sent")
		if w.lose > 0 && n.Add(1)%int64(w.lose) == 0 {
			w.say("the mail server's answer to the shop is lost")
			return false
		}
		return true
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			in := textproto.NewReader(bufio.NewReader(c))
			for answer := "220 checkout"; ; answer = "250 ok" {
				if _, err := fmt.Fprint(c, answer, "\r\n"); err != nil {
					return
				}
				line, err := in.ReadLine()
				verb, _, _ := strings.Cut(line, " ")
				switch {
				case err != nil || verb == "QUIT":
					return
				case verb == "DATA":
					_, _ = fmt.Fprint(c, "354 go on\r\n")
					mail, err := in.ReadDotBytes()
					if err != nil || !taken(mail) {
						return
					}
				}
			}
		}()
	}
}
