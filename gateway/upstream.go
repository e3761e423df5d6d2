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

// UpstreamConfig makes an Upstream.
type UpstreamConfig struct {
	// URL is where requests go, as Config.Upstream. Required.
	URL *url.URL
	// DialTimeout, IdleTimeout, MaxConns and TLS are as in Config.
	DialTimeout time.Duration
	IdleTimeout time.Duration
	MaxConns    int
	TLS         *tls.Config
	// HTTP2 speaks HTTP/2 with the upstream, and no other version: as agreed in
	// the handshake with https, at once with http. For upstreams that speak
	// nothing else. A connection then carries many requests, so that less is
	// known when it breaks: see the package comment. Default: HTTP/1.1.
	HTTP2 bool
	// Socket is the path of a Unix socket that the upstream listens on. URL then
	// says how to speak to it and under which name, as in http://orders.
	// Default: the host of URL.
	Socket string
}

// Upstream is a server with the connections to it. Several gateways can share
// one; its bound on connections holds for all of them. Safe for concurrent use.
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

// URL is where requests go.
func (u *Upstream) URL() *url.URL { return u.url }

// CloseIdle closes the connections that are not in use. An upstream that is no
// longer used needs it once; connections in use then are closed when they have
// been idle for their time.
func (u *Upstream) CloseIdle() { u.transport.CloseIdleConnections() }

// Webhook says how a sender's deliveries are verified, as in webhook.Config. Their
// operation is Config.Operation; Config.Guard's retention is made longer where the
// sender's retries need it, and of the rest of Config what concerns keys, the
// caller and the contract has no meaning for them.
type Webhook struct {
	// Scheme and Sender are required.
	Scheme webhook.Scheme
	Sender string
	// RetrySpan is the longest time from the first delivery of an event to the
	// last. Default: the scheme's.
	RetrySpan time.Duration
	// Refused is told of deliveries that are not accepted; nil for nobody.
	Refused func(r *http.Request, err error)
}
