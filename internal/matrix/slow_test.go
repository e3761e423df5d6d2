package matrix

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// shop is a protected service on pipes, in virtual time.
type shop struct {
	t      *testing.T
	store  *memory.Store
	guard  *semel.Guard
	spools *semelhttp.Spools
	listen net.Listener
	server *http.Server
	open   *gauge
	http2  bool
}

func newShop(t *testing.T, http2 bool, h http.HandlerFunc, edit func(*semelhttp.Config)) *shop {
	t.Helper()
	s := &shop{t: t, open: newGauge(), http2: http2}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.store, err = memory.New(memory.Config{})
	must(err)
	s.guard, err = semel.New(semel.Config{Store: s.store})
	must(err)
	s.spools, err = semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: t.TempDir(), MaxBytes: 1 << 30})
	must(err)
	c := semelhttp.Config{
		Guard: s.guard, Spools: s.spools,
		Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Operation: "orders"}, nil },
	}
	if edit != nil {
		edit(&c)
	}
	protect, err := semelhttp.New(c)
	must(err)
	s.server = &http.Server{Handler: inFlight(protect(h), s.open), ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols)}
	s.server.Protocols.SetHTTP1(!http2)
	s.server.Protocols.SetUnencryptedHTTP2(http2)
	s.listen, err = pipes{}.listen()
	must(err)
	go func() { _ = s.server.Serve(s.listen) }()
	t.Cleanup(func() { _ = s.server.Close() })
	return s
}

// post sends a request over a connection of its own and returns the answer.
func (s *shop) post(key string, body io.Reader, size int64) (status int, answer string, err error) {
	t := &http.Transport{DialContext: dialer(pipes{}, s.listen), DisableKeepAlives: true, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(!s.http2)
	t.Protocols.SetUnencryptedHTTP2(s.http2)
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://shop.example/orders", body)
	if err != nil {
		return 0, "", err
	}
	req.ContentLength = size
	req.Header.Set("Idempotency-Key", key)
	resp, err := t.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

// slowBody is a body that does not come, or hardly.
type slowBody struct {
	ready int64 // that much comes at once
	drip  time.Duration
	gone  chan struct{}
	once  sync.Once
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.ready > 0 {
		n := min(int64(len(p)), b.ready)
		b.ready -= n
		return int(n), nil
	}
	if b.drip > 0 {
		select {
		case <-time.After(b.drip):
			return 1, nil
		case <-b.gone:
			return 0, io.ErrClosedPipe
		}
	}
	<-b.gone
	return 0, io.ErrClosedPipe
}

func (b *slowBody) Close() error {
	b.once.Do(func() { close(b.gone) })
	return nil
}

const slowSize = 400 << 10 // so it is spooled

// slowBodies is 50: of them some withhold their last byte, some drip, and some send
// nothing.
func slowBodies(i int) (*slowBody, int64) {
	b := &slowBody{gone: make(chan struct{}), ready: slowSize - 1}
	switch {
	case i%5 == 4: // nothing at all
		b.ready, b.drip = 0, time.Hour
	case i%2 == 0:
		b.ready, b.drip = 0, time.Second
	}
	return b, slowSize
}

// Fifty uploads that do not come to their end are each answered 408, nothing of
// them is executed or stays in the spools, and nobody else waits for them.
func TestSlowUploads(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				executed := newGauge()
				s := newShop(t, http2, func(w http.ResponseWriter, r *http.Request) {
					executed.add(1)
					_, _ = io.WriteString(w, "done")
				}, nil)
				begun := time.Now()
				var wg sync.WaitGroup
				for i := range 50 {
					wg.Go(func() {
						body, size := slowBodies(i)
						defer func() { _ = body.Close() }()
						status, answer, err := s.post(fmt.Sprintf("slow-%d", i), body, size)
						if err != nil || status != 408 || !strings.Contains(answer, "#body-too-slow") {
							t.Errorf("upload %d: %d %q, %v", i, status, answer, err)
						}
						// 30 s without a byte, or 10 s and then a byte a second.
						if took, most := time.Since(begun), 31*time.Second; took > most {
							t.Errorf("upload %d is answered after %v", i, took)
						}
					})
				}
				synctest.Wait()
				if s.spools.Used() == 0 {
					t.Error("nothing was spooled, so this shows little")
				}
				const others = 40
				for i := range others {
					at := time.Now()
					status, answer, err := s.post(fmt.Sprintf("other-%d", i), strings.NewReader("{}"), 2)
					if took := time.Since(at); err != nil || status != 200 || answer != "done" || took > 0 {
						t.Errorf("another: %d %q, %v, after %v", status, answer, err, took)
					}
					<-time.After(time.Second)
				}
				wg.Wait()
				synctest.Wait()
				if n, _ := executed.read(); n != others {
					t.Errorf("%d executions; want %d", n, others)
				}
				if now, _ := s.open.read(); now != 0 || s.spools.Used() != 0 {
					t.Errorf("%d requests are open, and spools hold %d bytes", now, s.spools.Used())
				}
			})
		})
	}
}

// A drain does not wait for uploads: they are answered 503 at once.
func TestSlowUploadsAtADrain(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, http2, func(http.ResponseWriter, *http.Request) { t.Error("executed") }, nil)
				var wg sync.WaitGroup
				drained := make(chan time.Time, 1)
				for i := range 50 {
					wg.Go(func() {
						body, size := slowBodies(i)
						defer func() { _ = body.Close() }()
						status, answer, err := s.post(fmt.Sprintf("slow-%d", i), body, size)
						at := <-drained
						drained <- at
						if err != nil || status != 503 || !strings.Contains(answer, "same-key") || time.Since(at) > 0 {
							t.Errorf("upload %d: %d %q, %v, after %v", i, status, answer, err, time.Since(at))
						}
					})
				}
				<-time.After(5 * time.Second)
				drained <- time.Now()
				at := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if err := errors.Join(s.guard.Drain(ctx), s.server.Shutdown(ctx)); err != nil {
					t.Error(err)
				}
				wg.Wait()
				synctest.Wait()
				if took := time.Since(at); took > 5*time.Second { // which the server takes for connections
					t.Errorf("the end took %v", took)
				}
				if now, _ := s.open.read(); now != 0 || s.spools.Used() != 0 {
					t.Errorf("%d requests are open, and spools hold %d bytes", now, s.spools.Used())
				}
			})
		})
	}
}

