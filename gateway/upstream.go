package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/semelhq/semel/webhook"
)

// UpstreamConfig configures an Upstream.
type UpstreamConfig struct {
	// URL is where requests go, as Config.Upstream. Required.
	URL *url.URL
	// DialTimeout, IdleTimeout, MaxConns and TLS are as in Config.
	DialTimeout time.Duration
	IdleTimeout time.Duration
	MaxConns    int
	TLS         *tls.Config
	// HTTP2 uses only HTTP/2 with the upstream: negotiated in the handshake
	// with https, with prior knowledge with http. It is for upstreams that
	// support nothing else. A connection then carries many requests, so that
	// less is known when it breaks: see the package comment. Default: HTTP/1.1.
	HTTP2 bool
	// Socket is the path of a Unix socket that the upstream listens on. URL then
	// gives the scheme and host name to use, as in http://orders. Default: the
	// host of URL.
	Socket string
}

// Upstream is a server and the connections to it. Several gateways can share
// one; its limit on connections applies to all of them. Safe for concurrent
// use.
type Upstream struct {
	url       *url.URL
	transport *http.Transport
	http2     bool
}

// NewUpstream returns an upstream, or one error that names everything wrong with
// c. It connects to nothing.
func NewUpstream(c UpstreamConfig) (*Upstream, error) {
	var errs []error
	if c.URL == nil {
		errs = append(errs, errors.New("field Upstream is nil"))
	} else if err := checkUpstream(c.URL); err != nil {
		errs = append(errs, fmt.Errorf("field Upstream %w", err))
	}
	if c.DialTimeout < 0 {
		errs = append(errs, fmt.Errorf("field DialTimeout is %v; it must not be negative", c.DialTimeout))
	}
	if c.IdleTimeout < 0 {
		errs = append(errs, fmt.Errorf("field IdleTimeout is %v; it must not be negative", c.IdleTimeout))
	}
	if c.MaxConns < 0 {
		errs = append(errs, fmt.Errorf("field MaxConns is %d; it must not be negative", c.MaxConns))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("gateway: upstream: %w", err)
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = DefaultDialTimeout
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = DefaultIdleTimeout
	}
	return &Upstream{url: c.URL, transport: newTransport(c), http2: c.HTTP2}, nil
}

// URL returns where requests are sent.
func (u *Upstream) URL() *url.URL { return u.url }

// CloseIdle closes idle connections. Call it once when an upstream is no
// longer used; connections that are in use at that time are closed after
// IdleTimeout.
func (u *Upstream) CloseIdle() { u.transport.CloseIdleConnections() }

// Webhook says how a sender's deliveries are verified, as in webhook.Config. Their
// operation is Config.Operation; Config.Guard's retention is extended if the
// sender's retries need it. The settings of Config for keys, callers and the
// contract do not apply to them.
type Webhook struct {
	// Scheme and Sender are required.
	Scheme webhook.Scheme
	Sender string
	// RetrySpan is the longest time from the first delivery of an event to the
	// last. Default: the scheme's.
	RetrySpan time.Duration
	// Refused is called for deliveries that are not accepted. May be nil.
	Refused func(r *http.Request, err error)
}
