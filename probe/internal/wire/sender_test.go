package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestNewRefuses(t *testing.T) {
	_, err := New(Config{Allow: []string{"a.example", "*.example:80", "a.example:http"}, ConnectTimeout: -1, Timeout: -1, MaxResponse: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Allow[0]", "Allow[1]", "Allow[2]", "MaxSends", "ConnectTimeout", "field Timeout", "MaxResponse"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// network counts what is asked of it.
type network struct{ lookups, dials atomic.Int64 }

func (n *network) use(c *Config) {
	c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
		n.lookups.Add(1)
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.dials.Add(1)
		return dial(ctx, network, addr)
	}
}

func (n *network) quiet(t *testing.T) {
	t.Helper()
	if l, d := n.lookups.Load(), n.dials.Load(); l != 0 || d != 0 {
		t.Errorf("there were %d look-ups and %d connections", l, d)
	}
}

// every way to send, to a target.
func everyWay(s *Sender, first, second Request, warm *Request) map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"Send":    func() error { _, err := s.Send(ctx, second); return err },
		"SendCut": func() error { _, err := s.SendCut(ctx, second, Cut{At: AfterRequest}); return err },
		"SendRace": func() error {
			_, err := s.SendRace(ctx, []Request{first, second}, nil)
			return err
		},
		"SendRace warm": func() error {
			_, err := s.SendRace(ctx, []Request{first, first}, warm)
			return err
		},
	}
}

func TestNothingIsSentWithoutTheAllowList(t *testing.T) {
	srv := serve(t, func(c *serverConn) {})
	_, port, _ := net.SplitHostPort(srv.addr)
	tests := []struct {
		name   string
		allow  []string
		target string
	}{
		{"empty list", nil, "a.example:" + port},
		{"other port", []string{"a.example:1"}, "a.example:" + port},
		{"other host", []string{"a.example:" + port}, "b.a.example:" + port},
		{"the name's address is not the name", []string{"127.0.0.1:" + port}, "a.example:" + port},
		{"the address is not the name", []string{"a.example:" + port}, "127.0.0.1:" + port},
		{"the root's dot", []string{"a.example:" + port}, "a.example.:" + port},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var n network
			s := sender(t, "", func(c *Config) { c.Allow = tt.allow; n.use(c) })
			allowed := post("a.example:"+port, HTTP1)
			if len(tt.allow) > 0 {
				allowed = post(tt.allow[0], HTTP1)
			}
			other := post(tt.target, HTTP1)
			for way, send := range everyWay(s, allowed, other, &other) {
				wantErr(t, way, send(), ErrNotAllowed)
			}
			n.quiet(t)
			if s.Left() != 1<<20 {
				t.Error("the budget was touched")
			}
		})
	}
	if len(srv.all()) != 0 {
		t.Error("the server was reached")
	}
}

func TestAllowListIsExactInMeaning(t *testing.T) {
	srv := serve(t, func(c *serverConn) { c.request(t); c.say("HTTP/1.0 200 OK\r\n\r\n") })
	_, port, _ := net.SplitHostPort(srv.addr)
	var n network
	s := sender(t, "A.Example:"+port, n.use)
	if x := send(t, s, post("a.eXample:"+port, HTTP1)); x.Delivery != Answered || x.Addr != "a.example:"+port {
		t.Errorf("got %v at %s, %v", x.Delivery, x.Addr, x.Err)
	}
}

// The port that a scheme implies has to be in the list as well.
func TestAllowListWithImpliedPort(t *testing.T) {
	var n network
	s := sender(t, "a.example:443", n.use, func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != "127.0.0.1:443" {
				t.Errorf("dialled %s", addr)
			}
			return nil, errors.New("far enough")
		}
	})
	if x := send(t, s, Request{Method: "GET", URL: "https://a.example/"}); x.Delivery != NotSent {
		t.Errorf("got %v", x.Delivery)
	}
	_, err := s.Send(t.Context(), Request{Method: "GET", URL: "http://a.example/"})
	wantErr(t, "error", err, ErrNotAllowed)
}