// stalled is a client of HTTP/1.1 that reads no further than the header.
func (s *shop) stalled(key string) (*http.Response, net.Conn, error) {
	conn, err := pipes{}.dial(s.t.Context(), s.listen)
	if err != nil {
		return nil, nil, err
	}
	if _, err := fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: %s\r\nContent-Length: 2\r\n\r\n{}", key); err != nil {
		return nil, nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return resp, conn, err
}

// Readers that stop reading are cut off, and see it: of a replay, and of an answer
// that passes. The execution of the latter goes on to its end and is on record.
func TestStalledReaders(t *testing.T) {
	const clients = 50
	large := make([]byte, 2<<20)
	events := func(w http.ResponseWriter, executed *gauge) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 120 {
			_, _ = w.Write(large[:8<<10])
			w.(http.Flusher).Flush()
			<-time.After(time.Second)
		}
		executed.add(1)
	}
	for _, tc := range []struct {
		name    string
		replay  bool
		retry   string
		handler func(w http.ResponseWriter, executed *gauge)
	}{
		{"a large replay", true, "", func(w http.ResponseWriter, executed *gauge) {
			executed.add(1)
			_, _ = w.Write(large)
		}},
		{"a large first answer", false, "", func(w http.ResponseWriter, executed *gauge) {
			executed.add(1)
			_, _ = w.Write(large)
		}},
		{"a stream", false, "#result-not-retained", events},
		{"an answer over the limit", false, "#result-not-retained", func(w http.ResponseWriter, executed *gauge) {
			for range 3 {
				_, _ = w.Write(large)
			}
			executed.add(1)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				executed := newGauge()
				s := newShop(t, false, func(w http.ResponseWriter, _ *http.Request) { tc.handler(w, executed) },
					func(c *semelhttp.Config) { c.MaxResult = 4 << 20 })
				key := func(i int) string {
					if tc.replay {
						return "one"
					}
					return fmt.Sprint("key-", i)
				}
				executions := clients
				if tc.replay {
					executions = 1
					if status, answer, err := s.post("one", strings.NewReader("{}"), 2); status != 200 || len(answer) != len(large) || err != nil {
						t.Fatal(status, len(answer), err)
					}
				}
				begun := time.Now()
				var resps []*http.Response
				var conns []net.Conn
				for i := range clients {
					resp, conn, err := s.stalled(key(i))
					if err != nil || resp.StatusCode != 200 {
						t.Fatal(resp, err)
					}
					resps, conns = append(resps, resp), append(conns, conn)
				}
				// Others are served meanwhile.
				at := time.Now()
				if tc.replay {
					if status, answer, err := s.post("one", strings.NewReader("{}"), 2); status != 200 || len(answer) != len(large) || err != nil || time.Since(at) > 0 {
						t.Errorf("another: %d, %d bytes, %v, after %v", status, len(answer), err, time.Since(at))
					}
				}
				// 30 s for who reads nothing, and the stream takes 2 min.
				<-time.After(31 * time.Second)
				synctest.Wait()
				if tc.retry == "#result-not-retained" && tc.name == "a stream" {
					if now, _ := s.open.read(); now != clients {
						t.Errorf("%d executions go on; want %d", now, clients)
					}
					<-time.After(2 * time.Minute)
					synctest.Wait()
				}
				if now, _ := s.open.read(); now != 0 {
					t.Errorf("after %v %d requests are open", time.Since(begun), now)
				}
				for i, resp := range resps {
					if body, err := io.ReadAll(resp.Body); err == nil {
						t.Errorf("client %d takes %d bytes for all", i, len(body))
					}
					_ = conns[i].Close()
				}
				if n, _ := executed.read(); n != executions {
					t.Errorf("%d executions came to their end; want %d", n, executions)
				}
				all, err := s.store.List(t.Context(), semel.Filter{State: semel.StateCompleted})
				if err != nil || len(all) != executions {
					t.Errorf("%d records are completed, %v; want %d", len(all), err, executions)
				}
				status, answer, err := s.post(key(0), strings.NewReader("{}"), 2)
				if tc.retry != "" && (status != 409 || !strings.Contains(answer, tc.retry)) || tc.retry == "" && (status != 200 || len(answer) != len(large)) || err != nil {
					t.Errorf("who asks again: %d, %d bytes, %v", status, len(answer), err)
				}
				if s.spools.Used() != 0 {
					t.Errorf("spools hold %d bytes", s.spools.Used())
				}
				if err := s.guard.Drain(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A stream that has little to say is not a slow reader, and neither is one who
// reads all there is at his ease.
func TestQuietStreamIsNotCut(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newShop(t, http2, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 8 {
					_, _ = io.WriteString(w, "data: 1\n\n")
					w.(http.Flusher).Flush()
					<-time.After(time.Minute)
				}
			}, nil)
			if status, answer, err := s.post("k", strings.NewReader("{}"), 2); status != 200 || len(answer) != 8*9 || err != nil {
				t.Errorf("http2=%v: %d %q, %v", http2, status, answer, err)
			}
			if err := s.guard.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
