package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Defaults of Config.
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultTimeout        = 30 * time.Second
	DefaultMaxResponse    = 8 << 20
)

// Errors of the methods that send. With any of them nothing at all touched the
// network.
var (
	// ErrNotAllowed: the target is not in the allow-list.
	ErrNotAllowed = errors.New("wire: target is not allowed")
	// ErrBudget: the send would exceed Config.MaxSends.
	ErrBudget = errors.New("wire: budget of sends is used up")
)

// Config makes a Sender.
type Config struct {
	// Allow lists the targets, each as host:port with the host as in the
	// URLs, or an IP address. There are no patterns. Without an entry
	// nothing is sent.
	Allow []string
	// MaxSends is how many requests may go out in the Sender's life, those
	// of races and warm-ups counted one by one. A request counts when it is
	// tried, even if no connection comes about. Required, at least 1.
	MaxSends int

	// TLS is for https: roots, the server's name, client certificates. The
	// default verifies against the system's roots. Versions of HTTP, session
	// resumption and record sizes are the Sender's: what is set there is ignored.
	TLS *tls.Config
	// ConnectTimeout bounds look-up, TCP and TLS together. Default 10 s.
	ConnectTimeout time.Duration
	// Timeout bounds one exchange from its connection's standing to the end
	// of the response, and in a race the whole of it. Default 30 s.
	Timeout time.Duration
	// MaxResponse bounds what is read of a response, in bytes, header included.
	// The responses of a race share eight times as much. A header block is
	// bounded by 1 MiB as well, interim responses by 100, and what a server
	// sends beside its responses over HTTP/2 by 1 MiB and a window of DATA for
	// each request; beyond any of these the exchange ends with ErrTooLarge.
	// Default 8 MiB.
	MaxResponse int

	// Resolve looks a name up. It is called once for a name that it could
	// resolve: all connections of the Sender then go to what it returned, and the
	// second one on to the very address that the first one reached. Default:
	// the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Dial opens a TCP connection to an IP address and port. Default: a
	// net.Dialer. What is not a *net.TCPConn loses the precise release of
	// races and the Acked of cuts.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Observer is told what was done; nil for nobody.
	Observer *Observer
}

// Observer is told what a Sender does. Functions may be nil, must not block,
// and are called one at a time in the goroutine of the send. What they are
// given is shared with the caller of the send: do not change it.
type Observer struct {
	// Exchanged: an exchange is over. Called for each request that counted
	// against the budget.
	Exchanged func(context.Context, Kind, Exchange)
}

// Kind is what an exchange was for.
type Kind string

// The kinds.
const (
	KindSend   Kind = "send"
	KindCut    Kind = "cut"
	KindRace   Kind = "race"
	KindWarmUp Kind = "warm-up"
)

func (c Config) withDefaults() Config {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxResponse == 0 {
		c.MaxResponse = DefaultMaxResponse
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Observer == nil {
		c.Observer = &Observer{}
	}
	if c.TLS == nil {
		c.TLS = &tls.Config{}
	}
	c.TLS = c.TLS.Clone()
	c.TLS.ClientSessionCache = nil
	c.TLS.DynamicRecordSizingDisabled = true // the final frames of a race belong into one record
	return c
}

func (c Config) validate() error {
	var errs []error
	for i, a := range c.Allow {
		if _, err := canonicalAddr(a); err != nil {
			errs = append(errs, fmt.Errorf("field Allow[%d]: %w", i, err))
		}
	}
	if c.MaxSends < 1 {
		errs = append(errs, fmt.Errorf("field MaxSends is %d; it has to be at least 1", c.MaxSends))
	}
	if c.ConnectTimeout < 0 {
		errs = append(errs, fmt.Errorf("field ConnectTimeout is %v; it must not be negative", c.ConnectTimeout))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("field Timeout is %v; it must not be negative", c.Timeout))
	}
	if c.MaxResponse < 0 {
		errs = append(errs, fmt.Errorf("field MaxResponse is %d; it must not be negative", c.MaxResponse))
	}
	return errors.Join(errs...)
}

// Sender sends. It keeps no connection from one call to the next and has no
// goroutine when none of its methods runs. It is safe for concurrent use.
type Sender struct {
	cfg   Config
	allow []string

	mu    sync.Mutex
	left  int
	hosts map[string][]netip.Addr // by name
	pins  map[string]netip.Addr   // by host:port: the address that was reached
}

// New returns a Sender, or all that is wrong with the configuration.
func New(c Config) (*Sender, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("wire: invalid configuration: %w", err)
	}
	c = c.withDefaults()
	s := &Sender{cfg: c, left: c.MaxSends, hosts: map[string][]netip.Addr{}, pins: map[string]netip.Addr{}}
	for _, a := range c.Allow {
		addr, _ := canonicalAddr(a) // validated
		s.allow = append(s.allow, addr)
	}
	return s, nil
}

// Left returns how many sends the budget still has.
func (s *Sender) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// Send sends a request in a connection of its own and waits for the end of the
// response. An error means that nothing touched the network: the request is
// invalid, its target not allowed, the budget used up, or the context over.
// Everything else, a failed look-up included, is told by the Exchange.
//
// A context that ends closes the connection at once; how far the request got
// by then is what the Exchange says.
func (s *Sender) Send(ctx context.Context, r Request) (Exchange, error) {
	m, err := s.admit(ctx, 1, r)
	if err != nil {
		return Exchange{}, err
	}
	x := s.single(ctx, m[0], Cut{})
	s.observe(ctx, KindSend, x)
	return x, nil
}

