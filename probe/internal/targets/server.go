package targets

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Service is a target at work, with a state of its own. It is safe for
// concurrent use.
type Service struct {
	http.Handler
	shop   *shop
	refuse refuse
}

func newService(s *shop, h http.Handler) *Service {
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.begin()
		defer s.end()
		h.ServeHTTP(w, r)
	})
	return &Service{Handler: counted, shop: s}
}

// Count returns how many orders of a reference were made.
func (s *Service) Count(ref string) int { return len(s.shop.list(ref)) }

// Mails returns how often the outside was told of a reference.
func (s *Service) Mails(ref string) int { return len(s.shop.mailed(ref)) }

// Audit returns the lines of the audit log.
func (s *Service) Audit() []string { return s.shop.auditLines() }

// Fail makes whatever would take effect fail from now on, or work again.
func (s *Service) Fail(on bool) { s.shop.failing.Store(on) }

// SendMailsTo has the service POST each mail to a URL as well, with the given
// client. It is to be called before the first request.
func (s *Service) SendMailsTo(url string, c *http.Client) { s.shop.sink, s.shop.client = url, c }

// Wait returns when no request and nothing in the background is under way.
func (s *Service) Wait() { s.shop.await(func() bool { return s.shop.busy == 0 }) }

// WaitForOrder returns when there is an order of a reference.
func (s *Service) WaitForOrder(ref string) {
	s.shop.await(func() bool {
		return slices.ContainsFunc(s.shop.orders, func(o order) bool { return o.Reference == ref })
	})
}

// Server is a Service that listens, for HTTP/1.1 and for HTTP/2 by prior
// knowledge.
type Server struct {
	*Service
	// URL has no path and no slash at its end; Addr is its host:port.
	URL, Addr string

	listener net.Listener
	http     http.Server
	conns    chan net.Conn // those of HTTP/1.1, if HTTP/2 is ours
	over     chan struct{}
	serving  sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	posts  int // that the HTTP/2 of ours is processing
	closed bool
}

// Serve starts a server on a listener, which it closes in the end.
func (s *Service) Serve(l net.Listener) *Server {
	addr := l.Addr().String()
	srv := &Server{
		Service: s, URL: "http://" + addr, Addr: addr, listener: l,
		conns: make(chan net.Conn), over: make(chan struct{}), open: map[net.Conn]bool{},
	}
	srv.http.Handler = s
	srv.http.ErrorLog = log.New(io.Discard, "", 0)
	srv.http.Protocols = new(http.Protocols)
	srv.http.Protocols.SetHTTP1(true)
	if s.refuse == "" {
		srv.http.Protocols.SetUnencryptedHTTP2(true)
		srv.serving.Go(func() { _ = srv.http.Serve(l) })
		return srv
	}
	srv.serving.Go(func() { _ = srv.http.Serve(handed{srv}) })
	srv.serving.Go(srv.accept)
	return srv
}

// Also serves at a further address, as another instance would, and returns it. It
// is not for services that refuse on purpose.
func (s *Server) Also(l net.Listener) (addr string) {
	s.serving.Go(func() { _ = s.http.Serve(l) })
	return l.Addr().String()
}

// Close ends all connections and returns when nothing is under way any more.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.over)
	}
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	_ = s.listener.Close()
	_ = s.http.Close()
	s.serving.Wait()
	s.Wait()
}

// accept tells the two protocols apart by their first bytes.
func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.open[c] = true
		s.serving.Go(func() {
			r := bufio.NewReader(c)
			start, err := r.Peek(3)
			switch {
			case err == nil && string(start) == "PRI":
				s.serveHTTP2(c, r)
			case err == nil:
				select {
				case s.conns <- peeked{c, r}:
					return // the HTTP server closes it
				case <-s.over:
				}
			}
			s.forget(c)
			_ = c.Close()
		})
		s.mu.Unlock()
	}
}

func (s *Server) forget(c net.Conn) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
}

// peeked is a connection of which something was read.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

// handed is the listener of the connections that accept hands on.
type handed struct{ *Server }

func (h handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.over:
		return nil, errors.New("targets: closed")
	}
}

func (h handed) Addr() net.Addr { return h.listener.Addr() }

// Close is called by the HTTP server; the Server closes everything itself.
func (h handed) Close() error { return nil }
