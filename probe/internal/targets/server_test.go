package targets

import (
	"cmp"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// site is a target on a port, and requests to it made by its own plan.
type site struct {
	t        *testing.T
	server   *Server
	sender   *wire.Sender
	renderer *plan.Renderer
	values   *plan.Values
	protocol wire.Protocol
	ref      string
}

func listen(t *testing.T, target Target, protocol wire.Protocol, prepare ...func(*Service)) *site {
	service := target.New()
	for _, f := range prepare {
		f(service)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := service.Serve(l)
	t.Cleanup(s.Close)
	r, err := plan.NewRenderer(target.Plan(s, ""), plan.Source{Env: Env})
	if err != nil {
		t.Fatal(err)
	}
	v, err := r.Draw(r.Plan().Operations[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := wire.New(wire.Config{Allow: []string{s.Addr}, MaxSends: 100})
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := v.Variable("ref")
	return &site{t: t, server: s, sender: sender, renderer: r, values: v, protocol: protocol, ref: ref}
}

func (s *site) request() wire.Request {
	r, err := s.renderer.Request(s.values, plan.Change{})
	if err != nil {
		s.t.Fatal(err)
	}
	r.Protocol = s.protocol
	return r
}

func (s *site) send() wire.Exchange {
	x, err := s.sender.Send(s.t.Context(), s.request())
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

func (s *site) race(n int) (byDelivery map[wire.Delivery]int, byStatus map[int]int) {
	var list []wire.Request
	for range n {
		list = append(list, s.request())
	}
	race, err := s.sender.SendRace(s.t.Context(), list, nil)
	if err != nil || !race.Released {
		s.t.Fatalf("the race was not released: %v, %v", err, race.Err)
	}
	byDelivery, byStatus = map[wire.Delivery]int{}, map[int]int{}
	for _, x := range race.Exchanges {
		byDelivery[x.Delivery]++
		if x.Response != nil {
			byStatus[x.Response.Status]++
		}
	}
	s.server.Wait()
	return byDelivery, byStatus
}

// read asks the target itself how many orders there are.
func (s *site) read() int {
	reading, err := s.renderer.Reading(s.values, &s.renderer.Plan().Operations[0].Readers[0], "")
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.Get(reading.Request.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Count  int
		Orders []json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || list.Count != len(list.Orders) {
		s.t.Fatalf("%+v: %v", list, err)
	}
	return list.Count
}

func eachProtocol(t *testing.T, f func(t *testing.T, p wire.Protocol)) {
	t.Run("HTTP1", func(t *testing.T) { f(t, wire.HTTP1) })
	t.Run("HTTP2", func(t *testing.T) { f(t, wire.HTTP2) })
}

// TestControl sends the request of each plan once: it makes one order, and the
// three ways to read the state agree.
func TestControl(t *testing.T) {
	quick.LeaveOut(t)
	eachProtocol(t, func(t *testing.T, p wire.Protocol) {
		for _, target := range All() {
			if _, ok := different[target.Name]["once"]; ok || strings.HasPrefix(target.Name, "first-") {
				continue // its first attempt fails, or has no effect
			}
			t.Run(target.Name, func(t *testing.T) {
				t.Parallel()
				s := listen(t, target, p)
				x := s.send()
				if x.Response == nil || x.Response.Status/100 != 2 || x.Protocol != p {
					t.Fatalf("%v: %v, %+v", x.Protocol, x.Err, x.Response)
				}
				s.server.Wait()
				if s.server.Count(s.ref) != 1 || s.read() != 1 {
					t.Errorf("%d orders, and %d by GET", s.server.Count(s.ref), s.read())
				}
				lines := strings.Join(s.server.Audit(), "\n")
				if strings.Contains(lines, "key="+cmp.Or(s.values.Key(), "-")+" ") == (target.Name == "no-audit") {
					t.Errorf("the audit log is %q", lines)
				}
			})
		}
	})
}

func TestRaceOnTheWire(t *testing.T) {
	quick.LeaveOut(t)
	eachProtocol(t, func(t *testing.T, p wire.Protocol) {
		for _, name := range []string{"ietf-conflict", "ietf-waits", "serialises", "natural-key", "stripe", "late-effect", "unique-violation-leaks", "record-needs-client"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := listen(t, named(t, name), p)
				if s.race(5); s.server.Count(s.ref) != 1 {
					t.Errorf("%d orders", s.server.Count(s.ref))
				}
			})
		}
		for _, name := range []string{"ignores-key", "check-then-act", "check-then-queue"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := listen(t, named(t, name), p)
				if s.race(5); s.server.Count(s.ref) < 2 {
					t.Errorf("%d orders", s.server.Count(s.ref))
				}
			})
		}
		t.Run("sheds-429", func(t *testing.T) {
			s := listen(t, named(t, "sheds-429"), p)
			if _, status := s.race(5); status[201] != 1 || status[429] != 4 || s.server.Count(s.ref) != 1 {
				t.Errorf("the responses are %v for %d orders", status, s.server.Count(s.ref))
			}
		})
		t.Run("sheds-abort", func(t *testing.T) {
			s := listen(t, named(t, "sheds-abort"), p)
			if got, _ := s.race(5); got[wire.Answered] != 1 || got[wire.Unanswered] != 4 || s.server.Count(s.ref) != 1 {
				t.Errorf("delivered %v for %d orders", got, s.server.Count(s.ref))
			}
		})
	})
}

func TestRefusals(t *testing.T) {
	for _, name := range []string{"refuses-streams", "goes-away"} {
		t.Run(name, func(t *testing.T) {
			s := listen(t, named(t, name), wire.HTTP2)
			if got, _ := s.race(5); got[wire.Answered] != 1 || got[wire.Refused] != 4 || s.server.Count(s.ref) != 1 {
				t.Errorf("delivered %v for %d orders", got, s.server.Count(s.ref))
			}
			x := s.send()
			if x.Response == nil || x.Response.Status != 201 || x.Response.Header.Get(Marker) != "true" {
				t.Errorf("the replay is %+v: %v", x.Response, x.Err)
			}
			if n := s.server.Count(s.ref); n != 1 {
				t.Errorf("%d orders after the replay", n)
			}
		})
	}
}

// TestCutOnTheWire proves that a client that goes away is noticed.
func TestCutOnTheWire(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p wire.Protocol) {
		for _, c := range []struct {
			name  string
			at    wire.CutPoint
			count int
		}{
			{"record-needs-client", wire.AfterRequest, 2},
			{"record-needs-client", wire.AfterFirstByte, 1},
			{"record-after-answer", wire.AfterRequest, 2},
			{"record-after-answer", wire.AfterFirstByte, 2},
			{"ietf-conflict", wire.AfterRequest, 1},
			{"ietf-conflict", wire.AfterFirstByte, 1},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := listen(t, named(t, c.name), p)
				x, err := s.sender.SendCut(t.Context(), s.request(), wire.Cut{At: c.at, By: wire.ByReset})
				if err != nil || !x.Cut {
					t.Fatalf("not cut: %v, %v", err, x.Err)
				}
				s.server.WaitForOrder(s.ref)
				s.server.Wait()
				x = s.send()
				if x.Response == nil || x.Response.Status != 201 {
					t.Errorf("the retry got %+v: %v", x.Response, x.Err)
				}
				if n := s.server.Count(s.ref); n != c.count {
					t.Errorf("cut %v: %d orders, want %d", c.at, n, c.count)
				}
			})
		}
	})
}

func TestMailsReachASink(t *testing.T) {
	for name, want := range map[string]int64{"mails-once": 1, "mails-twice": 2} {
		t.Run(name, func(t *testing.T) {
			var got atomic.Int64
			var ref atomic.Value
			sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				ref.Store(string(body))
				got.Add(1)
			}))
			defer sink.Close()
			s := listen(t, named(t, name), wire.HTTP1, func(svc *Service) { svc.SendMailsTo(sink.URL, sink.Client()) })
			s.send()
			s.send()
			s.server.Wait()
			if n := got.Load(); n != want || int64(s.server.Mails(s.ref)) != want || s.server.Count(s.ref) != 1 {
				t.Errorf("the sink got %d mails, %d were sent, for %d orders", n, s.server.Mails(s.ref), s.server.Count(s.ref))
			}
			if body, _ := ref.Load().(string); !strings.Contains(body, s.ref) {
				t.Errorf("the mail is %q", body)
			}
		})
	}
}