// admit is the only way to the network: it renders the requests, checks each
// one's target and takes sends from the budget.
func (s *Sender) admit(ctx context.Context, sends int, rs ...Request) ([]*message, error) {
	ms := make([]*message, len(rs))
	for i, r := range rs {
		m, err := r.render()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(s.allow, m.addr) {
			return nil, fmt.Errorf("%w: %s", ErrNotAllowed, m.addr)
		}
		ms[i] = m
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return ms, s.take(sends)
}

// take takes sends from the budget.
func (s *Sender) take(sends int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sends > s.left {
		return fmt.Errorf("%w: %d of %d left, %d needed", ErrBudget, s.left, s.cfg.MaxSends, sends)
	}
	s.left -= sends
	return nil
}

// giveBack returns sends that were taken and never tried.
func (s *Sender) giveBack(sends int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left += sends
}

func (s *Sender) observe(ctx context.Context, k Kind, xs ...Exchange) {
	if s.cfg.Observer.Exchanged == nil {
		return
	}
	for _, x := range xs {
		s.cfg.Observer.Exchanged(ctx, k, x)
	}
}

// single is one exchange in a connection of its own.
func (s *Sender) single(ctx context.Context, m *message, cut Cut) Exchange {
	x := newExchange(m)
	c, err := s.connect(ctx, m, m.req.Protocol, &x)
	if err == nil && cut.By == ByStream && c.protocol != HTTP2 {
		err = fmt.Errorf("%w: a stream can only be cut in HTTP/2", ErrProtocol)
		c.close()
	}
	if err != nil {
		x.Err = err
		x.Timing.Done = time.Now()
		return x
	}
	defer c.close()
	ctx, cancel := s.limit(ctx)
	defer cancel()
	if c.protocol == HTTP2 {
		s.single2(ctx, c, m, cut, &x)
	} else {
		s.single1(ctx, c, m, cut, &x)
	}
	return x
}

// limit bounds an exchange.
func (s *Sender) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.cfg.Timeout, fmt.Errorf("%w: no end of the exchange within %v", ErrTimeout, s.cfg.Timeout))
}

func newExchange(m *message) Exchange {
	return Exchange{Request: m.req, Addr: m.addr, Timing: Timing{Start: time.Now()}}
}

// connect opens a connection for a message, and writes down in x how.
func (s *Sender) connect(ctx context.Context, m *message, want Protocol, x *Exchange) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.ConnectTimeout,
		fmt.Errorf("%w: no connection within %v", ErrTimeout, s.cfg.ConnectTimeout))
	defer cancel()
	c, err := s.open(ctx, m, want, x)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	x.Protocol = c.protocol
	x.TLS = c.tls
	x.Remote, x.Local = addrPort(c.RemoteAddr()), addrPort(c.LocalAddr())
	return c, nil
}

func (s *Sender) open(ctx context.Context, m *message, want Protocol, x *Exchange) (*conn, error) {
	addrs, err := s.resolve(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("wire: cannot look up %s: %w", m.host, err)
	}
	x.Timing.Resolved = time.Now()

	_, port, _ := net.SplitHostPort(m.addr)
	var raw net.Conn
	var errs []error
	for _, a := range addrs {
		if raw, err = s.cfg.Dial(ctx, "tcp", net.JoinHostPort(a.String(), port)); err == nil {
			s.pin(m.addr, a)
			break
		}
		errs = append(errs, err)
	}
	if raw == nil {
		return nil, fmt.Errorf("wire: cannot connect: %w", errors.Join(errs...))
	}
	x.Timing.Connected = time.Now()

	c := &conn{pipe: &pipe{Conn: raw}, protocol: want}
	c.Conn = c.pipe
	if !m.secure {
		if want == Auto {
			c.protocol = HTTP1
		}
		return c, nil
	}
	conf := s.cfg.TLS.Clone()
	if conf.ServerName == "" {
		conf.ServerName = m.host
	}
	conf.NextProtos = map[Protocol][]string{Auto: {"h2", "http/1.1"}, HTTP1: {"http/1.1"}, HTTP2: {"h2"}}[want]
	secured := tls.Client(c.pipe, conf)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("wire: TLS handshake: %w", err)
	}
	x.Timing.Secured = time.Now()
	state := secured.ConnectionState()
	c.Conn, c.tls = secured, &state
	switch {
	case state.NegotiatedProtocol == "h2":
		c.protocol = HTTP2
	case want == HTTP2:
		c.close()
		return nil, fmt.Errorf("%w: HTTP/2 was not negotiated", ErrProtocol)
	default:
		c.protocol = HTTP1
	}
	return c, nil
}

// resolve returns the addresses to try for a message's target: the one that
// was reached before, or what the first look-up of the name said.
func (s *Sender) resolve(ctx context.Context, m *message) ([]netip.Addr, error) {
	s.mu.Lock()
	pin, pinned := s.pins[m.addr]
	addrs := s.hosts[m.host]
	s.mu.Unlock()
	if pinned {
		return []netip.Addr{pin}, nil
	}
	if addrs != nil {
		return addrs, nil
	}
	if ip, err := netip.ParseAddr(m.host); err == nil {
		return []netip.Addr{ip}, nil
	}
	found, err := s.cfg.Resolve(ctx, m.host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("there is no address")
	}
	for i, a := range found {
		found[i] = a.Unmap()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if addrs = s.hosts[m.host]; addrs == nil { // else another send was faster
		addrs = slices.Clone(found)
		s.hosts[m.host] = addrs
	}
	return addrs, nil
}

func (s *Sender) pin(addr string, ip netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pins[addr]; !ok {
		s.pins[addr] = ip
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if a, ok := a.(*net.TCPAddr); ok {
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}
