package httpsink

import (
	"bytes"
	"context"
	"crypto/tls"
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

	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/outbox"
)

// ClientConfig configures a Client. Its fields have the same meaning as in Config,
// except that MaxConns applies to each host.
type ClientConfig struct {
	AllowPrivate            bool
	UseProxyFromEnvironment bool
	MaxConns                int
	DialTimeout             time.Duration
	TLS                     *tls.Config
}

// Client posts messages, for sinks that determine the destination of each message.
// NewClient makes one. It is safe for concurrent use.
type Client struct{ transport *http.Transport }

// maxIdle is how many idle connections there are at most, to however many hosts.
const maxIdle = 1024

// NewClient returns a client. Close ends its idle connections.
func NewClient(c ClientConfig) (*Client, error) {
	if c.MaxConns == 0 {
		c.MaxConns = 64
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 10 * time.Second
	}
	if c.MaxConns < 0 || c.DialTimeout < 0 {
		return nil, errors.New("fields MaxConns and DialTimeout must be positive")
	}
	dialer := &net.Dialer{Timeout: c.DialTimeout}
	if !c.AllowPrivate {
		dialer.Control = publicOnly
	}
	t := &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true, MaxConnsPerHost: c.MaxConns, MaxIdleConnsPerHost: c.MaxConns, MaxIdleConns: maxIdle,
		TLSHandshakeTimeout: c.DialTimeout, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
		TLSClientConfig: c.TLS.Clone(),
	}
	if c.UseProxyFromEnvironment {
		t.Proxy = http.ProxyFromEnvironment
	}
	return &Client{t}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// ErrHeader reports that a message has a header that cannot be sent. Nothing
// was sent.
var ErrHeader = errors.New("httpsink: a header of the message cannot be sent")

// ParseURL parses a URL for POST requests. Its error does not contain the URL,
// which may contain secrets.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("cannot be parsed")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, errors.New("must be an http or https URL with a host")
	case u.User != nil:
		return nil, errors.New("holds credentials, which belong into a header")
	}
	return u, nil
}

// Answer is the response of a receiver.
type Answer struct {
	Status int
	// RetryAfter is the value of the Retry-After field. Told reports whether
	// there is one.
	RetryAfter time.Duration
	Told       bool
}

// maxAnswer is how much of an answer's body is read, so that the connection can
// be used again.
const maxAnswer = 64 << 10

// Post posts m's payload with m's headers and those in own, which take precedence.
// It makes exactly one request and follows no redirects. An error means that there
// was no response. If m's headers cannot be sent, the error is outbox.Permanent and
// matches ErrHeader.
func (c *Client) Post(ctx context.Context, to *url.URL, m outbox.Message, own http.Header) (Answer, error) {
	r, err := request(ctx, to, m, own)
	if err != nil {
		return Answer{}, err
	}
	resp, err := c.transport.RoundTrip(r)
	if err != nil {
		return Answer{}, fmt.Errorf("httpsink: %w", err)
	}
	defer resp.Body.Close()
	// The status says it all; what is left of the body is cut off.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	a := Answer{Status: resp.StatusCode}
	a.RetryAfter, a.Told = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return a, nil
}

func request(ctx context.Context, to *url.URL, m outbox.Message, own http.Header) (*http.Request, error) {
	header := http.Header{"Content-Type": {"application/octet-stream"}, "User-Agent": {"semel-outbox"}}
	for name, value := range m.Headers {
		canonical := http.CanonicalHeaderKey(name)
		if !httpfield.IsToken(name) || strings.ContainsFunc(value, isControl) {
			return nil, outbox.Permanent(fmt.Errorf("%w: its name is not a token, or its value holds control characters", ErrHeader))
		}
		if reserved[canonical] {
			return nil, outbox.Permanent(fmt.Errorf("%w: %s is the connection's", ErrHeader, canonical))
		}
		header.Set(name, value)
	}
	for name, values := range own {
		header[http.CanonicalHeaderKey(name)] = values
	}
	return (&http.Request{
		Method: http.MethodPost, URL: to, Host: to.Host, Header: header,
		// A type of our own, not one that the transport could rewind: it would send
		// again by itself, over another connection, what has an Idempotency-Key.
		Body: onceReader{bytes.NewReader(m.Payload)}, ContentLength: int64(len(m.Payload)),
	}).WithContext(ctx), nil
}

type onceReader struct{ r *bytes.Reader }

func (o onceReader) Read(p []byte) (int, error) { return o.r.Read(p) }
func (o onceReader) Close() error               { return nil }

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// ErrAddress reports that the receiver's address is not public and
// Config.AllowPrivate is not set. Nothing was sent.
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

// reserved headers belong to the connection.
var reserved = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Upgrade": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Expect": true,
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
