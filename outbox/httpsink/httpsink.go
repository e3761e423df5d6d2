// Package httpsink delivers the messages of an outbox by HTTP.
//
// A message is sent as a POST of its payload. Its id is in Idempotency-Key, so
// that the receiver can drop repetitions: after a crash, a timeout or a lost
// response the same message is sent again. Semel's middleware and gateway do
// that for a receiver.
package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/semelhq/semel/outbox"
)

// Header fields of every request. Those for an empty key or type are omitted.
// Topic, key and type are percent-encoded as in a path.
const (
	HeaderKey     = "Idempotency-Key"
	HeaderTopic   = "Semel-Topic"
	HeaderLane    = "Semel-Lane" // the message's key
	HeaderType    = "Semel-Type"
	HeaderAttempt = "Semel-Attempt"
)

// Config says where messages go. URL is required.
type Config struct {
	// URL is the destination.
	URL string
	// Header is sent with every request, such as an Authorization field. It
	// takes precedence over the headers of a message.
	Header http.Header
	// AllowPrivate lets the sink connect to addresses that are not public:
	// loopback, private, link-local and the like. By default it refuses them,
	// even if a public name resolves to one, because addresses are often
	// supplied by others.
	AllowPrivate bool
	// UseProxyFromEnvironment uses the proxy named by HTTP_PROXY and similar
	// variables. AllowPrivate then applies to the address of the proxy, not to
	// those it connects to.
	UseProxyFromEnvironment bool
	// MaxConns is the maximum number of connections. Default 64.
	MaxConns int
	// DialTimeout limits connecting, and separately the TLS handshake. Default
	// 10 s. The route's Timeout limits the whole attempt.
	DialTimeout time.Duration
	// TLS is the TLS configuration. Default: the system's.
	TLS *tls.Config
}

// Sink is an outbox.Sink that posts messages. New makes one.
type Sink struct {
	config Config
	url    *url.URL
	client *Client
}

// New returns a sink. Close ends its idle connections.
func New(c Config) (*Sink, error) {
	u, err := ParseURL(c.URL)
	if err != nil {
		err = fmt.Errorf("field URL %w", err)
	}
	client, err2 := NewClient(ClientConfig{
		AllowPrivate: c.AllowPrivate, UseProxyFromEnvironment: c.UseProxyFromEnvironment,
		MaxConns: c.MaxConns, DialTimeout: c.DialTimeout, TLS: c.TLS,
	})
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("httpsink: config: %w", err)
	}
	c.Header = c.Header.Clone()
	return &Sink{config: c, url: u, client: client}, nil
}

// Close closes idle connections.
func (s *Sink) Close() { s.client.Close() }

// taken are the sink's own headers, which a message cannot set.
var taken = map[string]bool{HeaderKey: true, HeaderTopic: true, HeaderLane: true, HeaderType: true, HeaderAttempt: true}

// own is the headers that are not the message's.
func (s *Sink) own(d outbox.Delivery) (http.Header, error) {
	for name := range d.Headers {
		if taken[http.CanonicalHeaderKey(name)] {
			return nil, outbox.Permanent(fmt.Errorf("httpsink: a message cannot set the header %s", http.CanonicalHeaderKey(name)))
		}
	}
	own := http.Header{HeaderAttempt: {strconv.Itoa(d.Attempt)}}
	for name, value := range map[string]string{HeaderTopic: d.Topic, HeaderLane: d.Key, HeaderType: d.Type} {
		if value != "" {
			own.Set(name, url.PathEscape(value))
		}
	}
	for name, values := range s.config.Header {
		own[http.CanonicalHeaderKey(name)] = values
	}
	own.Set(HeaderKey, `"`+d.ID+`"`)
	return own, nil
}

// Deliver implements outbox.Sink. A 2xx status is a delivery. After 408, 425,
// 429 and 5xx the message is tried again, observing Retry-After. So it is after
// 409 with Retry-After, from a receiver that is still handling the same
// message; after a redirect, which is not followed, because the URL must be
// corrected; and if there was no response. Any other 4xx status is permanent.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) error {
	own, err := s.own(d)
	if err != nil {
		return err
	}
	a, err := s.client.Post(ctx, s.url, d.Message, own)
	if err != nil {
		return err
	}
	answered := fmt.Errorf("httpsink: the receiver answered %d", a.Status)
	switch code := a.Status; {
	case code/100 == 2:
		return nil
	case code == http.StatusConflict && a.Told,
		code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code/100 == 5:
		return outbox.RetryAfter(a.RetryAfter, answered)
	case code/100 == 4:
		return outbox.Permanent(answered)
	case code/100 == 3:
		return fmt.Errorf("%w, a redirection, which is not followed", answered)
	}
	return answered
}
