// Package httpsink delivers the messages of an outbox by HTTP.
//
// A message is a POST of its payload. Its id goes along in Idempotency-Key, so
// that the receiver can drop repetitions: after a crash, a timeout or a lost
// answer the same message is sent again. A receiver behind semel's middleware or
// gateway does so by itself.
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
	// TLS says which certificates are trusted, and more. Default: the system's.
	TLS *tls.Config
}

// Sink is an outbox.Sink that posts. New makes one.
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

// Deliver implements outbox.Sink. An answer of 2xx is a delivery. 408, 425, 429
// and 5xx are tried again, heeding Retry-After, and so is 409 with a
// Retry-After, which a receiver says that is still at work on the same message.
// So is a redirection, which is not followed: somebody has to correct the URL.
// All other answers of 4xx are for good. Without an answer it is tried again.
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
