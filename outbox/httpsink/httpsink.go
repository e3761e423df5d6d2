// Package httpsink delivers the messages of an outbox by HTTP.
//
// A message is a POST of its payload. Its id goes along in Idempotency-Key, so
// that the receiver can drop repetitions: after a crash, a timeout or a lost
// answer the same message is sent again. A receiver behind semel's middleware or
// gateway does so by itself.
package httpsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/semelhq/semel/outbox"
)

// Names of the headers that go with every message. Those of a message that has no
// key or type are left out. Topic, key and type are percent-encoded as in a path.
const (
	HeaderKey     = "Idempotency-Key"
	HeaderTopic   = "Semel-Topic"
	HeaderLane    = "Semel-Lane" // the message's key
	HeaderType    = "Semel-Type"
	HeaderAttempt = "Semel-Attempt"
)

// Config says where messages go. URL is required.
type Config struct {
	// URL is posted to.
	URL string
	// Header is sent with every request, such as an Authorization. It wins over
	// the headers of a message.
	Header http.Header
	// AllowPrivate lets the sink connect to addresses that are not public:
	// loopback, private, link-local and the like. By default it refuses them,
	// also where a public name resolves to one, since messages are often sent
	// to addresses that somebody else has given.
	AllowPrivate bool
	// UseProxyFromEnvironment sends through the proxy that HTTP_PROXY and its
	// kin name. Then AllowPrivate is about the proxy's address: whom it
	// connects to is its own matter.
	UseProxyFromEnvironment bool
	// MaxConns is how many connections there are at most. Default 64.
	MaxConns int
	// DialTimeout bounds connecting, and the TLS handshake apart. Default 10 s.
	// All of an attempt is bounded by the route's Timeout.
	DialTimeout time.Duration
}

// maxAnswer is how much of an answer's body is read, so that the connection can
// be used again.
const maxAnswer = 64 << 10

// Sink is an outbox.Sink that posts. New makes one.
type Sink struct {
	config    Config
	url       string
	transport *http.Transport
}

// New returns a sink. Close ends its idle connections.
func New(c Config) (*Sink, error) {
	if c.MaxConns == 0 {
		c.MaxConns = 64
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 10 * time.Second
	}
	var errs []error
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		errs = append(errs, errors.New("field URL cannot be parsed")) // the error would repeat a password
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		errs = append(errs, errors.New("field URL must be an http or https URL with a host"))
	case u.User != nil:
		errs = append(errs, errors.New("field URL holds credentials; put them into Header"))
	}
	if c.MaxConns < 0 || c.DialTimeout < 0 {
		errs = append(errs, errors.New("fields MaxConns and DialTimeout must be positive"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("httpsink: config: %w", err)
	}
	c.Header = c.Header.Clone()
	dialer := &net.Dialer{Timeout: c.DialTimeout}
	if !c.AllowPrivate {
		dialer.Control = publicOnly
	}
	t := &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true, MaxConnsPerHost: c.MaxConns, MaxIdleConnsPerHost: c.MaxConns,
		TLSHandshakeTimeout: c.DialTimeout, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
	}
	if c.UseProxyFromEnvironment {
		t.Proxy = http.ProxyFromEnvironment
	}
	return &Sink{config: c, url: u.String(), transport: t}, nil
}

// Close closes idle connections.
func (s *Sink) Close() { s.transport.CloseIdleConnections() }

// ErrAddress: the receiver's address is not public, and Config.AllowPrivate is
// not set. Nothing was sent.
var ErrAddress = errors.New("httpsink: the address is not public")

// publicOnly is asked about the address itself, after names were resolved, so
// no name can lead elsewhere between a check and the connection.
func publicOnly(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrAddress, address)
	}
	if addr := embedded(ap.Addr().Unmap()); !isPublic(addr) {
		return fmt.Errorf("%w: %s", ErrAddress, ap.Addr())
	}
	return nil
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// embedded is the IPv4 address that a translator makes of an IPv6 address.
func embedded(a netip.Addr) netip.Addr {
	if nat64.Contains(a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// notPublic are the ranges of IANA's registries of special addresses that are not
// globally reachable, besides those that net/netip knows.
var notPublic = func() (all []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10",
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

func isPublic(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Zone() != "" {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// reserved headers of a message are the sink's own, or belong to the connection.
var reserved = map[string]bool{
	HeaderKey: true, HeaderTopic: true, HeaderLane: true, HeaderType: true, HeaderAttempt: true,
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Upgrade": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Expect": true,
}

// request makes the request. A message that cannot be one is Permanent.
func (s *Sink) request(ctx context.Context, d outbox.Delivery) (*http.Request, error) {
	// A type of our own, not one that the transport could rewind: it would send
	// again by itself, over another connection, what has an Idempotency-Key.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, onceReader{bytes.NewReader(d.Payload)})
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(len(d.Payload))
	r.Header.Set("Content-Type", "application/octet-stream")
	r.Header.Set("User-Agent", "semel-outbox")
	for name, value := range d.Headers {
		canonical := http.CanonicalHeaderKey(name)
		if !isToken(name) || strings.ContainsFunc(value, isControl) {
			return nil, outbox.Permanent(errors.New("httpsink: a header's name is no token, or its value holds control characters"))
		}
		if reserved[canonical] {
			return nil, outbox.Permanent(fmt.Errorf("httpsink: a message cannot set the header %s", canonical))
		}
		r.Header.Set(name, value)
	}
	set := func(name, value string) {
		if value != "" {
			r.Header.Set(name, url.PathEscape(value))
		}
	}
	set(HeaderTopic, d.Topic)
	set(HeaderLane, d.Key)
	set(HeaderType, d.Type)
	r.Header.Set(HeaderAttempt, strconv.Itoa(d.Attempt))
	for name, values := range s.config.Header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	r.Header.Set(HeaderKey, `"`+d.ID+`"`)
	return r, nil
}

type onceReader struct{ r *bytes.Reader }

func (o onceReader) Read(p []byte) (int, error) { return o.r.Read(p) }
func (o onceReader) Close() error               { return nil }

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// Deliver implements outbox.Sink. An answer of 2xx is a delivery. 408, 425, 429
// and 5xx are tried again, heeding Retry-After, and so is 409 with a
// Retry-After, which a receiver says that is still at work on the same message.
// So is a redirection, which is not followed: somebody has to correct the URL.
// All other answers of 4xx are for good. Without an answer it is tried again.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) error {
	r, err := s.request(ctx, d)
	if err != nil {
		return err
	}
	resp, err := s.transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("httpsink: %w", err)
	}
	defer resp.Body.Close()
	// The status says it all; what is left of the body is cut off.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	after, told := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	answered := fmt.Errorf("httpsink: the receiver answered %d", resp.StatusCode)
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusConflict && told,
		code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code/100 == 5:
		return outbox.RetryAfter(after, answered)
	case code/100 == 4:
		return outbox.Permanent(answered)
	case code/100 == 3:
		return fmt.Errorf("%w, a redirection, which is not followed", answered)
	}
	return answered
}

// retryAfter reads a Retry-After header, and reports whether there is one that
// makes sense.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	const most = 365 * 24 * time.Hour
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(most/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), most), true
	}
	return 0, false
}
