package probe

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/smtp"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// telling tells of each connection that it is closed.
type telling struct {
	net.Listener
	closed chan bool
}

type tellingConn struct {
	net.Conn
	closed chan bool
	once   sync.Once
}

func (l telling) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &tellingConn{Conn: c, closed: l.closed}, err
}

func (c *tellingConn) Close() error {
	c.once.Do(func() { c.closed <- true })
	return c.Conn.Close()
}

func openSink(t *testing.T, overHTTP bool, limits sinkLimits) *sink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newSink(telling{l, make(chan bool, 100)}, overHTTP, limits)
	t.Cleanup(s.close)
	return s
}

func (s *sink) deliver(overHTTP bool, text string) error {
	if !overHTTP {
		return smtp.SendMail(s.Addr().String(), nil, "a@example.com", []string{"b@example.com"}, []byte("\r\n"+text))
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Post("http://"+s.Addr().String(), "text/plain", strings.NewReader(text))
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the response is %d", res.StatusCode)
	}
	return nil
}

// A sink holds as much as it may. After that it says so to who delivers, and
// counts no more: that a delivery is missing must not look like a lost effect.
func TestSinkLimits(t *testing.T) {
	for _, overHTTP := range []bool{true, false} {
		for _, c := range []struct {
			name   string
			limits sinkLimits
			texts  []string // the last one is too much
			want   string
		}{
			{"deliveries", sinkLimits{each: 1000, all: 10_000, deliveries: 2, conns: 9}, []string{"a", "b", "c"}, "it had 2 deliveries"},
			{"bytes", sinkLimits{each: 3000, all: 6_000, deliveries: 9, conns: 9}, []string{strings.Repeat("a", 2500), strings.Repeat("b", 2500), strings.Repeat("c", 2500)}, "it has room for"},
			{"heads", sinkLimits{each: 10, all: 500, deliveries: 99, conns: 9}, strings.Split(strings.Repeat("a", 60), ""), "it has room for"},
		} {
			t.Run(fmt.Sprintf("%s, HTTP %v", c.name, overHTTP), func(t *testing.T) {
				s := openSink(t, overHTTP, c.limits)
				taken, failed := 0, error(nil)
				for _, text := range c.texts {
					if failed = s.deliver(overHTTP, text); failed != nil {
						break
					}
					taken++
				}
				if failed == nil || taken == 0 {
					t.Fatalf("%d deliveries were taken, %v", taken, failed)
				}
				if _, _, err := s.count(nil); err == nil || !strings.Contains(err.Error(), "the sink was full: "+c.want) {
					t.Errorf("the count's error is %v", err)
				}
				if s.bytes > c.limits.all || len(s.got) != taken {
					t.Errorf("%d bytes in %d deliveries", s.bytes, len(s.got))
				}
			})
		}
	}
}

// A delivery that is cut off takes no room.
func TestSinkGivesBack(t *testing.T) {
	s := openSink(t, true, sinkLimits{each: 1000, all: 10_000, deliveries: 9, conns: 9})
	for range 20 {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n%s", strings.Repeat("x", 900))
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	if err := s.deliver(true, "whole"); err != nil {
		t.Fatal(err)
	}
	if n, _, err := s.count(regexp.MustCompile("whole")); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// A delivery that is larger than what is kept counts if what was kept matches.
// If not, nobody knows.
func TestSinkCutsOff(t *testing.T) {
	for _, overHTTP := range []bool{true, false} {
		s := openSink(t, overHTTP, sinkLimits{each: 1000, all: 10_000, deliveries: 9, conns: 9})
		if err := s.deliver(overHTTP, "begin"+strings.Repeat("x", 2000)+"end"); err != nil {
			t.Fatal(err)
		}
		if n, _, err := s.count(regexp.MustCompile("begin")); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if _, _, err := s.count(regexp.MustCompile("end")); err == nil || !strings.Contains(err.Error(), "cannot tell") {
			t.Errorf("the count's error is %v", err)
		}
		if s.bytes > 2000 {
			t.Errorf("%d bytes are kept", s.bytes)
		}
	}
}

// Connections beyond the limit are refused, and counted as lost deliveries;
// those that have ended make room.
func TestSinkConnections(t *testing.T) {
	for _, overHTTP := range []bool{true, false} {
		s := openSink(t, overHTTP, sinkLimits{each: 1000, all: 100_000, deliveries: 99, conns: 3})
		for range 10 {
			if err := s.deliver(overHTTP, "x"); err != nil {
				t.Fatal(err)
			}
			// The server learns a moment later than the client that it is over.
			<-s.Listener.(telling).closed
		}
		if n, _, err := s.count(nil); n != 10 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		for range 3 {
			c, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if overHTTP {
				_, _ = io.WriteString(c, "POST / HTTP/1.1\r\n") // it is accepted before the next
			} else if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.deliver(overHTTP, "x"); err == nil {
			t.Error("a fourth connection")
		}
		if _, _, err := s.count(nil); err == nil || !strings.Contains(err.Error(), "refused a connection") {
			t.Errorf("the count's error is %v", err)
		}
	}
}

// A line that does not end is refused before it takes much room.
func TestSinkLine(t *testing.T) {
	s := openSink(t, false, defaultSinkLimits)
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := 0
	for chunk := strings.Repeat("x", 64<<10); sent < 256<<20; {
		n, err := io.WriteString(c, chunk)
		if sent += n; err != nil {
			break
		}
	}
	if sent >= 256<<20 {
		t.Errorf("%d bytes were taken", sent)
	}
}