func TestNoRedirectIsFollowed(t *testing.T) {
	other := serve(t, func(c *serverConn) {})
	srv := serve(t, func(c *serverConn) {
		c.request(t)
		c.say("HTTP/1.1 307 Go\r\nLocation: http://" + other.addr + "/\r\nContent-Length: 0\r\n\r\n")
		c.drain()
	})
	s := sender(t, srv.addr, func(c *Config) { c.Allow = append(c.Allow, other.addr) })
	if x := send(t, s, post(srv.addr, HTTP1)); x.Response == nil || x.Response.Status != 307 {
		t.Errorf("got %+v", x.Response)
	}
	srv.only(t)
	if len(other.all()) != 0 {
		t.Error("the redirect was followed")
	}
}

func TestBudget(t *testing.T) {
	var served atomic.Int64
	srv := webServer(t, false, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			served.Add(1)
		}
	})
	addr := trimScheme(srv.URL)
	one, two := post(addr, HTTP1), post(addr, HTTP2)
	warm := Request{Method: "GET", URL: srv.URL}
	ctx := context.Background()
	tests := []struct {
		name string
		cost int
		send func(s *Sender) error
	}{
		{"Send", 1, func(s *Sender) error { _, err := s.Send(ctx, one); return err }},
		{"SendCut", 1, func(s *Sender) error { _, err := s.SendCut(ctx, one, Cut{At: BeforeLastByte}); return err }},
		{"race", 3, func(s *Sender) error { _, err := s.SendRace(ctx, []Request{one, one, one}, nil); return err }},
		{"race, warmed", 6, func(s *Sender) error { _, err := s.SendRace(ctx, []Request{one, one, one}, &warm); return err }},
		{"race with HTTP/2, warmed", 4, func(s *Sender) error { _, err := s.SendRace(ctx, []Request{two, two, two}, &warm); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, budget := range []int{tt.cost, 2*tt.cost - 1} {
				var n network
				counted := map[Kind]int{}
				s := sender(t, addr, n.use, func(c *Config) {
					c.MaxSends = budget
					c.Observer = &Observer{Exchanged: func(_ context.Context, k Kind, x Exchange) { counted[k]++ }}
				})
				before := served.Load()
				if err := tt.send(s); err != nil {
					t.Fatal(err)
				}
				if got := int64(tt.cost); tt.name != "SendCut" && served.Load()-before != got {
					t.Errorf("the server saw %d requests, want %d", served.Load()-before, got)
				}
				if s.Left() != budget-tt.cost {
					t.Errorf("%d are left of %d, want %d", s.Left(), budget, budget-tt.cost)
				}
				seen := 0
				for _, n := range counted {
					seen += n
				}
				if seen != tt.cost {
					t.Errorf("the observer saw %v, want %d in all", counted, tt.cost)
				}
				n.lookups.Store(0)
				n.dials.Store(0)
				before = served.Load()
				wantErr(t, "second time", tt.send(s), ErrBudget)
				n.quiet(t)
				if served.Load() != before {
					t.Error("something was sent")
				}
			}
		})
	}
}

// What failed to connect, or to be looked up, has counted: a budget also bounds
// attempts, whatever they were for.
func TestBudgetCountsAttempts(t *testing.T) {
	r := post("127.0.0.1:9", HTTP1)
	warm := Request{Method: "GET", URL: "http://127.0.0.1:9/"}
	for name, try := range map[string]func(*Sender) error{
		"send": func(s *Sender) error { _, err := s.Send(t.Context(), r); return err },
		"cut":  func(s *Sender) error { _, err := s.SendCut(t.Context(), r, Cut{At: AfterRequest}); return err },
		"race": func(s *Sender) error { _, err := s.SendRace(t.Context(), []Request{r, r}, nil); return err },
		"race, warmed": func(s *Sender) error {
			_, err := s.SendRace(t.Context(), []Request{r, r}, &warm)
			return err
		},
	} {
		var dials atomic.Int64
		told := 0
		s := sender(t, "127.0.0.1:9", func(c *Config) {
			c.MaxSends = 8
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, errors.New("no route")
			}
			c.Observer = &Observer{Exchanged: func(context.Context, Kind, Exchange) { told++ }}
		})
		var err error
		for range 9 {
			if err = try(s); err != nil {
				break
			}
		}
		wantErr(t, name+": in the end", err, ErrBudget)
		// A race ends with the first connection that does not come about.
		if n := int(dials.Load()); n == 0 || n > told || told != 8-s.Left() {
			t.Errorf("%s: %d attempts, %d told of, and %d are left of 8", name, n, told, s.Left())
		}
	}
	s := sender(t, "nowhere.example:80", func(c *Config) {
		c.MaxSends = 1
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
	})
	send(t, s, post("nowhere.example:80", HTTP1))
	_, err := s.Send(t.Context(), post("nowhere.example:80", HTTP1))
	wantErr(t, "after a failed look-up", err, ErrBudget)
}

func TestBudgetUnderConcurrency(t *testing.T) {
	srv := serve(t, func(c *serverConn) { c.request(t); c.say("HTTP/1.0 200 OK\r\n\r\n") })
	s := sender(t, srv.addr, func(c *Config) { c.MaxSends = 5 })
	refused := make(chan bool, 20)
	for range cap(refused) {
		go func() {
			_, err := s.Send(context.Background(), post(srv.addr, HTTP1))
			refused <- errors.Is(err, ErrBudget)
		}()
	}
	n := 0
	for range cap(refused) {
		if <-refused {
			n++
		}
	}
	if n != 15 || len(srv.all()) != 5 {
		t.Errorf("%d were refused, the server saw %d; want 15 and 5", n, len(srv.all()))
	}
}

// A name that points elsewhere the second time does not lead there.
func TestNameIsResolvedOnce(t *testing.T) {
	srv := serve(t, func(c *serverConn) { c.request(t); c.say("HTTP/1.0 200 OK\r\n\r\n") })
	_, port, _ := net.SplitHostPort(srv.addr)
	lookups := 0
	var dialled []string
	s := sender(t, "a.example:"+port, func(c *Config) {
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			if lookups++; lookups == 1 {
				return []netip.Addr{netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("::ffff:127.0.0.1")}, nil
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		}
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialled = append(dialled, addr)
			if strings.HasPrefix(addr, "127.0.0.9:") {
				return nil, errors.New("nobody there")
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	for range 3 {
		if x := send(t, s, post("a.example:"+port, HTTP1)); x.Delivery != Answered || x.Remote.String() != srv.addr {
			t.Fatalf("got %v at %v, %v", x.Delivery, x.Remote, x.Err)
		}
	}
	here := "127.0.0.1:" + port
	if want := "127.0.0.9:" + port + " " + here + " " + here + " " + here; strings.Join(dialled, " ") != want || lookups != 1 {
		t.Errorf("dialled %v after %d look-ups, want %s after 1", dialled, lookups, want)
	}
}

func TestLookUpFails(t *testing.T) {
	failed := errors.New("no such host")
	for _, err := range []error{failed, nil} {
		s := sender(t, "a.example:80", func(c *Config) {
			c.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, err }
		})
		x := send(t, s, post("a.example:80", HTTP1))
		if x.Delivery != NotSent || x.Err == nil {
			t.Errorf("got %v, %v", x.Delivery, x.Err)
		}
		if err != nil {
			wantErr(t, "Err", x.Err, failed)
		}
	}
}

func TestObserverSeesWhatTheCallerGets(t *testing.T) {
	srv := serve(t, func(c *serverConn) { c.request(t); c.say("HTTP/1.0 200 OK\r\n\r\n") })
	var seen []Exchange
	s := sender(t, srv.addr, func(c *Config) {
		c.Timeout = time.Minute
		c.Observer = &Observer{Exchanged: func(_ context.Context, k Kind, x Exchange) {
			if k != KindSend {
				t.Errorf("kind is %v", k)
			}
			seen = append(seen, x)
		}}
	})
	x := send(t, s, post(srv.addr, HTTP1))
	if len(seen) != 1 || seen[0].Timing != x.Timing || seen[0].Delivery != Answered {
		t.Errorf("the observer saw %+v", seen)
	}
}
